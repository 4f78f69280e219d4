"""Time shifts: all ranks hold before the same operation for the same time, which delays all iterations from there on.

An operation is named by its group and its number among the collective operations of that group, which are the same on
all ranks. Who holds sleeps on the thread that calls the operation, asynchronous or not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from collectives.agent.timetable import Timetable

LONGEST_NS = 600_000_000_000
"""No hold is longer: ten minutes."""

HELD, LATE = "held", "late"


@dataclass(frozen=True)
class Hold:
    """Before operation `number` of `group`, for so long; `sequence` is the decision's."""

    sequence: int
    group: str
    number: int
    delay_ns: int


Outcome = Callable[[Hold, str], object]


class TimeShifts:
    """The holds that this rank has yet to keep.

    Args:
        outcome: is told of each hold what became of it: HELD, or LATE if its operation had gone already. It is called
            on the thread that held, or that brought the hold, and must be quick.
    """

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._lock = threading.Lock()
        self._holds: dict[tuple[str, int], Hold] = {}
        self._reached: dict[str, int] = {}
        self._timetable: Timetable | None = None
        self._leaving = threading.Event()

    def reached(self, group: str) -> int:
        """How many operations of the group have gone."""
        return self._reached.get(group, 0)

    def add(self, hold: Hold) -> None:
        """Hold before an operation that lies ahead; one that has gone is reported as LATE."""
        with self._lock:
            late = hold.number <= self._reached.get(hold.group, 0)
            if not late:
                self._holds[hold.group, hold.number] = hold
        if late:
            self._outcome(hold, LATE)

    def keep_to(self, timetable: Timetable | None) -> None:
        """From now on hold back what is early by this timetable; a hold before an operation comes first."""
        self._timetable = timetable

    def enter(self, group: str, number: int) -> None:
        """An operation is about to go: wait here if there is a hold before it, or it is early."""
        with self._lock:
            self._reached[group] = number
            hold = self._holds.pop((group, number), None) if self._holds else None
            timetable = self._timetable
        if hold is not None:
            self._leaving.wait(min(hold.delay_ns, LONGEST_NS) / 1e9)
            self._outcome(hold, HELD)
        elif timetable is not None:
            early_ns = timetable.wait_ns(group, number, time.monotonic_ns())
            if early_ns:
                self._leaving.wait(early_ns / 1e9)

    def close(self) -> None:
        """Hold no more, and let go who is held."""
        self._leaving.set()
        with self._lock:
            self._holds.clear()
