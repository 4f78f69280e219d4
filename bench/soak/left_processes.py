"""Processes of a soak, found by the variable that all of them inherit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_OF_A_JOB = (b"MLTCP_JOB=", b"SLURM_JOB_ID=")


def processes_with(*variables: bytes) -> Iterator[int]:
    """The pids of processes in whose environment each of these, ``NAME=VALUE`` or ``NAME=``, is the begin of a line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                found = (entry / "environ").read_bytes().split(b"\0")
                if all(any(line.startswith(each) for line in found) for each in variables):
                    yield int(entry.name)


def left_of_jobs(mark: bytes) -> list[str]:
    """Processes of jobs that are there, as ``PID COMMAND``."""
    pids = {pid for variable in _OF_A_JOB for pid in processes_with(mark, variable)}
    return [f"{pid} {command_of(pid).decode(errors='replace')[:80]}" for pid in sorted(pids)]


def command_of(pid: int) -> bytes:
    """The command line of a process, its words separated by blanks; empty if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").strip()
    return b""
