"""Schedulers: which jobs get which GPUs, by one interface for the simulator and the live service.

A scheduler sees the cluster, the time and views of the jobs, and answers with candidates: complete assignments of all
jobs that run, all of them equally good to it. Alone it takes the first; augmented with Cassini, the one whose traffic
fits together best (`augmented.decide`). It keeps nothing between two calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster

CANDIDATES = 10
"""As many as the thesis takes from Themis and from Pollux (4.5.1)."""

Assignment: TypeAlias = Mapping[str, tuple[int, ...]]
"""The GPUs of each job that runs: their numbers in `Cluster.gpus`, in ascending order."""


class IterationTimes(Protocol):
    """How fast a job would be, as it was profiled."""

    def iteration_ns(self, workers: int, one_rack: bool) -> float:
        """The time of an iteration with so many workers, all under one rack or not, when nobody else sends."""
        ...


@dataclass(frozen=True)
class JobView:
    """A job as a scheduler sees it.

    Attributes:
        name: unique.
        arrival_ns: when it was submitted.
        gpus_wanted: what it asked for; `iterations` are counted with so many.
        gpus_min: with less it does not run.
        gpus_max: more are of no use to it.
        iterations: in all.
        iterations_left: of them.
        times: its profile.
        gpus: its present ones; none while it waits.
        lease_end_ns: until when they are its own; of no meaning while it waits.
        restarts: how often it was moved already.
        noise_scale: the gradient noise scale, in batches of one worker.

    Raises:
        UsageError: numbers that cannot be.
    """

    name: str
    arrival_ns: int
    gpus_wanted: int
    gpus_min: int
    gpus_max: int
    iterations: float
    iterations_left: float
    times: IterationTimes
    gpus: tuple[int, ...] = ()
    lease_end_ns: int = 0
    restarts: int = 0
    noise_scale: float = 16.0

    def __post_init__(self) -> None:
        if not 1 <= self.gpus_min <= self.gpus_wanted <= self.gpus_max:
            raise UsageError(
                f"job {self.name!r}: gpus_min {self.gpus_min}, gpus_wanted {self.gpus_wanted}, "
                f"gpus_max {self.gpus_max}: 1 or more in this order are allowed"
            )
        if not 0 <= self.iterations_left <= self.iterations or self.noise_scale <= 0:
            raise UsageError(
                f"job {self.name!r}: 0 to {self.iterations} iterations left and a noise_scale above 0 are allowed"
            )

    def efficiency(self, workers: int) -> float:
        """Pollux' statistical efficiency: the progress of a sample, over that in a batch of one worker (its Eq. 7).

        A batch of w workers is w times as large; with the gradient noise scale phi, in batches of one worker, it is
        (phi + 1) / (phi + w).
        """
        return (self.noise_scale + 1) / (self.noise_scale + workers)

    def throughput(self, workers: int, one_rack: bool) -> float:
        """Iterations of `gpus_wanted` workers a second, by the samples they take."""
        return workers / self.gpus_wanted * 1e9 / self.times.iteration_ns(workers, one_rack)

    def goodput(self, workers: int, one_rack: bool) -> float:
        """As `throughput`, by the progress that the samples make."""
        return progress(self, workers) * 1e9 / self.times.iteration_ns(workers, one_rack)

    def holds(self, now_ns: int) -> bool:
        """Whether its GPUs are its own now."""
        return bool(self.gpus) and self.lease_end_ns > now_ns


def progress(job: JobView, workers: int) -> float:
    """What an iteration with so many workers is worth, in iterations with `gpus_wanted` of them."""
    return workers * job.efficiency(workers) / (job.gpus_wanted * job.efficiency(job.gpus_wanted))


class Scheduler(Protocol):
    """A scheduler."""

    @property
    def name(self) -> str:
        """As it is asked for."""
        ...

    @property
    def lease_ns(self) -> int | None:
        """For how long a job keeps what it is given; None: to its end."""
        ...

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """Up to `most` equally good assignments of all jobs, one or more; jobs that are in none of them wait.

        Jobs whose lease runs on stay where they are. The same arguments give the same candidates.

        Raises:
            UsageError: GPUs that are not there, or that two jobs have.
        """
        ...

    def next_ns(self, now_ns: int, jobs: Sequence[JobView]) -> int | None:
        """When to ask again at the latest, if no job arrives or ends before; None: there is no need to."""
        ...


def free_gpus(cluster: Cluster, held: Mapping[str, Sequence[int]]) -> list[int]:
    """The GPUs that none of these jobs hold.

    Raises:
        UsageError: a GPU that is not there, or that two jobs have.
    """
    owner: dict[int, str] = {}
    for job, gpus in held.items():
        for gpu in gpus:
            if not 0 <= gpu < len(cluster.gpus):
                raise UsageError(f"job {job!r}: GPU {gpu}: 0 to {len(cluster.gpus) - 1} are allowed")
            if gpu in owner:
                raise UsageError(f"GPU {gpu} belongs to {owner[gpu]!r} and {job!r}: one of them is allowed")
            owner[gpu] = job
    return [gpu for gpu in range(len(cluster.gpus)) if gpu not in owner]


def first_lease_end_ns(now_ns: int, jobs: Sequence[JobView]) -> int | None:
    """When the next of the leases ends that run now."""
    return min((job.lease_end_ns for job in jobs if job.holds(now_ns)), default=None)
