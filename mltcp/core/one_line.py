"""Text of others as it may be shown in a line: a table, a log, an error."""

from __future__ import annotations


def one_line(text: str) -> str:
    """The text with all characters escaped that could end the line, or change what a terminal shows of the rest.

    Those are control characters, line separators, marks of the direction of writing, and what Unicode has no sign for.
    """
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
