"""Time shifts: all ranks wait before the same operation, which delays all iterations from then on.

Rank 0, which knows the service's clock, waits until the time that the service has named; the others wait for no longer,
and then for rank 0 in the operation.

An operation is identified by its group and its number among the collective operations of that group, which are the
same on all ranks. The wait is on the thread that calls the operation, asynchronous or not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns

from mltcp.core.delay import Delay

QUESTIONS = 8
"""Requests per measurement."""

RENEW_S = 30.0
"""Interval between measurements. Two clocks of 50 parts in a million drift apart by 3 ms in this time."""


class ServiceClock:
    """The offset between the two clocks, by the fastest request: half of its round trip bounds the error."""

    def __init__(self, now_ns: Callable[[], int] = monotonic_ns) -> None:
        self._now_ns = now_ns
        self._offset_ns = 0
        self._renewed_ns: int | None = None
        self.error_ns = 0

    @property
    def is_due(self) -> bool:
        """Whether the offset has to be measured (again)."""
        return self._renewed_ns is None or self._now_ns() - self._renewed_ns > RENEW_S * 1e9

    def renew(self, ask_ns: Callable[[], int]) -> None:
        """Measure the offset; `ask_ns` returns the service's clock. If it raises, the offset stays as it was."""
        answers = []
        for _ in range(QUESTIONS):
            before_ns = self._now_ns()
            answer_ns = ask_ns()
            after_ns = self._now_ns()
            answers.append((after_ns - before_ns, answer_ns - (before_ns + after_ns) // 2))
        round_trip_ns, self._offset_ns = min(answers)
        self.error_ns = round_trip_ns // 2
        self._renewed_ns = self._now_ns()

    def monotonic_at(self, service_ns: int) -> int:
        """This host's CLOCK_MONOTONIC at a time on the service's clock."""
        return service_ns - self._offset_ns

    def at(self, monotonic_ns: int) -> int:
        """The service's clock at a time on this host's CLOCK_MONOTONIC."""
        return monotonic_ns + self._offset_ns


# -- timetables ---------------------------------------------------------------------------------
#
# Timetables: keep a job whose iterations are slightly shorter than its circle's perimeter on its time
# shift.
#
# Without one the job gets a little further ahead after each iteration, until it has to be corrected,
# again and again.


EARLY_BY = 0.1
"""As a share of the period: an iteration that is early by more does not follow the timetable."""


@dataclass(frozen=True)
class Timetable:
    """Earliest start times of a job's iterations.

    Iterations begin with operation `number` of `group` and with every `every`-th operation before and after it, no
    earlier than `at_ns` on this host's CLOCK_MONOTONIC or any number of periods before or after that. An iteration
    that is late does not wait for the next time.
    """

    group: str
    number: int
    every: int
    at_ns: int
    period_ns: int

    def wait_ns(self, group: str, number: int, now_ns: int) -> int:
        """How long operation `number` of `group` has to wait if it is called at `now_ns`."""
        if group != self.group or (number - self.number) % self.every:
            return 0
        early_ns = (self.at_ns - now_ns) % self.period_ns
        return early_ns if early_ns <= EARLY_BY * self.period_ns else 0


# -- time shifts --------------------------------------------------------------------------------


LONGEST_NS = 600_000_000_000
"""No wait is longer: ten minutes."""

HELD, LATE = "held", "late"
"""Outcomes of a delay on one rank: applied, or learned of after its operation had been submitted."""

OnOutcome = Callable[[Delay, str], object]


class TimeShifts:
    """The pending delays of this rank.

    Args:
        on_outcome: is called with each delay and HELD or LATE, on the thread that waited or the one that added the
            delay; it must be quick.
    """

    def __init__(self, on_outcome: OnOutcome) -> None:
        self._on_outcome = on_outcome
        self._lock = threading.Lock()
        self._delays: dict[tuple[str, int], Delay] = {}
        self._reached: dict[str, int] = {}
        self._timetable: Timetable | None = None
        self._closed = threading.Event()

    def reached(self, group: str) -> int:
        """Number of the last operation of the group that was submitted; 0 before the first."""
        return self._reached.get(group, 0)

    def add(self, delay: Delay) -> None:
        """Apply a delay before its operation; LATE if the operation has been submitted already.

        With a period, its `at_ns` is on CLOCK_MONOTONIC.
        """
        with self._lock:
            late = delay.number <= self._reached.get(delay.group, 0)
            if not late:
                self._delays[delay.group, delay.number] = delay
        if late:
            self._on_outcome(delay, LATE)

    def follow_timetable(self, timetable: Timetable | None) -> None:
        """From now on hold back operations that are early by this timetable; a delay takes precedence."""
        self._timetable = timetable

    def enter(self, group: str, number: int) -> None:
        """Block until operation `number` of `group` may be submitted, by its delay or by the timetable."""
        with self._lock:
            self._reached[group] = number
            delay = self._delays.pop((group, number), None) if self._delays else None
            timetable = self._timetable
        if delay is not None:
            self._closed.wait(min(delay.wait_ns(time.monotonic_ns()), LONGEST_NS) / 1e9)
            self._on_outcome(delay, HELD)
        elif timetable is not None:
            early_ns = timetable.wait_ns(group, number, time.monotonic_ns())
            if early_ns:
                self._closed.wait(early_ns / 1e9)

    def close(self) -> None:
        """Drop all delays and release the threads that wait."""
        self._closed.set()
        with self._lock:
            self._delays.clear()
