"""``mltcp-placement profile-job``: measures the time of a job's step on one slot, and the bytes that it reduces.

The command is run as the only rank of a job. The ``mltcp`` backend counts its steps and operations, whichever backend
the command names, and writes them to a file (``MLTCP_PROFILE``), which is read here until it has enough of them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mltcp.core.atomic_files import check_writable, write_atomically
from mltcp.core.errors import MltcpError, UsageError, shown
from mltcp.core.quantities import check_number, parse_number
from mltcp.core.subcommands import add_command

_EXAMPLES = """\
examples:
  mltcp-placement profile-job -o speed.json -- python train.py            20 steps on one slot, as one rank
  mltcp-placement submit --id j --gpus 1 --iterations 20000 --speed speed.json --elastic -- python train.py

The command gets the variables of a rank (RANK=0, WORLD_SIZE=1, ...), and SIGTERM after the last step: one that writes
checkpoints writes one. The file has the pattern ring; docs/service-jobs.md has the others.
"""

_WARM_UP = 2
"""The first steps of a job, which differ: DistributedDataParallel rebuilds its buckets after the first."""

_STEPS = 20
_TIMEOUT_S = 600.0
_GRACE_S = 30.0
_POLL_S = 0.1
_LONGEST_S = 86_400.0
_RING_SHARES = {"all_reduce": 1.0, "reduce_scatter": 0.5, "all_gather": 0.5, "all_to_all": 0.5}
"""The traffic of an operation on a ring, of that of an all-reduce of its payload on one rank."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``profile-job`` to the commands."""
    command = add_command(commands, "profile-job", execute, _EXAMPLES)
    command.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the speed there")
    command.add_argument(
        "--steps", default=str(_STEPS), metavar="N", help=f"to measure after {_WARM_UP} (default {_STEPS})"
    )
    command.add_argument(
        "--timeout",
        default=f"{_TIMEOUT_S:g}",
        metavar="S",
        help=f"seconds for all of them (default {_TIMEOUT_S:g})",
    )
    command.add_argument("--json", action="store_true", help="print the speed as one JSON document")
    command.add_argument("program", nargs="+", metavar="COMMAND", help="of a rank, after --")


def execute(options: argparse.Namespace) -> int:
    """Run the command, and write or print its speed; returns the exit status."""
    steps = round(parse_number(options.steps, field="--steps", lowest=1, highest=1e6))
    timeout_s = parse_number(options.timeout, field="--timeout", lowest=1, highest=_LONGEST_S)
    if options.output is not None:
        check_writable(options.output)
    with tempfile.TemporaryDirectory(prefix="mltcp-profile-job-") as directory:
        profile = _measured(options.program, Path(directory) / "profile.json", steps, timeout_s)
    speed = speed_document(profile)
    text = json.dumps(speed, indent=1) + "\n"
    if options.output is not None:
        write_atomically(options.output, text.encode())
    if options.json or options.output is None:
        print(text, end="")
    else:
        print(
            f"a step on one slot takes {1000 * speed['compute_s']:.4g} ms (the median of {speed['steps']}) "
            f"and reduces {speed['bytes'] / 1e6:.4g} MB; wrote {options.output}"
        )
    return 0


def speed_document(profile: Mapping[str, Any]) -> dict[str, Any]:
    """The speed of a job by the profile of its only rank: T_cal (DRS, Equation 4) and the bytes of a step.

    Raises:
        MltcpError: the profile has no typical step.
    """
    try:
        step = profile["typical"]
        compute_s = check_number(step["iteration_s"], field="iteration_s", lowest=1e-9)
        size = sum(_RING_SHARES.get(each["name"], 0.0) * each["bytes"] for each in step["operations"])
        steps = min(profile["iterations"] - _WARM_UP, 32)  # among the last 32 the backend finds the median
    except (KeyError, TypeError, UsageError) as error:
        raise MltcpError(f"profile: expected a typical step, got none: {error}") from None
    return {"pattern": "ring", "compute_s": compute_s, "bytes": round(size), "steps": steps}


def _measured(program: Sequence[str], file: Path, steps: int, timeout_s: float) -> dict[str, Any]:
    """The profile of a command after so many steps.

    Raises:
        MltcpError: it ended, or the time was over, before it had done them.
    """
    wanted, end_s = _WARM_UP + steps, time.monotonic() + timeout_s
    with _running(program, file) as process:
        while True:
            status = process.poll()
            found = _read(file)
            done = int(found.get("iterations", 0)) if found.get("typical") else 0
            if done >= wanted:
                return found
            if status is not None:
                why = f"which ended with status {status}"
            elif time.monotonic() > end_s:
                why = f"within {timeout_s:g} s"
            else:
                time.sleep(_POLL_S)
                continue
            raise MltcpError(
                f"expected {wanted} steps with an all-reduce of {shown(program[0])}, got {done}, {why}"
            )


@contextmanager
def _running(program: Sequence[str], file: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command as the only rank of a job; it is stopped at the end. What it prints goes to standard error."""
    try:
        process = subprocess.Popen(
            program,
            env=_environment(file),
            stdout=2,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise UsageError(f"COMMAND: expected a program, got {shown(program[0])}: {error.strerror}") from None
    try:
        yield process
    finally:
        with suppress(subprocess.TimeoutExpired):
            process.terminate()
            process.wait(_GRACE_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and what it has started
        process.wait()


def _environment(file: Path) -> dict[str, str]:
    others = ("MLTCP_PLACEMENT", "MLTCP_GATE", "MLTCP_DAEMON")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    return {
        **{name: value for name, value in os.environ.items() if name not in others},
        **{"MLTCP_WRAP": "gloo,nccl", "MLTCP_DAEMON": "none", "MLTCP_CC": "none", "MLTCP_PROFILE": str(file)},
        **rank,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _read(file: Path) -> dict[str, Any]:
    """The profile so far; empty before there is one."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
