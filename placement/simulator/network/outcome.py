"""What a simulation of jobs in a network found."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mltcp.core.quantities import NS_PER_S

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
    time. This is divided among the others on that link, in proportion to the rates that they have there. In steps that
    link is the one with the longest queue, and what a control has yet to recover from, when the queue has gone, is lost
    to whom it was before (`steps.lost`). Of an iteration it is counted along its critical path: the messages and the
    computing that determined its end. So the durations of a job's iterations (`took_ns`) add up to what it lost,
    `waited_ns`, and `unhindered_ns`, what it would have taken along these paths at full rates. A job is its own
    neighbour where its messages share a link, and in steps for what its control loses alone. While a link of its way is
    down, a message loses all of the time to that link.

    Attributes:
        job, neighbour, link: numbers, as in the outcome; neighbour -1 where the link was down.
        lost_ns: of each entry.
        took_ns, unhindered_ns: of each job.
        waited_ns: of each job, for its gate and for delays of its iterations.
    """

    job: NDArray[np.int64]
    neighbour: NDArray[np.int64]
    link: NDArray[np.int64]
    lost_ns: NDArray[np.float64]
    took_ns: NDArray[np.float64]
    unhindered_ns: NDArray[np.float64]
    waited_ns: NDArray[np.float64]

    @classmethod
    def joined(cls, parts: Sequence[tuple[Sequence[int], LostTime]], jobs: int) -> LostTime:
        """Of so many jobs, from parts that number theirs as they say; what two of them have in common is added up."""
        found: dict[tuple[int, int, int], float] = defaultdict(float)
        of_jobs = np.zeros((3, jobs))
        for numbers, part in parts:
            for job, neighbour, link, lost_ns in zip(
                part.job, part.neighbour, part.link, part.lost_ns, strict=True
            ):
                other = numbers[neighbour] if neighbour >= 0 else -1
                found[numbers[job], other, int(link)] += float(lost_ns)
            of_jobs[:, numbers] += part.took_ns, part.unhindered_ns, part.waited_ns
        keys = sorted(found)
        job, neighbour, link = np.array(keys, np.int64).reshape(-1, 3).T
        took_ns, unhindered_ns, waited_ns = of_jobs
        lost_ns = np.array([found[key] for key in keys], float)
        return cls(job, neighbour, link, lost_ns, took_ns, unhindered_ns, waited_ns)

    def entries(self, jobs: Sequence[str], links: Sequence[str]) -> list[dict[str, Any]]:
        """Each entry with the names of jobs and links as JSON has it; its neighbour is None where the link was down."""
        rows = zip(self.job, self.neighbour, self.link, self.lost_ns, strict=True)
        return [
            {
                "job": jobs[job],
                "neighbour": None if neighbour < 0 else jobs[neighbour],
                "link": links[link],
                "lost_s": float(lost_ns) / NS_PER_S,
            }
            for job, neighbour, link, lost_ns in rows
        ]

    def totals(self, jobs: Sequence[str]) -> list[dict[str, Any]]:
        """What the iterations of each job that has ended one took in all, as JSON has it."""
        lost_ns = np.bincount(self.job, self.lost_ns, len(jobs))
        columns = (self.took_ns, self.unhindered_ns, self.waited_ns, lost_ns)
        names = ("took_s", "unhindered_s", "waited_s", "lost_s")
        return [
            {"job": job, **{name: float(value) / NS_PER_S for name, value in zip(names, values, strict=True)}}
            for job, *values in zip(jobs, *columns, strict=True)
            if values[0] > 0
        ]


@dataclass(frozen=True)
class NetworkOutcome:
    """Jobs and links, in the order in which they were given, after so many nanoseconds."""

    jobs: tuple[JobCourse, ...]
    links: tuple[LinkUse, ...]
    ended_ns: int
    lost: LostTime | None = None
    """Where it was asked for."""

    def lost_entries(self) -> list[dict[str, Any]] | None:
        """See `LostTime.entries`."""
        names = [job.name for job in self.jobs], [link.name for link in self.links]
        return None if self.lost is None else self.lost.entries(*names)


def lost_lines(
    times_s: Mapping[str, tuple[float, float]], entries: Sequence[Mapping[str, Any]], most: int = 3
) -> list[str]:
    """One line for each job: to whom it lost how much of its time alone, on which links, the `most` largest parts.

    The first figure is the slowdown less 1; what the parts leave of it is the job's own: its noise, its messages that
    share links, its waiting, and what it lost beside messages that would have waited anyway (below 0).

    Args:
        times_s: of each job to tell of, by name, the time that its iterations took, and would have taken alone.
        entries: of `LostTime.entries`.
        most: parts of a line.
    """
    lines = []
    for job, (took_s, alone_s) in times_s.items():
        own = [each for each in entries if each["job"] == job != each["neighbour"]]
        parts = [
            f"{_percent(each['lost_s'] / alone_s)} to {each['neighbour'] or FAILURE} on {each['link']}"
            for each in sorted(own, key=lambda each: -each["lost_s"])[:most]
        ]
        lines.append(
            f"job {job} lost {_percent(took_s / alone_s - 1)}" + (f": {', '.join(parts)}" if parts else "")
        )
    return lines


def _percent(share: float) -> str:
    percent = 100 * share
    return f"{percent:.0f} %" if abs(percent) >= 9.95 else f"{percent:.2g} %"
