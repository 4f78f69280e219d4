"""What a simulation of jobs in a network found."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FAILURE = "failure"
"""What stands for a neighbour in reports where a link was down."""


@dataclass(frozen=True)
class JobCourse:
    """When each iteration of a job began and ended, in nanoseconds, and how long one takes without the others.

    With the bytes that were marked and dropped of it, where the mode has marks and drops.
    """

    name: str
    begins_ns: NDArray[np.int64]
    ends_ns: NDArray[np.int64]
    alone_ns: float
    marked_bytes: float = math.nan
    dropped_bytes: float = math.nan

    @property
    def slowdowns(self) -> NDArray[np.float64]:
        """Of each iteration."""
        return (self.ends_ns - self.begins_ns) / self.alone_ns


@dataclass(frozen=True)
class LinkUse:
    """What a link has carried, marked and dropped, in bytes, and its longest queue."""

    name: str
    sent_bytes: float
    marked_bytes: float
    dropped_bytes: float
    largest_queue_bytes: float


@dataclass(frozen=True)
class LostTime:
    """The time that jobs lost to each other, in all iterations that have ended: one entry a job, neighbour and link.

    A message that has less than it would have alone, because a link of its way is full, loses 1 - rate / peak of the
    time. This is divided among the others on that link, in proportion to the rates that they have there. Of an
    iteration it is counted along its critical path: the messages and the computing that determined its end. So the
    durations of a job's iterations add up to what it lost and `unhindered_ns`, what it would have taken along these
    paths at full rates. A job is its own neighbour where its messages share a link.
    While a link of its way is down, a message loses all of the time to that link.

    Attributes:
        job, neighbour, link: numbers, as in the outcome; neighbour -1 where the link was down.
        lost_ns: of each entry.
        unhindered_ns: of each job.
    """

    job: NDArray[np.int64]
    neighbour: NDArray[np.int64]
    link: NDArray[np.int64]
    lost_ns: NDArray[np.float64]
    unhindered_ns: NDArray[np.float64]


@dataclass(frozen=True)
class NetworkOutcome:
    """Jobs and links, in the order in which they were given, after so many nanoseconds."""

    jobs: tuple[JobCourse, ...]
    links: tuple[LinkUse, ...]
    ended_ns: int
    lost: LostTime | None = None
    """Where it was asked for."""

    def neighbour_name(self, lost: LostTime, entry: int) -> str:
        """To whom the time of an entry was lost."""
        neighbour = int(lost.neighbour[entry])
        return FAILURE if neighbour < 0 else self.jobs[neighbour].name

    def lost_lines(self, most: int = 3) -> list[str]:
        """One line for each job: to whom it lost how much of its time alone, on which links, the `most` largest parts.

        The first figure is the slowdown less 1; what the parts leave of it is the job's own: its noise, its messages
        that share links, and what it lost beside messages that would have waited anyway (below 0).
        """
        if self.lost is None:
            return []
        return [_lost_line(self, self.lost, job, most) for job in range(len(self.jobs))]


def _lost_line(outcome: NetworkOutcome, lost: LostTime, number: int, most: int) -> str:
    course = outcome.jobs[number]
    alone_ns = course.alone_ns * len(course.ends_ns)
    if alone_ns == 0:
        return f"job {course.name}: no iteration has ended"
    whole = float((course.ends_ns - course.begins_ns).sum()) / alone_ns - 1
    entries = np.flatnonzero((lost.job == number) & (lost.neighbour != number))
    entries = entries[np.argsort(-lost.lost_ns[entries], kind="stable")]
    shares = lost.lost_ns[entries] / alone_ns
    parts = [
        f"{_percent(share)} to {outcome.neighbour_name(lost, entry)} on {outcome.links[lost.link[entry]].name}"
        for entry, share in zip(entries[:most], shares, strict=False)
    ]
    return f"job {course.name} lost {_percent(whole)}" + (f": {', '.join(parts)}" if parts else "")


def _percent(share: float) -> str:
    percent = 100 * share
    return f"{percent:.0f} %" if abs(percent) >= 9.95 else f"{percent:.2g} %"
