"""Records of a soak's guests: acknowledged submissions, and events that must not happen."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_NAMES = ("acknowledged", "breaches")


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            os.close(file)

    def acknowledged(self, job_id: str) -> None:
        """Record that the service has acknowledged a submission."""
        self._append("acknowledged", job_id)

    def breach(self, text: str) -> None:
        """Record an event that an invariant rules out."""
        self._append("breaches", text)

    def _append(self, name: str, entry: Any) -> None:
        os.write(self._files[name], json.dumps(entry).encode() + b"\n")


def read_records(directory: Path, name: str) -> Iterator[str]:
    """The entries of one file; none if there is no such file."""
    path = directory / name
    if path.exists():
        yield from map(json.loads, path.read_text().splitlines())
