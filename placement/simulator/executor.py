"""The interface between the scheduler loop and whatever makes the jobs advance: a simulation, or real processes.

`ClusterRun` decides when to ask the scheduler and which jobs start and stop; an executor keeps the time, runs the jobs
that were started, and reports their ends. Work is counted in iterations of the trace with as many workers as the job
asked for, so that it means the same whatever the number of workers, and in every executor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, Protocol, runtime_checkable

from placement.policies.schedulers.scheduling_policy import Decision
from placement.simulator.scheduled_job import Job

_ROUNDING = 1e-6


@dataclass(frozen=True)
class Start(Generic[Job]):
    """One start of a job on GPUs.

    Attributes:
        job: as the trace describes it.
        gpus: their numbers in `Cluster.gpus`, ascending; one worker on each.
        work: that is left to do.
        progress: the work that one iteration with this number of workers does.
        restarts: the number of earlier starts; an executor may charge for a start that is not the first.
    """

    job: Job
    gpus: tuple[int, ...]
    work: float | Fraction
    progress: float | Fraction
    restarts: int

    def iterations(self, share: float = 1.0) -> int:
        """The whole iterations that complete the work, where `share` of the iterations of the trace are run."""
        return max(1, math.ceil(self.work * share / self.progress - _ROUNDING))


@dataclass(frozen=True)
class JobEnd:
    """The end of a job that has done all of its work.

    Attributes:
        job: its name.
        at_ns: when it ended; not after the executor's `now_ns`.
    """

    job: str
    at_ns: float


class Executor(Protocol[Job]):
    """Runs the jobs that are started on it. All times are in ns of the trace, whose first moment is 0."""

    @property
    def now_ns(self) -> int:
        """The current time."""
        ...

    def run(self, until_ns: int | None) -> Sequence[JobEnd]:
        """Advance to a time, or until jobs end before it; with None, until jobs end.

        All jobs that end at the moment at which it returns are reported. None is only passed while a job runs.
        """
        ...

    def start(self, start: Start[Job]) -> None:
        """Start a job that does not run, on GPUs that are free."""
        ...

    def stop(self, job: str) -> None:
        """Stop a job that runs, and free its GPUs. An iteration that it has not finished is lost."""
        ...

    def work_done(self, job: str) -> float | Fraction:
        """The work that a running job has done since its last start."""
        ...

    def decided(self, decision: Decision) -> None:
        """Apply what a decision says beyond GPUs (time shifts), after all of its starts and stops."""
        ...


@runtime_checkable
class ObservesRatios(Protocol):
    """An executor that knows how much the neighbours of a job slow it down."""

    def ratio(self, job: str) -> float:
        """The throughput of a running job relative to that without neighbours, just before now; 1 at first."""
        ...
