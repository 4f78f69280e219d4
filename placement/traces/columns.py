"""The columns of a table, named by its first record, and the fields of the records under them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from placement.traces.fields import Field, fault, shown
from placement.traces.source import Record


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
    def of(cls, header: Record, known: Sequence[str]) -> Self:
        """Read the names, in any order and with spaces around them.

        Raises:
            UsageError: a name is not among those known, or there twice.
        """
        names = tuple(name.strip() for name in header.fields)
        for name in names:
            if name not in known:
                raise fault(header.place, "columns", f"{shown(name)} is unknown", ", ".join(known))
            if names.count(name) > 1:
                raise fault(header.place, name, "is there twice", "each column once")
        return cls(header.place, names)

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
