"""Exact numbers from the text of a trace's fields, and the one line that says where one of them is wrong."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from reprlib import Repr

from mltcp.core.errors import UsageError

MOST = 10**18
"""The largest number allowed, in the smallest unit: sums of a few still fit in 64 bits. As ns, 31 years."""

MOST_TEXT = "10^18"

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_MOST_DIGITS = 60


def fault(place: str, name: str, reason: str, allowed: str) -> UsageError:
    """The error of a trace: `place` is "file:line", `name` that of the field."""
    return UsageError(f"{place}: {name}: {reason}; {allowed}")


def shown(value: object) -> str:
    """A value as a message quotes it: short, and on one line."""
    return _SHORT.repr(value)


_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 40


class Once:
    """What may be there once: remembers where."""

    def __init__(self) -> None:
        self._places: dict[Hashable, str] = {}

    def add(self, key: Hashable, place: str, name: str) -> None:
        """Remember `key`, which is in the field `name` at `place`.

        Raises:
            UsageError: it was there before.
        """
        if key in self._places:
            raise fault(place, name, f"{shown(key)} is also at {self._places[key]}", "each once is allowed")
        self._places[key] = place

    def __contains__(self, key: Hashable) -> bool:
        return key in self._places


@dataclass(frozen=True)
class Field:
    """A field of a table.

    Attributes:
        place: "file:line".
        name: of its column.
        text: what it holds.
    """

    place: str
    name: str
    text: str

    def error(self, reason: str, allowed: str) -> UsageError:
        """That this field is wrong."""
        return fault(self.place, self.name, reason, allowed)

    def word(self) -> str:
        """The text without spaces around it.

        Raises:
            UsageError: nothing is left, or a line end or the like is in it.
        """
        word = self.text.strip()
        if not word:
            raise self.error("is empty", "a name is allowed")
        if not word.isprintable():
            raise self.error(f"{shown(word)} cannot be printed", "a name on one line is allowed")
        return word

    def number(self, allowed: str) -> Fraction:
        """The number, exactly; a word (nan, inf) is none, and neither are 1_000 and 0x10.

        Raises:
            UsageError: no number.
        """
        text = self.text.strip()
        if not text:
            raise self.error("is empty", allowed)
        if len(text) > _MOST_DIGITS or not _NUMBER.fullmatch(text):
            raise self.error(f"{shown(text)} is no number", allowed)
        return Fraction(text)

    def whole(self, least: int = 0) -> int:
        """A whole number.

        Raises:
            UsageError: anything else, or less than `least`.
        """
        return self._count(1, f"whole numbers from {least} to {MOST_TEXT} are allowed", least)

    def units(self, per: int, unit: str, least: int = 0) -> int:
        """A number in a unit of `per` smallest ones (of the name `unit`), in these; as 0.5 ms in ns.

        Raises:
            UsageError: no number, finer than one of the smallest units, or less than `least` of them.
        """
        return self._count(per, f"{least} to {MOST_TEXT} {unit} in steps of 1 {unit} are allowed", least)

    def quantum(self) -> Fraction:
        """What the last digit stands for: 1/1000 for 3.140. Only for what `number` accepts."""
        exponent = Decimal(self.text.strip()).as_tuple().exponent
        assert isinstance(exponent, int), "number() lets neither nan nor inf pass"
        return Fraction(10) ** exponent

    def _count(self, per: int, allowed: str, least: int) -> int:
        value = self.number(allowed) * per
        if value.denominator != 1:
            raise self.error(f"{shown(self.text.strip())} is too fine", allowed)
        count = value.numerator
        if not least <= count <= MOST:
            size = "small" if count < least else "large"
            raise self.error(f"{shown(self.text.strip())} is too {size}", allowed)
        return count
