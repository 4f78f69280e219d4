"""The result of a run of the published simulator, in its milliseconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from placement.model.job import Job
from placement.simulator.outcome import JobOutcome, Outcome
from placement.simulator.published.rules import MS_PER_MB
from placement.simulator.published.state import PublishedState

Times = NDArray[np.int64]

_MS_PER_S = 1000


@dataclass(frozen=True)
class PublishedRun:
    """A run; arrays are per job, in the order of their numbers, unless stated otherwise.

    Each job's `jct_ms` is the sum of `queue_ms`, `compute_ms`, `gpu_wait_ms`, `link_wait_ms` and `communication_ms`.

    Attributes:
        job_ids: the jobs' numbers.
        arrival_ms: when they arrived.
        placed_ms: when they got their GPUs.
        ended_ms: when their last iteration was over.
        compute_ms: the compute time of a worker.
        gpu_wait_ms: the time by which passes took longer because workers shared GPUs with other jobs'.
        link_wait_ms: while they had computed, and their transfers were not started.
        communication_ms: while their transfers ran.
        alone_ms: the time that transfers take alone, in whole steps; with the defect, it can be more.
        transfers: the number of transfers.
        gpus: the numbers of their GPUs.
        active_ms: per GPU, while it computed.
        total_ms: the number of steps, which are counted until the one after the last job's end.
        events: arrivals, and ends of passes and of transfers.
        wall_s: the wall-clock time of the run.
    """

    job_ids: tuple[int, ...] = field(repr=False)
    arrival_ms: Times = field(repr=False)
    placed_ms: Times = field(repr=False)
    ended_ms: Times = field(repr=False)
    compute_ms: Times = field(repr=False)
    gpu_wait_ms: Times = field(repr=False)
    link_wait_ms: Times = field(repr=False)
    communication_ms: Times = field(repr=False)
    alone_ms: Times = field(repr=False)
    transfers: Times = field(repr=False)
    gpus: tuple[tuple[int, ...], ...] = field(repr=False)
    active_ms: Times = field(repr=False)
    total_ms: int
    events: int
    wall_s: float

    @property
    def jct_ms(self) -> Times:
        """The job completion times."""
        return self.ended_ms - self.arrival_ms

    @property
    def queue_ms(self) -> Times:
        """The time of each job from arrival to placement."""
        return self.placed_ms - self.arrival_ms

    @property
    def contention_ms(self) -> Times:
        """The time by which transfers took longer than alone; negative values are due to the defect."""
        return self.communication_ms - self.alone_ms

    @property
    def average_gpu_utilization(self) -> float:
        """The mean utilization of all GPUs over all steps."""
        return float(self.active_ms.mean() / self.total_ms)

    def outcome(self) -> Outcome:
        """Convert to an outcome, in seconds."""
        return Outcome(
            jobs=tuple(self._job_outcome(job) for job in range(len(self.job_ids))),
            makespan_s=self.total_ms / _MS_PER_S,
            gpu_utilization=tuple((self.active_ms / self.total_ms).tolist()),
            events=self.events,
            wall_s=self.wall_s,
        )

    def _job_outcome(self, job: int) -> JobOutcome:
        return JobOutcome(
            job_id=self.job_ids[job],
            arrival_s=float(self.arrival_ms[job] / _MS_PER_S),
            start_s=float(self.placed_ms[job] / _MS_PER_S),
            end_s=float(self.ended_ms[job] / _MS_PER_S),
            queue_s=float(self.queue_ms[job] / _MS_PER_S),
            compute_s=float(self.compute_ms[job] / _MS_PER_S),
            gpu_wait_s=float(self.gpu_wait_ms[job] / _MS_PER_S),
            link_wait_s=float(self.link_wait_ms[job] / _MS_PER_S),
            communication_s=float(self.communication_ms[job] / _MS_PER_S),
            contention_s=float(self.contention_ms[job] / _MS_PER_S),
            gpus=self.gpus[job],
        )


def result_of(jobs: Sequence[Job], state: PublishedState, total_ms: int, wall_s: float) -> PublishedRun:
    """Read the result off a final state; the jobs are in the state's order."""
    order = sorted(range(len(jobs)), key=lambda number: jobs[number].job_id)
    records = state.jobs[order]
    return PublishedRun(
        job_ids=tuple(jobs[number].job_id for number in order),
        arrival_ms=records["arrival"],
        placed_ms=records["placed"],
        ended_ms=records["ended"],
        compute_ms=records["service"] // records["workers"],
        gpu_wait_ms=records["gpu_wait"],
        link_wait_ms=records["link_wait"],
        communication_ms=records["communication"],
        alone_ms=records["transfers"] * np.array([math.ceil(size * MS_PER_MB) for size in records["size"]]),
        transfers=records["transfers"],
        gpus=tuple(tuple(state.workers[number, : jobs[number].gpus].tolist()) for number in order),
        active_ms=state.active,
        total_ms=total_ms,
        events=int(state.clock[0]["events"]),
        wall_s=wall_s,
    )
