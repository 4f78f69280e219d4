"""The reader of tables that others have written: a file's text, its records by columns, and exact numbers in them.

Errors name the file, the line and the field.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Self

from mltcp.core.bounded_files import MOST_TABLE_BYTES, read_bounded
from mltcp.core.errors import UsageError, shown

MOST = 10**18
"""The largest number accepted, in the smallest unit: sums of a few still fit in 64 bits. As ns, 31 years."""

MOST_TEXT = "10^18"

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_MOST_DIGITS = 60


def fault(place: str, name: str, reason: str, expected: str) -> UsageError:
    """The error for an invalid trace: `place` is "file:line", `name` the field."""
    return UsageError(f"{place}: {name}: {reason}; expected {expected}")


@dataclass(frozen=True)
class Field:
    """A field of a table.

    Attributes:
        place: "file:line".
        name: of its column.
        text: its content.
    """

    place: str
    name: str
    text: str

    def error(self, reason: str, expected: str) -> UsageError:
        """The error for an invalid value of this field."""
        return fault(self.place, self.name, reason, expected)

    def word(self) -> str:
        """The text without spaces around it.

        Raises:
            UsageError: it is empty, or contains characters that cannot be printed.
        """
        word = self.text.strip()
        if not word:
            raise self.error("is empty", "a name")
        if not word.isprintable():
            raise self.error(f"{shown(word)} cannot be printed", "a name on one line")
        return word

    def number(self, expected: str) -> Fraction:
        """The exact number; nan, inf, 1_000 and 0x10 are not accepted.

        Raises:
            UsageError: no number.
        """
        text = self.text.strip()
        if not text:
            raise self.error("is empty", expected)
        if len(text) > _MOST_DIGITS or not _NUMBER.fullmatch(text):
            raise self.error(f"{shown(text)} is no number", expected)
        return Fraction(text)

    def real(self, expected: str = "a number") -> float:
        """The nearest floating-point number.

        Raises:
            UsageError: no number, or one too large.
        """
        self.number(expected)
        if math.isinf(value := float(self.text)):
            raise self.error(f"{shown(self.text.strip())} is too large", expected)
        return value

    def whole(self, least: int = 0, most: int = MOST) -> int:
        """A whole number.

        Raises:
            UsageError: anything else, less than `least` or more than `most`.
        """
        limit = MOST_TEXT if most == MOST else str(most)
        return self._count(1, f"whole numbers from {least} to {limit}", least, most)

    def units(self, per: int, unit: str, least: int = 0) -> int:
        """The number of smallest units (named `unit`), of which `per` make the unit of the text, as 0.5 ms in ns.

        Raises:
            UsageError: no number, finer than one of the smallest units, or less than `least` of them.
        """
        return self._count(per, f"{least} to {MOST_TEXT} {unit} in steps of 1 {unit}", least)

    def quantum(self) -> Fraction:
        """The value of the last digit: 1/1000 for 3.140. The text must be one that `number` accepts."""
        exponent = Decimal(self.text.strip()).as_tuple().exponent
        assert isinstance(exponent, int), "number() lets neither nan nor inf pass"
        return Fraction(10) ** exponent

    def _count(self, per: int, expected: str, least: int, most: int = MOST) -> int:
        value = self.number(expected) * per
        if value.denominator != 1:
            raise self.error(f"{shown(self.text.strip())} is too fine", expected)
        count = value.numerator
        if not least <= count <= most:
            size = "small" if count < least else "large"
            raise self.error(f"{shown(self.text.strip())} is too {size}", expected)
        return count


# -- files and their records -------------------------------------------------------------------------------------------


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


# -- columns, named by the first record --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Columns:
    """The columns of a table, in the order of the file.

    Attributes:
        place: "file:line" of their names.
        names: each once.
    """

    place: str
    names: tuple[str, ...]

    @classmethod
    def of(cls, header: Record, known: Sequence[str] = (), needed: Sequence[str] = ()) -> Self:
        """Read the names, in any order and with spaces around them.

        Raises:
            UsageError: a name is not among those known, if any are given, or there twice; or one needed is missing.
        """
        names = tuple(name.strip() for name in header.fields)
        for name in names:
            if known and name not in known:
                raise fault(header.place, "columns", f"{shown(name)} is unknown", ", ".join(known))
            if names.count(name) > 1:
                raise fault(header.place, name, "is there twice", "each column once")
        columns = cls(header.place, names)
        columns.need(needed, ", ".join(known or needed))
        return columns

    def need(self, needed: Sequence[str], expected: str) -> None:
        """Refuse a table without a column.

        Args:
            needed: the columns that have to be there.
            expected: all columns that may be missed, for the message.

        Raises:
            UsageError: one of them is missing.
        """
        for name in needed:
            if name not in self.names:
                raise fault(self.place, name, "the column is missing", expected)

    def fields(self, record: Record) -> dict[str, Field]:
        """The fields of a record by the names of their columns.

        Raises:
            UsageError: they are too few or too many.
        """
        if len(record.fields) != len(self.names):
            raise fault(record.place, "line", f"{len(record.fields)} fields", f"{len(self.names)}")
        named = zip(self.names, record.fields, strict=True)
        return {name: Field(record.place, name, text) for name, text in named}


def read_rows(path: Path, needed: Sequence[str]) -> Iterator[dict[str, Field]]:
    """The rows of a file that has these columns, and perhaps others.

    Raises:
        UsageError: it cannot be read, is no table, a column is missing, or a line has too few or too many fields.
    """
    records = Source.load(path).records()
    columns = Columns.of(next(records), needed=needed)
    for record in records:
        yield columns.fields(record)
