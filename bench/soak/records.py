"""Records of a soak's guests: acknowledged submissions, what users did to jobs, and events that must not happen."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

ACKNOWLEDGED, BREACHES = "acknowledged", "breaches"

TWICE = "twice"
"""[GPU, job, what its lock says, time] of each GPU that was given twice."""

TOKEN_JOBS, RELEASED = "token-jobs", "released"
"""Jobs that the service with Slurm's engine has acknowledged to users with tokens, and those that they released."""

SLURM_JOBS, HELD, CANCELLED = "slurm-jobs", "held", "cancelled"
"""[key, uid, number, time] of jobs that users submitted to Slurm; numbers that they held; keys that they cancelled."""

_NAMES = (ACKNOWLEDGED, BREACHES, TWICE, TOKEN_JOBS, RELEASED, SLURM_JOBS, HELD, CANCELLED)


class Records:
    """Files to which processes append, each line whole, also if the next moment kills them.

    Args:
        directory: an existing one.
    """

    def __init__(self, directory: Path) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._files = {name: os.open(directory / name, flags, 0o600) for name in _NAMES}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            os.close(file)

    def acknowledged(self, job_id: str) -> None:
        """Record that the service has acknowledged a submission."""
        self.note(ACKNOWLEDGED, job_id)

    def breach(self, text: str) -> None:
        """Record an event that an invariant rules out."""
        self.note(BREACHES, text)

    def note(self, name: str, entry: Any) -> None:
        """Append an entry to one of the files."""
        os.write(self._files[name], json.dumps(entry).encode() + b"\n")


def read_records(directory: Path, name: str) -> Iterator[Any]:
    """The entries of one file; none if there is no such file."""
    path = directory / name
    if path.exists():
        yield from map(json.loads, path.read_text().splitlines())
