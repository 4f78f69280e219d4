"""The interface of schedulers, which decide which jobs get which GPUs; simulations and live runs use the same ones.

A scheduler sees the cluster, the time and views of the jobs. It answers with candidates: complete assignments of all
jobs that run, all of them equally good to it. A `SchedulingPolicy` takes the first of them or, with Cassini, the one
whose traffic fits together best. A scheduler keeps no state between two calls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, TypeAlias, runtime_checkable

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster

CANDIDATES = 10
"""The number of candidates that the thesis takes from Themis and from Pollux (4.5.1)."""

Assignment: TypeAlias = Mapping[str, tuple[int, ...]]
"""The GPUs of each job that runs: their numbers in `Cluster.gpus`, in ascending order."""


class IterationTimes(Protocol):
    """The iteration times of a job in an otherwise idle network, as profiled."""

    def iteration_ns(self, workers: int, one_node: bool) -> float:
        """The time of an iteration with so many workers, all on one node or not."""
        ...


@dataclass(frozen=True)
class JobView:
    """A job as a scheduler sees it.

    Attributes:
        name: unique.
        arrival_ns: when it was submitted.
        gpus_wanted: the number that it asked for; `iterations` counts iterations with so many.
        gpus_min: the fewest that it can run on.
        gpus_max: the most that it can use.
        iterations: in total.
        iterations_left: of them.
        times: its iteration times.
        gpus: those that it holds; none while it waits.
        lease_end_ns: until when it may keep them; without meaning while it waits.
        restarts: how often it has been restarted.
        noise_scale: the gradient noise scale, in batches of one worker; infinite if every sample counts the same
            whatever the size of the batch.
        deadline_ns: when it is to have ended; None if it has no deadline.
        restart_ns: the time for which it would hold GPUs without training if it were started on others than its own; 0
            before its first start.
        restart_left_ns: what is left of such a time on the GPUs that it holds.
        restart_cost_ns: what `restart_ns` is, or will be once it has been started.
        since_ns: when it joined the queue, or when it was last started if it runs.
        started_ns: when it was last started; without meaning before its first start.
        held_ns: the time for which it has held GPUs.
        ratio: of its throughput to that without neighbours, since the last decision, where the executor knows it.

    Raises:
        UsageError: a value is out of range.
    """

    name: str
    arrival_ns: int
    gpus_wanted: int
    gpus_min: int
    gpus_max: int
    iterations: float | Fraction
    iterations_left: float | Fraction
    times: IterationTimes
    gpus: tuple[int, ...] = ()
    lease_end_ns: int = 0
    restarts: int = 0
    noise_scale: float = 16.0
    deadline_ns: int | None = None
    restart_ns: int = 0
    restart_left_ns: int = 0
    restart_cost_ns: int = 0
    since_ns: int = 0
    started_ns: int = 0
    held_ns: int = 0
    ratio: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.gpus_min <= self.gpus_wanted <= self.gpus_max:
            raise UsageError(
                f"job {self.name!r}: gpus_min: expected 1 <= gpus_min <= gpus_wanted <= gpus_max, "
                f"got {self.gpus_min}, {self.gpus_wanted}, {self.gpus_max}"
            )
        if not 0 <= self.iterations_left <= self.iterations:
            raise UsageError(
                f"job {self.name!r}: iterations_left: expected 0 to {self.iterations}, got {self.iterations_left}"
            )
        if self.noise_scale <= 0:
            raise UsageError(f"job {self.name!r}: noise_scale: expected more than 0, got {self.noise_scale}")

    def efficiency(self, workers: int) -> float:
        """Pollux's statistical efficiency: the progress of a sample relative to that in a batch of one worker (Eq. 7).

        The batch of w workers is w times as large. With the gradient noise scale phi, in batches of one worker, the
        efficiency is (phi + 1) / (phi + w).
        """
        if math.isinf(self.noise_scale):
            return 1.0
        return (self.noise_scale + 1) / (self.noise_scale + workers)

    def throughput(self, workers: int, one_node: bool) -> float:
        """Iterations a second, counted by samples: w workers do w / `gpus_wanted` of an iteration at a time."""
        return workers / self.gpus_wanted * 1e9 / self.times.iteration_ns(workers, one_node)

    def goodput(self, workers: int, one_node: bool) -> float:
        """Iterations a second, counted by the progress that their samples make."""
        return progress(self, workers) * 1e9 / self.times.iteration_ns(workers, one_node)

    def run_ns(self, workers: int, one_node: bool) -> int:
        """The time that the iterations left take with so many workers, rounded up; exact where the job's times are."""
        left = self.iterations_left * self.times.iteration_ns(workers, one_node)
        return math.ceil(left / progress(self, workers))

    def holds(self, now_ns: int) -> bool:
        """Whether it has GPUs that it may keep for now."""
        return bool(self.gpus) and self.lease_end_ns > now_ns


def progress(job: JobView, workers: int) -> float | Fraction:
    """The progress of an iteration with so many workers, relative to one with `gpus_wanted` workers."""
    if math.isinf(job.noise_scale):
        return Fraction(workers, job.gpus_wanted)
    return workers * job.efficiency(workers) / (job.gpus_wanted * job.efficiency(job.gpus_wanted))


class Scheduler(Protocol):
    """Decides which jobs run on which GPUs."""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        ...

    @property
    def lease_ns(self) -> int | None:
        """How long a job may keep the GPUs that it is given; None: until it ends."""
        ...

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """One or more, up to `most`, equally good assignments of all jobs. A job that is not in an assignment waits.

        A job whose lease has not ended stays where it is. The same arguments give the same candidates.

        Raises:
            UsageError: the jobs hold a GPU that does not exist, or one GPU twice.
        """
        ...

    def next_ns(self, now_ns: int, jobs: Sequence[JobView]) -> int | None:
        """The latest time for the next decision if no job arrives or ends before; None: no decision is needed."""
        ...


class Untimed:
    """Base class of schedulers that only decide when jobs arrive or end: no leases, and no timers."""

    @property
    def lease_ns(self) -> int | None:
        """No leases."""
        return None

    def next_ns(self, now_ns: int, jobs: Sequence[JobView]) -> int | None:
        """No timers."""
        return None


@runtime_checkable
class ReasonedScheduler(Protocol):
    """A scheduler that can tell what it saw of the jobs that it starts or stops."""

    def reasons(self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView]) -> Mapping[str, str]:
        """A text for each of these jobs; the arguments are those of `candidates`."""
        ...


@runtime_checkable
class PreemptingScheduler(Protocol):
    """A scheduler that sends jobs back to the queue before it decides; they pay for a restart wherever they go."""

    def stops(self, now_ns: int, jobs: Sequence[JobView]) -> tuple[str, ...]:
        """The running jobs to stop, in the order in which they join the queue."""
        ...


def deadline_of(job: JobView) -> int:
    """T_dl.

    Raises:
        UsageError: the job has none.
    """
    if job.deadline_ns is None:
        raise UsageError(f"job {job.name!r}: deadline: expected one under this scheduler, got none")
    return job.deadline_ns


def jobs_to_stop(scheduler: Scheduler, now_ns: int, jobs: Sequence[JobView]) -> tuple[str, ...]:
    """The jobs that a scheduler sends back to the queue before it decides; none unless it preempts."""
    return scheduler.stops(now_ns, jobs) if isinstance(scheduler, PreemptingScheduler) else ()


def free_gpus(cluster: Cluster, held: Mapping[str, Sequence[int]]) -> list[int]:
    """The GPUs that none of these jobs hold.

    Raises:
        UsageError: a GPU does not exist, or two jobs hold it.
    """
    owners = gpu_owners(cluster, held)
    return [gpu for gpu in range(len(cluster.gpus)) if gpu not in owners]


def gpu_owners(cluster: Cluster, held: Mapping[str, Sequence[int]]) -> dict[int, str]:
    """The job that holds each GPU; free GPUs are left out.

    Raises:
        UsageError: a GPU does not exist, or two jobs hold it.
    """
    owners: dict[int, str] = {}
    for job, gpus in held.items():
        for gpu in gpus:
            if not 0 <= gpu < len(cluster.gpus):
                raise UsageError(f"job {job!r}: GPU: expected 0 to {len(cluster.gpus) - 1}, got {gpu}")
            if gpu in owners:
                raise UsageError(f"GPU {gpu}: expected one job, got {owners[gpu]!r} and {job!r}")
            owners[gpu] = job
    return owners


def stops_and_starts(
    held: Mapping[str, tuple[int, ...]], assigned: Mapping[str, tuple[int, ...]]
) -> tuple[list[str], list[str]]:
    """The jobs to be stopped, and those to be started when the GPUs that they are assigned are free.

    A job that is assigned other GPUs than it holds is stopped, and started again if it is assigned any.

    Args:
        held: the GPUs of each job, ascending; none of one that waits.
        assigned: likewise, as decided; none of a job that is not in it.
    """
    stops = [job for job, gpus in held.items() if gpus and assigned.get(job, ()) != gpus]
    starts = [job for job, gpus in held.items() if assigned.get(job) and assigned[job] != gpus]
    return stops, starts


def first_lease_end_ns(now_ns: int, jobs: Sequence[JobView]) -> int | None:
    """The end of the lease that ends next; None if no job has one."""
    return min((job.lease_end_ns for job in jobs if job.holds(now_ns)), default=None)
