"""Where, in numbers of operations, a job's iterations begin, and so where a later one will."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from statistics import median, median_low

from collectives.agent.learned_profile import began_to_send_ns
from collectives.agent.timetable import EARLY_BY, Timetable
from collectives.recording.records import Iteration, Operation

REMEMBERED = 8
PACED_BY = 3
LEAD_NS = 50_000_000
"""So far ahead all ranks learn of a hold in time."""


@dataclass(frozen=True)
class Start:
    """The first operation of all ranks in an iteration."""

    iteration: int
    group: str
    number: int
    ended_ns: int
    before_ns: int
    duration_ns: int


@dataclass(frozen=True)
class NextStart:
    """An operation with which an iteration will begin, and about when, by CLOCK_MONOTONIC."""

    group: str
    number: int
    begins_ns: int


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
            duration_ns = iteration.ended_ns - iteration.started_ns - first.held_ns
            began_ns = began_to_send_ns(iteration) or first.submitted_ns
            before_ns = began_ns - iteration.started_ns - first.held_ns
            start = Start(
                iteration.number, first.group, first.number, iteration.ended_ns, before_ns, duration_ns
            )
            if self._starts and start.group != self._starts[-1].group:
                self._starts.clear()
            self._starts.append(start)

    def _is_of_all(self, operation: Operation) -> bool:
        return operation.number is not None and operation.ranks == self._ranks

    def next_start(self, reached: int, now_ns: int) -> NextStart | None:
        """The next operation, far enough ahead, with which an iteration will begin.

        `reached` operations of its group have gone. None while too few iterations with operations of all ranks have
        been seen. Where iterations differ in how many operations they have, it may lie within one. A job that is late
        is not waited for: the next iteration but as many as fit into the lead is taken at the latest.
        """
        steps = self._steps()
        if not steps:
            return None
        step = max(1, round(median(steps)))
        last = self._starts[-1]
        recent = list(self._starts)[-PACED_BY:]
        pace_ns = self._pace_ns()
        first_ns = last.ended_ns + median_low(each.before_ns for each in recent)
        next_up = max(1, (reached - last.number) // step + 1)
        in_time = 1 + ceil((now_ns + LEAD_NS - first_ns) / pace_ns)
        ahead = max(next_up, min(in_time, next_up + ceil(LEAD_NS / pace_ns)))
        return NextStart(last.group, last.number + ahead * step, first_ns + (ahead - 1) * pace_ns)

    def timetable(self, at_ns: int, period_ns: int) -> Timetable | None:
        """One by which iterations begin at this time of CLOCK_MONOTONIC, and all periods before and after it.

        None where it cannot be told with which operation an iteration begins, as iterations differ in how many they
        have; and where iterations take another time than a period, but for a tenth.
        """
        steps = set(self._steps()[-PACED_BY:])
        if len(steps) != 1 or abs(self._pace_ns() - period_ns) > EARLY_BY * period_ns:
            return None
        last = self._starts[-1]
        return Timetable(last.group, last.number, steps.pop(), at_ns, period_ns)

    def _pace_ns(self) -> int:
        """How long an iteration takes, but for what the last ones were held."""
        return max(1, median_low(each.duration_ns for each in list(self._starts)[-PACED_BY:]))

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
