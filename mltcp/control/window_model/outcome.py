"""The outcome of a simulated run: when iterations began and ended, and slowdowns over a job alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from mltcp.core.errors import UsageError

CONVERGED_WITHIN = 0.05
CONVERGED_OVER = 5


@dataclass(frozen=True)
class ModelIteration:
    """One iteration of a job: its begin and end in seconds, and the packets that the link had marked until its end."""

    begin_s: float
    end_s: float
    marked: float

    @property
    def duration_s(self) -> float:
        """Its length."""
        return self.end_s - self.begin_s


@dataclass(frozen=True)
class ModelOutcome:
    """The iterations of every job, in the order of the jobs, and the packets dropped in all."""

    jobs: tuple[tuple[ModelIteration, ...], ...]
    dropped: float

    def durations_s(self, job: int, second_half: bool = False) -> list[float]:
        """The iteration times of a job."""
        iterations = self.jobs[job]
        return [each.duration_s for each in iterations[len(iterations) // 2 if second_half else 0 :]]

    def slowdowns(self, isolated_s: Sequence[float], second_half: bool = False) -> list[float]:
        """The mean iteration time of each job over that of the job alone.

        Raises UsageError unless there is one isolated time for each job.
        """
        if len(isolated_s) != len(self.jobs):
            raise UsageError(f"isolated_s: expected {len(self.jobs)} times, got {len(isolated_s)}")
        return [fmean(self.durations_s(job, second_half)) / alone_s for job, alone_s in enumerate(isolated_s)]

    def mean_slowdown(self, isolated_s: Sequence[float], second_half: bool = False) -> float:
        """The mean of the jobs' slowdowns."""
        return fmean(self.slowdowns(isolated_s, second_half))

    def converged_at(self, isolated_s: Sequence[float]) -> int | None:
        """The first iteration from which on every five in a row have a mean within 5 % of isolated; None: never."""
        latest = 0
        for job, alone_s in enumerate(isolated_s):
            at = _converged_at(self.durations_s(job), alone_s)
            if at is None:
                return None
            latest = max(latest, at)
        return latest

    def marked_in_second_half(self) -> float:
        """The packets marked during the second half of the first job's iterations."""
        iterations = self.jobs[0]
        return iterations[-1].marked - iterations[len(iterations) // 2].marked


def _converged_at(durations_s: Sequence[float], alone_s: float) -> int | None:
    count = len(durations_s) - CONVERGED_OVER + 1
    slow = [
        start
        for start in range(max(0, count))
        if fmean(durations_s[start : start + CONVERGED_OVER]) > (1 + CONVERGED_WITHIN) * alone_s
    ]
    first = slow[-1] + 1 if slow else 0
    return first if first < count else None
