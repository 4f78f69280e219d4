"""Records of the process that owns each lab, with which labs of dead owners are found and removed.

The record ``/run/mltcp-lab/ID.json`` is written before the first namespace of a lab is made and removed after the
last one, so that every namespace of every lab has a record at any time. An owner is a pid together with the start time
of the process, because pids are reused. A lock on the directory makes writing a record atomic for its readers: a record
that cannot be parsed is one whose writer died.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.lab.network import namespaces

RECORDS = Path("/run/mltcp-lab")
PREFIX = "mltcp-lab-"
_STATE, _START_TIME = 0, 19  # fields 3 and 22 of /proc/PID/stat, counted from the state on


@dataclass(frozen=True)
class Owner:
    """A process: its pid, and its start time in clock ticks since boot."""

    pid: int
    start_ticks: int

    @classmethod
    def current(cls) -> Owner:
        """The calling process."""
        ticks = _start_ticks(os.getpid())
        if ticks is None:
            raise RuntimeError("/proc does not show the calling process")
        return cls(os.getpid(), ticks)

    def alive(self) -> bool:
        """Whether this process still runs; a zombie does not."""
        return _start_ticks(self.pid) == self.start_ticks


def new_id() -> str:
    """A unique id for a lab."""
    return secrets.token_hex(4)


def claim(lab_id: str) -> None:
    """Record that the calling process owns the lab ``lab_id``."""
    with _locked():
        _record(lab_id).write_text(json.dumps(asdict(Owner.current())))


def remove(lab_id: str) -> None:
    """Remove a lab: kill its processes (except the caller), and delete its namespaces and its record."""
    mine = namespaces.names(f"{PREFIX}{lab_id}-")
    namespaces.kill_processes(mine)
    for name in mine:
        namespaces.remove(name)
    _record(lab_id).unlink(missing_ok=True)


def clean_stale() -> list[str]:
    """Remove every lab whose owner is dead; returns their ids."""
    with _locked():
        stale = [path.stem for path in sorted(RECORDS.glob("*.json")) if not _in_use(path)]
        for lab_id in stale:
            remove(lab_id)
    return stale


def _record(lab_id: str) -> Path:
    return RECORDS / f"{lab_id}.json"


def _in_use(record: Path) -> bool:
    try:
        return Owner(**json.loads(record.read_text())).alive()
    except FileNotFoundError:
        return True  # its owner has just removed the lab
    except (ValueError, TypeError):
        return False


@contextmanager
def _locked() -> Iterator[None]:
    RECORDS.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor = os.open(RECORDS, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _start_ticks(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name is in brackets and may itself contain brackets and blanks.
    fields = text.rpartition(")")[2].split()
    return None if fields[_STATE] in "ZX" else int(fields[_START_TIME])
