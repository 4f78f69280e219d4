"""Runs Slurm's commands, and tells an answer of Slurm from there being none."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from mltcp.core.errors import MltcpError, NotAvailableError
from mltcp.core.one_line import one_line

LONGEST_S = 30.0

_PASSED_ON = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SLURM_CONF", "TZ", "USER")

# What strerror says of them in slurm_errno.c, in all versions since 20.02.
_NO_ANSWER = (
    "unable to contact slurm controller",
    "socket timed out",
    "zero bytes were transmitted",
    "transport endpoint",
    "connection refused",
    "connection reset",
    "communication connection failure",
    "communication shutdown",
    "protocol authentication error",
    "invalid authentication credential",
    "munge encode failed",
    "standby mode",
    "resource temporarily unavailable",
)


class SlurmError(MltcpError):
    """Slurm refused a request."""


class SlurmUnreachableError(SlurmError):
    """There was no answer: the request may have been carried out or not, and later there may be one."""


def slurm(
    command: Sequence[str], *, text: str | None = None, variables: Mapping[str, str] | None = None
) -> str:
    """Run a command of Slurm in a plain environment; returns its standard output.

    What an operator has set for himself, such as SQUEUE_PARTITION or SLURM_TIME_FORMAT, would change the answers.

    Args:
        command: a program with its arguments.
        text: its standard input.
        variables: what it gets besides :func:`plain_environment`.

    Raises:
        NotAvailableError: it is not installed.
        SlurmUnreachableError: slurmctld or munged does not answer, or not within 30 s.
        SlurmError: it fails otherwise.
    """
    program = command[0]
    try:
        done = subprocess.run(
            list(command),
            input=text,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=LONGEST_S,
            check=False,
            env={**plain_environment(), **(variables or {})},
            stdin=None if text is not None else subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise NotAvailableError(f"{program} is not installed") from None
    except subprocess.TimeoutExpired:
        raise SlurmUnreachableError(f"{_named(command)}: no answer within {LONGEST_S:.0f} s") from None
    except OSError as error:
        raise SlurmError(f"{program}: {error.strerror}") from None
    if done.returncode:
        complaint = done.stderr.strip() or "failed"
        kind = SlurmUnreachableError if _no_answer(complaint) else SlurmError
        raise kind(f"{_named(command)}: {one_line(complaint)}")
    return done.stdout


def plain_environment() -> dict[str, str]:
    """The variables that a command needs, and nothing of what else this process has: sbatch hands all on to the job."""
    return {name: os.environ[name] for name in _PASSED_ON if name in os.environ}


def _named(command: Sequence[str]) -> str:
    return " ".join(each for each in command[:4] if len(each) < 40)


def _no_answer(complaint: str) -> bool:
    lowered = complaint.lower()
    return any(each in lowered for each in _NO_ANSWER)
