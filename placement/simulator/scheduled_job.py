"""A job in a `ClusterRun`: the GPUs that it holds, the work that it has done, and its view for the scheduler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, Protocol, TypeVar

from mltcp.core.demand import Phase
from placement.policies.schedulers.scheduler import IterationTimes, JobView


class ClusterJob(Protocol):
    """A job as a trace describes it; `TracedJob` and `TimedJob` are such."""

    @property
    def name(self) -> str:
        """Unique in its trace."""

    @property
    def arrival_ns(self) -> int:
        """Since the beginning of the trace."""

    @property
    def workers(self) -> int:
        """The number of GPUs that it asks for."""

    @property
    def min_workers(self) -> int:
        """The fewest that it can run on."""

    @property
    def max_workers(self) -> int:
        """The most that it can use."""

    @property
    def iterations(self) -> int | Fraction:
        """Its work, in iterations with `workers` workers."""

    @property
    def noise_scale(self) -> float:
        """See `JobView.noise_scale`."""

    @property
    def deadline_ns(self) -> int | None:
        """When it is to have ended, since the beginning of the trace; None if it has no deadline."""

    @property
    def times(self) -> IterationTimes:
        """Its iteration times as a scheduler knows them."""

    def phases(self, workers: int) -> Sequence[Phase]:
        """The demand of an iteration with so many workers; empty if it is not known."""


Job = TypeVar("Job", bound=ClusterJob)


@dataclass
class ScheduledJob(Generic[Job]):
    """The state of a job from its arrival to its end; `ClusterRun` alone changes it.

    Attributes:
        job: as the trace describes it.
        gpus: those that it holds; none while it waits.
        work_done: by the starts before the present one, in iterations with `job.workers` workers. An executor that
            counts in `Fraction` keeps it exact.
        lease_end_ns: until when the scheduler has promised it these GPUs.
        starts: how often it has been started.
        started_ns: when it was last started.
        since_ns: when it joined the queue, or was started.
        held_ns: the time for which it held GPUs, by the starts before the present one.
        ended_ns: when it ended; NaN before.
    """

    job: Job
    gpus: tuple[int, ...] = ()
    work_done: float | Fraction = 0
    lease_end_ns: int = 0
    starts: int = 0
    started_ns: int = 0
    since_ns: int = 0
    held_ns: int = 0
    ended_ns: float = math.nan

    @property
    def name(self) -> str:
        """Its name, unique in the trace."""
        return self.job.name

    @property
    def restarts(self) -> int:
        """The number of starts after the first."""
        return max(self.starts - 1, 0)

    @property
    def completion_ns(self) -> float:
        """Job completion time: from its arrival to its end."""
        return self.ended_ns - self.job.arrival_ns

    def view(
        self, work_done: float | Fraction, now_ns: int = 0, restart_ns: int = 0, ratio: float = 1.0
    ) -> JobView:
        """The job as a scheduler sees it, with so much of its work done, where a restart costs `restart_ns`."""
        job = self.job
        restarting = bool(self.gpus) and self.restarts > 0
        return JobView(
            name=job.name,
            arrival_ns=job.arrival_ns,
            gpus_wanted=job.workers,
            gpus_min=job.min_workers,
            gpus_max=job.max_workers,
            iterations=job.iterations,
            iterations_left=max(job.iterations - work_done, 0),
            times=job.times,
            gpus=self.gpus,
            lease_end_ns=self.lease_end_ns,
            restarts=self.restarts,
            noise_scale=job.noise_scale,
            deadline_ns=job.deadline_ns,
            restart_ns=restart_ns if self.starts else 0,
            restart_left_ns=max(self.started_ns + restart_ns - now_ns, 0) if restarting else 0,
            restart_cost_ns=restart_ns,
            since_ns=self.since_ns,
            started_ns=self.started_ns,
            held_ns=self.held_ns + (max(now_ns - self.started_ns, 0) if self.gpus else 0),
            ratio=ratio,
        )
