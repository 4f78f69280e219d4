"""Finds the line of a field in a TOML text, which the parser of the standard library does not report."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any


def line_of(text: str, path: Sequence[str]) -> int:
    """The line (from 1) on which the statement of a field begins.

    Args:
        text: valid TOML.
        path: the keys of the field, outermost first. If it is missing: the line of its table, or else 1.
    """
    for depth in range(len(path), 0, -1):
        line = _line(text, path[:depth])
        if line is not None:
            return line
    return 1


def _line(text: str, path: Sequence[str]) -> int | None:
    # Each statement is parsed with its table's header alone, so that the parser handles strings, quotes and dots.
    header, statement, began = "", "", 1
    for number, line in enumerate(text.split("\n"), 1):
        statement += line + "\n"
        document = _parsed(header + statement)
        if document is None:
            continue  # the statement continues in the next line
        if _has(document, path):
            return began
        if statement.lstrip().startswith("["):
            header = statement
        statement, began = "", number + 1
    return None


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except ValueError:
        return None


def _has(document: Any, path: Sequence[str]) -> bool:
    for key in path:
        if not isinstance(document, dict) or key not in document:
            return False
        document = document[key]
    return True
