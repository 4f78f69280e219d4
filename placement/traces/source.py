"""The text of a trace's file, and the records of a table in it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from mltcp.core.bounded_files import MOST_TABLE_BYTES, read_bounded
from mltcp.core.errors import UsageError
from placement.traces.fields import fault


@dataclass(frozen=True)
class Record:
    """A record of a table: its fields, and "file:line" of where it begins."""

    place: str
    fields: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """A file that was read.

    Attributes:
        file: its name, as messages show it.
        text: what it holds, without a byte order mark.
    """

    file: str
    text: str

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file of text in UTF-8, or one that gzip has made of it.

        Raises:
            UsageError: it cannot be read, is empty, too large, or no text.
        """
        try:
            return cls.decode(read_bounded(path, MOST_TABLE_BYTES), str(path))
        except OSError as error:
            raise UsageError(f"{_printable(str(path))}: {error.strerror}") from None
        except ValueError as error:  # a NUL in the name
            raise UsageError(f"{_printable(str(path))}: {error}") from None

    @classmethod
    def decode(cls, data: bytes, file: str) -> Self:
        """Decode `data`, the content of `file`.

        Raises:
            UsageError: it is empty, or not text in UTF-8.
        """
        file = _printable(file)
        expected = "text in UTF-8"
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = 1 + data.count(b"\n", 0, error.start)
            raise fault(f"{file}:{line}", f"byte {error.start}", "no UTF-8", expected) from None
        if "\0" in text:
            line = 1 + text.count("\n", 0, text.index("\0"))
            raise fault(f"{file}:{line}", f"byte {data.index(0)}", "binary data", expected)
        if not text.strip():
            raise fault(f"{file}:1", "file", "is empty", "a trace of 1 or more jobs")
        return cls(file, text)

    @property
    def name(self) -> str:
        """The name of the trace: the file's stem."""
        return Path(self.file.removesuffix(".gz")).stem

    def place(self, line: int) -> str:
        """The place of a line, "file:line"."""
        return f"{self.file}:{line}"

    def records(self) -> Iterator[Record]:
        """Yield the records of comma-separated values; empty lines are left out, and a field may be in double quotes.

        There is at least one record.

        Raises:
            UsageError: quotes that do not match, or nothing but empty fields.
        """
        lines = csv.reader(io.StringIO(self.text, newline=""), strict=True)
        begin, found = 1, False
        try:
            for fields in lines:
                if any(field.strip() for field in fields):
                    found = True
                    yield Record(self.place(begin), tuple(fields))
                begin = lines.line_num + 1
        except csv.Error as error:
            expected = "comma-separated values"
            raise fault(self.place(begin), "line", str(error), expected) from None
        if not found:
            raise fault(self.place(1), "file", "all fields are empty", "a trace of 1 or more jobs")


def _printable(file: str) -> str:
    return file if file.isprintable() else repr(file)
