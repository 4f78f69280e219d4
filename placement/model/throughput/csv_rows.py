"""Rows of comma-separated values with named columns, for tables of measurements; errors name the file and the line."""

from __future__ import annotations

import csv
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mltcp.core.bounded_files import MOST_TABLE_BYTES, read_bounded
from mltcp.core.errors import UsageError, shown

_MOST = 10**6

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True)
class CsvRow:
    """A row.

    Attributes:
        place: "file:line".
        values: by column.
    """

    place: str
    values: Mapping[str, str]

    def error(self, column: str, expected: str, got: str) -> UsageError:
        """The error for a wrong value."""
        return UsageError(f"{self.place}: {column}: expected {expected}, got {got}")

    def text(self, column: str) -> str:
        """A name.

        Raises:
            UsageError: it is empty or cannot be printed.
        """
        text = self.values[column].strip()
        if not text or not text.isprintable():
            raise self.error(column, "a name", shown(text))
        return text

    def whole(self, column: str) -> int:
        """A whole number from 1 to a million.

        Raises:
            UsageError: it is none.
        """
        text = self.values[column].strip()
        if not (text.isascii() and text.isdigit() and len(text) <= 7 and 1 <= int(text) <= _MOST):
            raise self.error(column, f"1 to {_MOST}", shown(text))
        return int(text)

    def number(self, column: str) -> float:
        """A finite number.

        Raises:
            UsageError: it is none.
        """
        text = self.values[column].strip()
        try:
            value = float(text)
        except ValueError:
            raise self.error(column, "a number", shown(text)) from None
        if not math.isfinite(value):
            raise self.error(column, "a number", shown(text))
        return value

    def once(self, found: dict[_Key, float], key: _Key, value: float) -> None:
        """Add a value under a key that is new.

        Raises:
            UsageError: it has a value.
        """
        if key in found:
            raise self.error("row", "each once", f"{key} twice")
        found[key] = value


def csv_rows(path: Path, columns: Sequence[str]) -> Iterator[CsvRow]:
    """The rows of a file that has these columns, and perhaps others.

    Raises:
        UsageError: it cannot be read, is no table in UTF-8, or a column is missing.
    """
    try:
        text = read_bounded(path, MOST_TABLE_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except ValueError:
        raise UsageError(f"{path}: expected text in UTF-8") from None
    try:
        lines = list(csv.reader(text.splitlines(), strict=True))
    except csv.Error as error:
        raise UsageError(f"{path}: expected comma-separated values: {error}") from None
    header = [name.strip() for name in lines[0]] if lines else []
    missing = [name for name in columns if name not in header]
    if missing:
        raise UsageError(f"{path}:1: columns: expected {', '.join(columns)}, got no {missing[0]}")
    for number, fields in enumerate(lines[1:], start=2):
        if not any(each.strip() for each in fields):
            continue
        if len(fields) != len(header):
            raise UsageError(f"{path}:{number}: line: expected {len(header)} fields, got {len(fields)}")
        yield CsvRow(f"{path}:{number}", dict(zip(header, fields, strict=True)))
