"""A job in a `ClusterRun`: the GPUs that it holds, the work that it has done, and its view for the scheduler."""

from __future__ import annotations

import math
from dataclasses import dataclass

from placement.policies.schedulers.scheduler import JobView
from placement.traces.sets import TracedJob

ACROSS_RACKS = 1.5
"""Schedulers assume that communication takes this many times as long for a job that spans racks."""


@dataclass(frozen=True)
class ProfiledTimes:
    """Iteration times from a job's profile. They depend on the racks that it spans, not on other jobs' traffic."""

    job: TracedJob

    def iteration_ns(self, workers: int, one_rack: bool) -> float:
        """See `IterationTimes`."""
        phases = self.job.phases(workers)
        sending = sum(phase.duration_ns for phase in phases if phase.bandwidth_bps)
        total = sum(phase.duration_ns for phase in phases)
        return total if one_rack else total + (ACROSS_RACKS - 1) * sending


@dataclass
class ScheduledJob:
    """The state of a job from its arrival to its end; `ClusterRun` alone changes it.

    Attributes:
        job: as the trace describes it.
        gpus: those that it holds; none while it waits.
        work_done: by the starts before the present one, in iterations with `job.workers` workers. An executor that
            counts in `Fraction` keeps it exact.
        lease_end_ns: until when the scheduler has promised it these GPUs.
        starts: how often it has been started.
        ended_ns: when it ended; NaN before.
    """

    job: TracedJob
    gpus: tuple[int, ...] = ()
    work_done: float = 0
    lease_end_ns: int = 0
    starts: int = 0
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

    def view(self, work_done: float) -> JobView:
        """The job as a scheduler sees it, with so much of its work done."""
        job = self.job
        return JobView(
            name=job.name,
            arrival_ns=job.arrival_ns,
            gpus_wanted=job.workers,
            gpus_min=job.min_workers,
            gpus_max=job.max_workers,
            iterations=float(job.iterations),
            iterations_left=max(job.iterations - work_done, 0),
            times=ProfiledTimes(job),
            gpus=self.gpus,
            lease_end_ns=self.lease_end_ns,
            restarts=self.restarts,
            noise_scale=job.noise_scale,
        )
