"""Timetables: a job whose iterations are a little shorter than on its circle keeps to the times that it was told.

Otherwise it is ahead by a little more after each iteration, until it is off enough to be corrected, over and over.
"""

from __future__ import annotations

from dataclasses import dataclass

EARLY_BY = 0.1
"""Of a period: an iteration that is early by more belongs to another timetable."""


@dataclass(frozen=True)
class Timetable:
    """An iteration begins with operation `number` of `group`, and one with each `every` operations before or after.

    They are to begin no earlier than at `at_ns` of this host's CLOCK_MONOTONIC, or any number of periods before or
    after it. Who is late does not wait for the next time.
    """

    group: str
    number: int
    every: int
    at_ns: int
    period_ns: int

    def wait_ns(self, group: str, number: int, now_ns: int) -> int:
        """How long an operation has to wait that would go now."""
        if group != self.group or (number - self.number) % self.every:
            return 0
        early_ns = (self.at_ns - now_ns) % self.period_ns
        return early_ns if early_ns <= EARLY_BY * self.period_ns else 0
