"""Time shifts: all ranks wait before the same operation for the same time, which delays all iterations from then on.

An operation is identified by its group and its number among the collective operations of that group, which are the
same on all ranks. The wait is on the thread that calls the operation, asynchronous or not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from collectives.agent.timetable import Timetable
from mltcp.core.delay import Delay

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
        """Apply a delay before its operation; LATE if the operation has been submitted already."""
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
            self._closed.wait(min(delay.delay_ns, LONGEST_NS) / 1e9)
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
