"""Records of the process that owns each lab, with which labs of dead owners are found and removed.

The record ``/run/mltcp-lab/ID.owner`` is written before the first namespace of a lab is made and removed after the
last one, so that every namespace of every lab has a record at any time. A lock on the directory makes writing a record
atomic for its readers: a record that cannot be parsed is one whose writer died.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.lab.network import namespaces
from mltcp.core.owner import Owner

RECORDS = Path("/run/mltcp-lab")
PREFIX = "mltcp-lab-"


def new_id() -> str:
    """A unique id for a lab."""
    return secrets.token_hex(4)


def claim(lab_id: str) -> None:
    """Record that the calling process owns the lab ``lab_id``."""
    with _locked():
        _record(lab_id).write_text(str(Owner.current()))


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
        stale = [path.stem for path in sorted(RECORDS.glob("*.owner")) if not _in_use(path)]
        for lab_id in stale:
            remove(lab_id)
    return stale


def _record(lab_id: str) -> Path:
    return RECORDS / f"{lab_id}.owner"


def _in_use(record: Path) -> bool:
    try:
        owner = Owner.parse(record.read_text())
    except FileNotFoundError:
        return True  # its owner has just removed the lab
    return owner is not None and owner.is_alive()


@contextmanager
def _locked() -> Iterator[None]:
    RECORDS.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor = os.open(RECORDS, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
