"""Options of command lines that have a default."""

from __future__ import annotations

import argparse
from collections.abc import Iterable


def option(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup,
    name: str,
    default: str | int | float,
    help: str,
    metavar: str | None = None,
    choices: Iterable[str] | None = None,
) -> None:
    """Add an option whose values are of its default's type; the help ends with the default."""
    of = None if isinstance(default, str) else type(default)
    text = f"{help} (default %(default)s)".strip()
    if choices is None:
        parser.add_argument(name, type=of, default=default, metavar=metavar, help=text)  # type: ignore[arg-type]
    else:
        parser.add_argument(name, default=default, choices=choices, metavar=metavar, help=text)
