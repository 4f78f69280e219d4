"""The console and the tables on it; rich, which takes 30 ms to import, is loaded when a table is printed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDE = 200
"""Columns where the output is no terminal: tables are never cut to a width there."""


def open_console(file: TextIO | None = None) -> Console:
    """A console on the file or on standard output; without colours and wide if that is no terminal."""
    from rich.console import Console

    console = Console(file=file, highlight=False)
    return console if console.is_terminal else Console(file=file, highlight=False, width=WIDE, no_color=True)


def ruled_table(title: str, first: str, columns: Iterable[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table with a name and numbers in each row.

    Args:
        title: above it.
        first: the header of the names.
        columns: the headers of the numbers, of one line or two.
        rows: a name and the text of each number.
    """
    from rich.box import HORIZONTALS
    from rich.table import Table

    table = Table(title=title, box=HORIZONTALS, title_justify="left")
    table.add_column(first, no_wrap=True, vertical="bottom")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    return table
