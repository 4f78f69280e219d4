"""A job's iteration times: last, typical and best, from the program's reports or from acknowledgements."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

TYPICAL_OF = 15
BEST_OF = 5


@dataclass
class IterationTimes:
    """The times of the last iterations, and the best one.

    Reports of the job's program replace times from acknowledgements, which are estimates. The best time is the smallest
    median of five consecutive ones, so that a single short iteration (a skipped one) does not count.
    """

    count: int = 0
    last_s: float | None = None
    best_s: float | None = None
    reported: bool = False
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=TYPICAL_OF))
    _previous_start_ns: int | None = None

    @property
    def typical_s(self) -> float | None:
        """The median of the last fifteen iteration times."""
        return statistics.median(self._recent) if self._recent else None

    @property
    def slowdown(self) -> float | None:
        """The typical time over the best one."""
        typical = self.typical_s
        return None if typical is None or not self.best_s else typical / self.best_s

    def seen(self, number: int, start_ns: int) -> float | None:
        """Note an iteration, recognised by acknowledgements, that began at `start_ns`; returns the previous one's time.

        Times are from start to start, since acknowledgements do not show the end of the compute phase.
        """
        before_ns, self._previous_start_ns = self._previous_start_ns, start_ns
        if self.reported:
            return None
        self.count = number + 1
        if before_ns is None or start_ns <= before_ns:
            return None
        duration_s = (start_ns - before_ns) / 1e9
        self._note(duration_s)
        return duration_s

    def report(self, number: int, duration_s: float) -> None:
        """Note that the program has reported its iteration `number` (from 0)."""
        if not self.reported:
            self.reported = True
            self._recent.clear()
            self.best_s = None
            self.count = 0
        self.count = max(self.count, number + 1)
        self._note(duration_s)

    def _note(self, duration_s: float) -> None:
        self.last_s = duration_s
        self._recent.append(duration_s)
        if len(self._recent) >= BEST_OF:
            median_s = statistics.median(list(self._recent)[-BEST_OF:])
            self.best_s = median_s if self.best_s is None else min(self.best_s, median_s)
