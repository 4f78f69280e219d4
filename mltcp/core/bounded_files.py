"""Reading of whole files that others wrote, up to a size: none makes a process take all of its host's memory."""

from __future__ import annotations

import gzip
import stat
import zlib
from io import BufferedIOBase, BytesIO
from pathlib import Path

from mltcp.core.errors import UsageError

MOST_DOCUMENT_BYTES = 256 << 20
"""Of a JSON document: as Python's objects it takes ten times as much."""

MOST_TABLE_BYTES = 1 << 30
"""Of a trace or another table."""

MOST_ARRAY_BYTES = 2 << 30
"""Of all arrays of a file, as they are in memory."""

_GZIP = b"\x1f\x8b"
_PART_BYTES = 1 << 20


def read_bounded(path: Path, most_bytes: int, *, regular: bool = False) -> bytes:
    """The content of a file; that of one that gzip has written is unpacked.

    Args:
        path: of the file.
        most_bytes: that the content may have.
        regular: refuse all but regular files: a pipe would be waited for.

    Raises:
        OSError: it cannot be read.
        UsageError: it is larger, or gzip's and damaged.
    """
    if regular and not stat.S_ISREG(path.stat().st_mode):
        raise UsageError(f"{path}: expected a file")
    with open(path, "rb") as file:
        if file.peek(2)[:2] != _GZIP:
            return _bounded(file, path, most_bytes)
        try:
            with gzip.open(file) as unpacked:
                return _bounded(unpacked, path, most_bytes)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UsageError(f"{path}: expected a whole file of gzip: {error}") from None


def _bounded(file: BufferedIOBase, path: Path, most_bytes: int) -> bytes:
    content = BytesIO()
    while part := file.read(_PART_BYTES):
        content.write(part)
        if content.tell() > most_bytes:
            raise UsageError(f"{path}: expected at most {most_bytes >> 20} MiB, got more")
    return content.getvalue()
