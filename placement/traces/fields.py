"""Parses exact numbers from the fields of a trace; errors name the file, the line and the field."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from reprlib import Repr

from mltcp.core.errors import UsageError

MOST = 10**18
"""The largest number accepted, in the smallest unit: sums of a few still fit in 64 bits. As ns, 31 years."""

MOST_TEXT = "10^18"

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_MOST_DIGITS = 60


def fault(place: str, name: str, reason: str, expected: str) -> UsageError:
    """The error for an invalid trace: `place` is "file:line", `name` the field."""
    return UsageError(f"{place}: {name}: {reason}; expected {expected}")


def shown(value: object) -> str:
    """The value as messages quote it: short and on one line."""
    return _SHORT.repr(value)


_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 40


class Once:
    """Keys that may occur once, each with the place of its occurrence."""

    def __init__(self) -> None:
        self._places: dict[Hashable, str] = {}

    def add(self, key: Hashable, place: str, name: str) -> None:
        """Add `key`, which is in the field `name` at `place`.

        Raises:
            UsageError: it occurred before.
        """
        if key in self._places:
            raise fault(place, name, f"{shown(key)} is also at {self._places[key]}", "each once")
        self._places[key] = place

    def __contains__(self, key: Hashable) -> bool:
        return key in self._places


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

    def whole(self, least: int = 0) -> int:
        """A whole number.

        Raises:
            UsageError: anything else, or less than `least`.
        """
        return self._count(1, f"whole numbers from {least} to {MOST_TEXT}", least)

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

    def _count(self, per: int, expected: str, least: int) -> int:
        value = self.number(expected) * per
        if value.denominator != 1:
            raise self.error(f"{shown(self.text.strip())} is too fine", expected)
        count = value.numerator
        if not least <= count <= MOST:
            size = "small" if count < least else "large"
            raise self.error(f"{shown(self.text.strip())} is too {size}", expected)
        return count
