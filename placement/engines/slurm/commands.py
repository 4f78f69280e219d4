"""Runs Slurm's commands, tells an answer from none, and asks ``squeue`` and ``sinfo`` for fields of jobs and nodes.

Names, comments and reasons may have line feeds, bars and whatever else separates fields. So a field ends with a random
mark, made for each call, that nobody can have written before; and squeue, whose jobs have texts of users, is given it
by its environment, which other accounts cannot read. ``--json`` could not be forged either, but differs from version to
version, and has no filters in the first ones that know it.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mltcp.core.errors import MltcpError, NotAvailableError
from mltcp.core.one_line import one_line

LONGEST_S = 30.0

_PASSED_ON = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SLURM_CONF", "TZ", "USER")

# What slurm_strerror says (slurm_errno.c, all versions since 20.02) of its protocol, its controller and credentials,
# and strerror of connections. None of them is about the request.
_NO_ANSWER = (
    "unexpected message received",
    "communication connection failure",
    "communication shutdown",
    "message send failure",
    "message receive failure",
    "incompatible versions of client and server",
    "protocol authentication error",
    "insane message length",
    "can't find an address",
    "unexpected missing socket",
    "unable to contact slurm controller",
    "received zero length message",
    "received message length < 0",
    "failed to send entire message",
    "header lengths are longer",
    "socket timed out",
    "zero bytes were transmitted",
    "invalid authentication credential",
    "authentication credential invalid",
    "failed to connect to authentication agent",
    "cannot unpack credential",
    "munge encode failed",
    "standby mode",
    "broken pipe",
    "connection refused",
    "connection reset",
    "connection timed out",
    "host is down",
    "network is unreachable",
    "no route to host",
    "resource temporarily unavailable",
    "transport endpoint",
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
        complaint = done.stderr.strip()
        # What ends without a word, as when the daemon that it talks to is killed, has not refused anything.
        is_silent = not (complaint or done.stdout.strip())
        kind = SlurmUnreachableError if is_silent or _no_answer(complaint) else SlurmError
        raise kind(f"{_named(command)}: {one_line(complaint or 'failed')}")
    return done.stdout


def plain_environment() -> dict[str, str]:
    """The variables that a command needs, and nothing of what else this process has: sbatch hands all on to the job."""
    return {name: os.environ[name] for name in _PASSED_ON if name in os.environ}


def _named(command: Sequence[str]) -> str:
    return " ".join(each for each in command[:4] if len(each) < 40)


def _no_answer(complaint: str) -> bool:
    lowered = complaint.lower()
    return any(each in lowered for each in _NO_ANSWER)


# -- rows of squeue and sinfo -------------------------------------------------------------------


_NOTHING = frozenset({"(null)", "N/A", "n/a", "NULL"})


@dataclass(frozen=True)
class Rows:
    """The records of an answer, each with the fields in the order asked for, and how many could not be read."""

    read: tuple[tuple[str, ...], ...]
    unreadable: int = 0


@dataclass(frozen=True)
class Marks:
    """The ends of a field and of a record; they begin with a letter, as a number would be a width."""

    field: str
    record: str

    @classmethod
    def new(cls) -> Marks:
        """Marks that nobody has written anywhere before."""
        return cls(f"f{secrets.token_hex(12)}", f"r{secrets.token_hex(12)}")

    def after(self, fields: Sequence[str], separator: str) -> str:
        """The format that prints these fields, each with its mark behind it."""
        return separator.join(
            [*(each + self.field for each in fields[:-1]), fields[-1] + self.field + self.record]
        )

    def rows(self, answer: str, count: int) -> Rows:
        """The records of `count` fields in an answer to such a format.

        Sites let programs print lines of their own before and behind. The first field is one line, without texts.
        """
        *records, rest = answer.split(f"{self.record}\n")
        fields = [record.split(self.field) for record in records]
        read = tuple(
            (each[0].rpartition("\n")[2], *each[1:-1])
            for each in fields
            if len(each) == count + 1 and not each[-1]
        )
        return Rows(read, len(records) - len(read) + (self.field in rest))


def squeue_rows(fields: Sequence[str], *options: str) -> Rows:
    """Ask squeue for fields of jobs.

    Args:
        fields: types of ``--format``, such as ``%A``, or else of ``--Format``, such as ``JobID``.
        options: which jobs, such as ``--user=1000``.

    Raises:
        NotAvailableError: it is not installed.
        SlurmError: it fails, or does not know a field.
    """
    marks = Marks.new()
    if fields[0].startswith("%"):
        form = {"SQUEUE_FORMAT": marks.after(fields, "")}
    else:
        form = {"SQUEUE_FORMAT2": marks.after([f"{each}:" for each in fields], ",")}
    command = ["squeue", "--noheader", "--all", "--local", "--states=all", *options]
    return _checked(command, marks.rows(slurm(command, variables=form), len(fields)), fields)


def sinfo_rows(fields: Sequence[str]) -> Rows:
    """Ask sinfo for fields of all nodes that are in a partition, such as ``NodeList``; one in two is there twice.

    Raises:
        NotAvailableError: it is not installed.
        SlurmError: it fails, or does not know a field.
    """
    marks = Marks.new()
    command = ["sinfo", "--noheader", "--all", "--local", "--Node"]
    form = marks.after([f"{each}:" for each in fields], ",")
    return _checked(command, marks.rows(slurm([*command, f"--Format={form}"]), len(fields)), fields)


def _checked(command: Sequence[str], rows: Rows, fields: Sequence[str]) -> Rows:
    if rows.unreadable and not rows.read:
        raise SlurmError(
            f"{command[0]}: expected {len(fields)} fields of each record ({', '.join(fields)}), got others in all "
            f"{rows.unreadable}"
        )
    return rows


def plain_value(field: str) -> str:
    """A field that has no text of users in it; empty where Slurm says that there is none."""
    text = field.strip()
    return "" if text in _NOTHING else text
