"""Timetables: keep a job whose iterations are slightly shorter than its circle's perimeter on its time shift.

Without one the job gets a little further ahead after each iteration, until it has to be corrected, again and again.
"""

from __future__ import annotations

from dataclasses import dataclass

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
