"""Slurm's host lists, such as ``gpu[01-16,20],login1``: expanded, and written short."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

from mltcp.core.errors import UsageError, shown

MOST_NAMES = 100_000

_PART = re.compile(r"[^,\[\]]|\[[^\[\]]*\]")
_ITEM = re.compile(r"((?:[^,\[\]]|\[[^\[\]]*\])+)(?:,|$)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_NUMBERED = re.compile(r"(.*?)(\d+)")


def expand(text: str) -> tuple[str, ...]:
    """The names in a host list, in its order.

    Raises:
        UsageError: it is malformed, or has more than MOST_NAMES names.
    """
    names: list[str] = []
    at = 0
    while at < len(text):
        item = _ITEM.match(text, at)
        if item is None:
            raise UsageError(f"host list: expected names such as n[1-4,7], got {shown(text)}")
        pieces = [_choices(part, text) for part in _PART.findall(item[1])]
        for chosen in itertools.product(*pieces):
            names.append("".join(chosen))
            if len(names) > MOST_NAMES:
                raise UsageError(f"host list: expected at most {MOST_NAMES} names, got more in {shown(text)}")
        at = item.end()
    return tuple(names)


def _choices(part: str, text: str) -> tuple[str, ...]:
    if not part.startswith("["):
        return (part,)
    found: list[str] = []
    for each in part[1:-1].split(","):
        numbers = _RANGE.fullmatch(each)
        if numbers is None:
            raise UsageError(
                f"host list: expected numbers and ranges in brackets, got {shown(each)} in {shown(text)}"
            )
        first, last = int(numbers[1]), int(numbers[2] or numbers[1])
        if last < first or last - first >= MOST_NAMES:
            raise UsageError(
                f"host list: expected a range of at most {MOST_NAMES} numbers, got {shown(each)}"
            )
        found += [f"{number:0{len(numbers[1])}d}" for number in range(first, last + 1)]
    return tuple(found)


def shorten(names: Iterable[str]) -> str:
    """A host list of these names, with numbers at their ends as ranges."""
    grouped: dict[str, list[str]] = {}
    for name in names:
        numbered = _NUMBERED.fullmatch(name)
        if numbered is None:
            grouped.setdefault(name, [])
        else:
            grouped.setdefault(numbered[1], []).append(numbered[2])
    return ",".join(_shortened(start, numbers) for start, numbers in grouped.items())


def _shortened(start: str, numbers: list[str]) -> str:
    if not numbers:
        return start
    runs = [first if first == last else f"{first}-{last}" for first, last in _runs(numbers)]
    if len(runs) == 1 and "-" not in runs[0]:
        return start + runs[0]
    return f"{start}[{','.join(runs)}]"


def _runs(numbers: list[str]) -> Iterator[tuple[str, str]]:
    """The first and last of each run of numbers that follow each other, written as Slurm would write them."""
    ordered = sorted(set(numbers), key=lambda number: (int(number), len(number)))
    first = last = ordered[0]
    for number in ordered[1:]:
        if number == f"{int(last) + 1:0{len(first)}d}":
            last = number
        else:
            yield first, last
            first = last = number
    yield first, last
