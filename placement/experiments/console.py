"""The console that tables are printed on; rich, which takes 30 ms to import, is loaded when a table is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 200
"""Columns where the output is no terminal: tables are never cut to a width there."""


def open_console(file: TextIO | None = None) -> Console:
    """A console on the file or on standard output; without colours and wide if that is no terminal."""
    from rich.console import Console

    console = Console(file=file, highlight=False)
    return console if console.is_terminal else Console(file=file, highlight=False, width=WIDE, no_color=True)
