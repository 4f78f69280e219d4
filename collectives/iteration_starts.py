"""Where, in numbers of operations, a job's iterations begin, and so where a later one will."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from statistics import median

from collectives.records import Iteration, Operation

REMEMBERED = 8
LEAST_ITERATIONS = 1
LEAD_S = 0.25
"""So far ahead all ranks learn of a hold in time."""


@dataclass(frozen=True)
class Start:
    """The first operation of all ranks in an iteration."""

    iteration: int
    group: str
    number: int
    duration_s: float


class IterationStarts:
    """Follows the finished iterations of a job.

    Args:
        ranks: of the job; only operations of groups with as many ranks are the same on all of them.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._starts: deque[Start] = deque(maxlen=REMEMBERED)

    def add(self, iteration: Iteration) -> None:
        """A further iteration has finished."""
        first = next((each for each in iteration.operations if self._is_of_all(each)), None)
        if first is not None and first.number is not None:
            start = Start(iteration.number, first.group, first.number, iteration.duration_s)
            if self._starts and start.group != self._starts[-1].group:
                self._starts.clear()
            self._starts.append(start)

    def _is_of_all(self, operation: Operation) -> bool:
        return operation.number is not None and operation.ranks == self._ranks

    def next_start(self, reached: int) -> tuple[str, int] | None:
        """The group and number of an operation, far enough ahead, with which an iteration will begin.

        `reached` operations of that group have gone. None while too few iterations with operations of all ranks have
        been seen. Where iterations differ in how many operations they have, it may lie within one.
        """
        steps = self._steps()
        if not steps:
            return None
        step = max(1, round(median(steps)))
        last = self._starts[-1]
        seconds = median(each.duration_s for each in self._starts)
        ahead = max(LEAST_ITERATIONS, ceil(LEAD_S / max(seconds, 1e-6)))
        gone = max(0, reached - last.number)
        return last.group, last.number + (gone // step + 1 + ahead) * step

    def _steps(self) -> Sequence[int]:
        """How many operations the last iterations had."""
        found = list(self._starts)
        return [
            (after.number - before.number) // (after.iteration - before.iteration)
            for before, after in pairwise(found)
            if after.iteration > before.iteration and after.number > before.number
        ]

    @property
    def group(self) -> str | None:
        """The group whose operations begin iterations."""
        return self._starts[-1].group if self._starts else None
