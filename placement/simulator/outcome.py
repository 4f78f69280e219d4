"""The outcome of a simulation."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

SCHEMA = 1


@dataclass(frozen=True)
class JobOutcome:
    """The times of a job from arrival to end, in seconds.

    `jct_s` is the sum of all the others but `contention_s`, which is a part of `communication_s`.

    Attributes:
        job_id: its number in the trace.
        arrival_s: A_k.
        start_s: the time of its placement.
        end_s: F_k.
        queue_s: from arrival until it was placed.
        compute_s: its iterations, each as long as its slowest worker computes.
        gpu_wait_s: while workers waited for GPUs that others used.
        link_wait_s: while it was ready to communicate but not admitted, or stopped.
        communication_s: while its all-reduces ran.
        contention_s: the time by which these took longer than alone.
        gpus: the numbers of its GPUs.
    """

    job_id: int
    arrival_s: float
    start_s: float
    end_s: float
    queue_s: float
    compute_s: float
    gpu_wait_s: float
    link_wait_s: float
    communication_s: float
    contention_s: float
    gpus: tuple[int, ...] = ()

    @property
    def jct_s(self) -> float:
        """The job completion time, F_k - A_k."""
        return self.end_s - self.arrival_s

    def document(self) -> dict[str, Any]:
        """The job as a JSON document."""
        names = ("job_id", "arrival_s", "start_s", "end_s", "jct_s", "queue_s", "compute_s", "gpu_wait_s")
        more = ("link_wait_s", "communication_s", "contention_s")
        return {name: getattr(self, name) for name in (*names, *more)} | {"gpus": list(self.gpus)}


@dataclass(frozen=True)
class UseOverTime:
    """The use of GPUs and links over time.

    Attributes:
        width_s: of an interval; the first begins at 0.
        gpus: per GPU and interval, the share of the time in which it computed.
        links: per link and interval, the share of the time in which anything was sent.
    """

    width_s: float
    gpus: Sequence[Sequence[float]] = field(repr=False)
    links: Sequence[Sequence[float]] = field(repr=False)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trace's simulation.

    Attributes:
        jobs: in the order of their numbers.
        makespan_s: from 0 until the last job ended.
        gpu_utilization: of every GPU, busy time over the makespan.
        events: the number of events (ends of tasks, arrivals).
        wall_s: the wall-clock time of the simulation.
        use: the use over time, if it was recorded.
    """

    jobs: tuple[JobOutcome, ...]
    makespan_s: float
    gpu_utilization: tuple[float, ...]
    events: int
    wall_s: float
    use: UseOverTime | None = None

    @cached_property
    def jcts_s(self) -> list[float]:
        """Every job's completion time, the shortest first."""
        return sorted(job.jct_s for job in self.jobs)

    @property
    def average_gpu_utilization(self) -> float:
        """The mean utilization of all GPUs."""
        return statistics.fmean(self.gpu_utilization)

    @property
    def average_jct_s(self) -> float:
        """The average job completion time: Eq. 6 over the number of jobs."""
        return statistics.fmean(self.jcts_s)

    @property
    def median_jct_s(self) -> float:
        """The median job completion time."""
        return self.quantile_s(0.5)

    @property
    def p95_jct_s(self) -> float:
        """The 95th percentile of the job completion times."""
        return self.quantile_s(0.95)

    def quantile_s(self, share: float) -> float:
        """The percentile of the completion times, interpolated linearly."""
        position = share * (len(self.jcts_s) - 1)
        low = int(position)
        high = min(low + 1, len(self.jcts_s) - 1)
        return self.jcts_s[low] + (position - low) * (self.jcts_s[high] - self.jcts_s[low])

    def document(self) -> dict[str, Any]:
        """The JSON document of `mltcp-placement simulate --json`."""
        names = ("average_jct_s", "median_jct_s", "p95_jct_s", "average_gpu_utilization", "makespan_s")
        return {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in names},
            "jobs": [job.document() for job in self.jobs],
            "events": self.events,
            "wall_s": self.wall_s,
        }
