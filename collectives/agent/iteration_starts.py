"""Operation numbers at which a job's iterations begin, and from them the start of a later iteration."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from statistics import median, median_low

from collectives.agent.learned_profile import began_to_send_ns
from collectives.agent.time_shift import EARLY_BY, Timetable
from collectives.recording.records import Iteration, Operation

REMEMBERED = 8
"""Number of iteration starts kept."""

PACED_BY = 3
"""The duration of an iteration is estimated from this many of the last ones."""

LEAD_NS = 50_000_000
"""A delay that is announced this far ahead reaches all ranks in time."""


@dataclass(frozen=True)
class Start:
    """The first operation of an iteration in which all ranks take part.

    Attributes:
        iteration: number of the iteration.
        group: process group of the operation.
        number: of the operation in its group.
        ended_ns: when the iteration ended.
        before_ns: from the beginning of the iteration until it began to send, without the time it was held.
        duration_ns: of the iteration, without the time it was held.
    """

    iteration: int
    group: str
    number: int
    ended_ns: int
    before_ns: int
    duration_ns: int


@dataclass(frozen=True)
class NextStart:
    """An operation with which an iteration will begin, and an estimate of when, on CLOCK_MONOTONIC."""

    group: str
    number: int
    begins_ns: int


class IterationStarts:
    """Tracks where the finished iterations of a job began.

    Args:
        ranks: number of ranks of the job; only operations of groups of this size are the same on all ranks.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._starts: deque[Start] = deque(maxlen=REMEMBERED)

    def add(self, iteration: Iteration) -> None:
        """Take a further finished iteration into account.

        Not the first one: it has the operations of the model's construction, and takes longer.
        """
        if iteration.number == 0:
            return
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
        """The next operation with which an iteration will begin, at least `LEAD_NS` ahead.

        `reached` operations of its group have been submitted. Returns None until enough iterations with operations of
        all ranks have been seen. Where iterations differ in their number of operations, the result may lie within an
        iteration. For a job that is late, the lead is at most as many iterations as usually fit into `LEAD_NS`.
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
        """A timetable with iterations at `at_ns` on CLOCK_MONOTONIC and at all periods before and after it.

        None where iterations differ in their number of operations, so that their first operation cannot be predicted,
        and where their duration differs from the period by more than a tenth.
        """
        steps = set(self._steps()[-PACED_BY:])
        if len(steps) != 1 or abs(self._pace_ns() - period_ns) > EARLY_BY * period_ns:
            return None
        last = self._starts[-1]
        return Timetable(last.group, last.number, steps.pop(), at_ns, period_ns)

    def _pace_ns(self) -> int:
        """Duration of an iteration, without the time for which the last ones were held."""
        return max(1, median_low(each.duration_ns for each in list(self._starts)[-PACED_BY:]))

    def _steps(self) -> Sequence[int]:
        """Number of operations of each of the last iterations."""
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
