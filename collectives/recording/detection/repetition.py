"""Boundaries of iterations and signatures of operations, and the shortest repetition in a sequence of these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Signature = tuple[str, int]
"""Name and bytes of an operation."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """The end of an iteration: `operations` operations of the job came before it, and it was at `at_ns`."""

    operations: int
    at_ns: int


class PastOperation(NamedTuple):
    """A past operation; a tuple, because a search makes thousands of them.

    Attributes:
        signature: its name and bytes.
        operations: number of operations before it.
        idle_ns: length of the pause before it.
        idle_since_ns: when that pause began.
    """

    signature: Signature
    operations: int
    idle_ns: int
    idle_since_ns: int

    def boundary(self) -> Boundary:
        """The boundary before it, if it begins an iteration."""
        return Boundary(self.operations, self.idle_since_ns)


# -- repetitions --------------------------------------------------------------------------------


LARGEST_MEMORY = 64
"""Number of broken cycles that are kept."""


class BrokenCycles:
    """Cycles that were followed and then broken, with the number of steps that each lasted.

    A cycle that lasted for `forgiven_turns` turns was right, and is not kept.
    """

    def __init__(self, forgiven_turns: int) -> None:
        self._forgiven_turns = forgiven_turns
        self._lasted: dict[frozenset[tuple[Hashable, int]], int] = {}

    def add(self, cycle: Sequence[Hashable], lasted: int) -> None:
        """Add a cycle that was broken after `lasted` steps."""
        if lasted >= self._forgiven_turns * len(cycle):
            return
        key = _kind(cycle)
        self._lasted[key] = max(lasted, self._lasted.pop(key, 0))
        if len(self._lasted) > LARGEST_MEMORY:
            del self._lasted[next(iter(self._lasted))]

    def lasted(self, cycle: Sequence[Hashable]) -> int:
        """The largest number of steps that a cycle lasted; 0 if it is not among the broken ones."""
        return self._lasted.get(_kind(cycle), 0) if self._lasted else 0


def _kind(cycle: Sequence[Hashable]) -> frozenset[tuple[Hashable, int]]:
    """A key that is the same for all rotations of a cycle."""
    return frozenset(Counter(cycle).items())


def repetition(
    sequence: Sequence[Hashable], needed: Callable[[list[Hashable], list[Hashable]], int]
) -> tuple[int, int] | None:
    """The smallest sufficiently long-lasting period at the end of the sequence, and the index from which it holds.

    `needed` returns how many items a cycle has to last, given the cycle and the items before its first repetition.
    """
    backwards = sequence[::-1]
    alike = _alike_from(backwards)
    count = len(sequence)
    smaller: list[int] = []
    for period in range(1, count // 2 + 1):
        lasts = period + alike[period]
        if lasts < 2 * period or any(period % each == 0 and each + alike[each] >= period for each in smaller):
            continue
        smaller.append(period)
        if lasts >= needed(list(sequence[count - period :]), list(sequence[: count - lasts])):
            return period, count - lasts
    return None


def _alike_from(items: Sequence[Hashable]) -> list[int]:
    """For each index, how many items from it on equal those from the beginning on (the Z function)."""
    count = len(items)
    alike = [0] * (count + 1)
    left = right = 0
    for index in range(1, count):
        if index < right:
            alike[index] = min(right - index, alike[index - left])
        while index + alike[index] < count and items[alike[index]] == items[index + alike[index]]:
            alike[index] += 1
        if index + alike[index] > right:
            left, right = index, index + alike[index]
    return alike
