"""What a comparison has measured so far, in a file: who is interrupted after an hour keeps what that hour was for."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from errno import EACCES
from pathlib import Path

from bench.compare.results import Measured, compare_result, to_document
from mltcp.core.errors import UsageError

RESULT = "result.json"

Keep = Callable[[Sequence[Measured]], None]
"""Called with all that has been measured, each time that an approach has run."""


def keep_in(directory: Path | None) -> Keep:
    """Keep it as ``result.json`` in the directory, which is made if need be; None: nowhere.

    The file is always a whole document: the one before, or the new one.

    Raises:
        UsageError: nothing can be written there. That is found out now, not when the first run is over.
    """
    if directory is None:
        return lambda measured: None
    with writable(directory):
        pass

    def keep(measured: Sequence[Measured]) -> None:
        write_result(to_document(compare_result(measured)), directory)

    return keep


def write_result(document: object, directory: Path) -> Path:
    """Write such a document into the directory, in one step; returns the file.

    Raises:
        UsageError: it cannot be written there.
    """
    unfinished = directory / f".{RESULT}.{os.getpid()}"
    with writable(directory):
        try:
            unfinished.write_text(json.dumps(document, allow_nan=False) + "\n")
            return unfinished.replace(directory / RESULT)
        finally:
            unfinished.unlink(missing_ok=True)


@contextmanager
def writable(directory: Path) -> Iterator[None]:
    """Make the directory if need be, for the files that are written into it.

    Raises:
        UsageError: it cannot be made, or a file in it cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK):
            raise PermissionError(EACCES, os.strerror(EACCES))
        yield
    except OSError as error:
        raise UsageError(f"cannot write to {directory}: {error.strerror or error}") from error
