"""The journal of a job's runs: when each began and ended, with how many ranks, and what its parts took."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

NAME = "journal.jsonl"


class Journal:
    """One JSON object a line, written by rank 0; a line that cannot be written is left out.

    Every line has ``event``, ``monotonic_ns`` (CLOCK_MONOTONIC of its host) and ``time_ns`` since the epoch.

    Args:
        directory: of the job's checkpoints; None: nothing is written.
    """

    def __init__(self, directory: Path | None) -> None:
        self._path = None if directory is None else directory / NAME

    def note(self, event: str, monotonic_ns: int | None = None, **fields: Any) -> None:
        """Append an event, which happened now or at `monotonic_ns`."""
        if self._path is None:
            return
        now_ns = time.monotonic_ns()
        at_ns = now_ns if monotonic_ns is None else monotonic_ns
        document = {
            "event": event,
            "monotonic_ns": at_ns,
            "time_ns": time.time_ns() - now_ns + at_ns,
            **fields,
        }
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                os.write(file, json.dumps(document).encode() + b"\n")
            finally:
                os.close(file)
        except OSError:
            return


def read_journal(directory: Path) -> list[dict[str, Any]]:
    """The events of a job's runs in order; none if it has not run. A line cut short by a crash is left out."""
    try:
        lines = (directory / NAME).read_text().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
