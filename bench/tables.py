"""Tables of results: one column is a heading and how its cell is made of a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.console import Console
from rich.table import Table

R = TypeVar("R")
ABSENT = "-"


@dataclass(frozen=True)
class Column(Generic[R]):
    """A column: its heading, the text of its cell for a row, and whether text stands at its left edge."""

    heading: str
    cell: Callable[[R], str]
    left: bool = False


def table_of(rows: Iterable[R], columns: Sequence[Column[R]], title: str | None = None) -> Table:
    """A table with a line for each row; without a title it has no rules."""
    table = Table(title=title, title_justify="left") if title else Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column.heading, justify="left" if column.left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(column.cell(row) for column in columns))
    return table


def console(least_width: int = 0) -> Console:
    """Standard output, without colours of numbers, and at least so wide, also where it is a file."""
    made = Console(highlight=False)
    made.width = max(made.width, least_width)
    return made


def number(value: float | None, form: str = ".3f") -> str:
    """A number in this format; a dash for None."""
    return ABSENT if value is None else f"{value:{form}}"
