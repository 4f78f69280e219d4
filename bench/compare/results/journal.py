"""The result file of a comparison, rewritten after every run, so that an interrupted comparison keeps its runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from errno import EACCES
from pathlib import Path

from bench.compare.results.results import CompareResult, compare_document, compare_result, from_document
from bench.compare.results.runs import Measured
from mltcp.core.atomic_files import write_atomically
from mltcp.core.errors import UsageError

RESULT = "result.json"

Keep = Callable[[Sequence[Measured]], None]
"""Called with all runs so far, after each run."""


def keep_in(directory: Path | None) -> Keep:
    """A `Keep` that writes ``result.json`` into the directory, which is made if need be; None: nothing is written.

    The file always holds a complete document.

    Raises:
        UsageError: nothing can be written there; raised now, not after the first run.
    """
    if directory is None:
        return lambda measured: None
    with writable(directory):
        pass

    def keep(measured: Sequence[Measured]) -> None:
        write_result(compare_result(measured), directory)

    return keep


def write_result(result: CompareResult, directory: Path) -> Path:
    """Write ``result.json`` into the directory; returns its path.

    Raises:
        MltcpError: it cannot be written there.
    """
    with writable(directory):
        document = json.dumps(compare_document(result), allow_nan=False)
        write_atomically(directory / RESULT, f"{document}\n".encode())
    return directory / RESULT


def read_result(path: Path) -> CompareResult:
    """The result of an earlier comparison, from its ``result.json``.

    Raises:
        UsageError: it cannot be read, or is none.
    """
    try:
        return from_document(json.loads(path.read_text()))
    except (OSError, ValueError, RecursionError, UsageError) as error:
        raise UsageError(f"{path}: {error}") from None


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
