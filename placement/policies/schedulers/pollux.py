"""Pollux (Qiao et al., OSDI 2021), as far as Cassini's thesis uses it (4.5.1): shares by goodput.

A job's goodput is its throughput times its statistical efficiency, which falls as the total batch grows relative to the
gradient noise scale. Its speedup is its goodput relative to that with a fair share of the cluster. Periodically, and
when jobs arrive or end, all GPUs are divided anew so that the power mean of all speedups, with Pollux's exponent
p = -1, is largest. The speedup of a job that would have to be restarted is multiplied by (T - R delta) / (T + delta),
where T is the job's age, R its number of restarts and delta the cost of one; so jobs are moved seldom.

Left out: the tuning of batch sizes and learning rates (a worker's batch is constant, so that the number of workers
decides the total batch), fitting the throughput model at run time, and growing the cluster. Pollux searches by a
genetic algorithm; here the numbers of workers are divided exactly, and then placed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster
from placement.policies.schedulers.candidates import (
    PlacementRequest,
    best_shares,
    fits_a_rack,
    placements,
    seed_of,
)
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView, gpu_owners

INTERVAL_NS = 60 * 10**9
"""The time between two reallocations (Pollux, 4.1)."""

MIGRATION_NS = 30 * 10**9
"""The cost of a restart that Pollux assumes (4.2)."""

_WAITING_SPEEDUP = 0.01
"""The speedup of a job without GPUs; more than 0, so that the mean of the inverses is finite."""


@dataclass(frozen=True)
class Pollux:
    """The cluster-wide part of Pollux.

    Attributes:
        interval_ns: the time between two reallocations.
        migration_ns: delta, the cost of a restart.
        seed: of the draws among equally good placements.

    Raises:
        UsageError: a value is out of range.
    """

    name = "pollux"
    interval_ns: int = INTERVAL_NS
    migration_ns: int = MIGRATION_NS
    seed: int = 0

    def __post_init__(self) -> None:
        if self.interval_ns <= 0:
            raise UsageError(f"pollux: interval_ns: expected more than 0, got {self.interval_ns}")
        if self.migration_ns < 0:
            raise UsageError(f"pollux: migration_ns: expected 0 or more, got {self.migration_ns}")

    @property
    def lease_ns(self) -> int | None:
        """The interval."""
        return self.interval_ns

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`. Jobs that keep their number of workers stay where they are."""
        gpu_owners(cluster, {job.name: job.gpus for job in jobs})  # raises if two jobs hold a GPU
        values = [self._values(job, now_ns, len(jobs), cluster) for job in jobs]
        shares = best_shares(values, len(cluster.gpus))
        requests = [
            PlacementRequest(job.name, share, job.gpus)
            for job, share in zip(jobs, shares, strict=True)
            if share
        ]
        return placements(cluster, {}, requests, range(len(cluster.gpus)), most, seed_of(self.seed, now_ns))

    def next_ns(self, now_ns: int, jobs: Sequence[JobView]) -> int | None:
        """The next multiple of the interval, while there are jobs."""
        return (now_ns // self.interval_ns + 1) * self.interval_ns if jobs else None

    def _values(self, job: JobView, now_ns: int, jobs: int, cluster: Cluster) -> dict[int, float]:
        """The value of each number of GPUs: minus the inverse of the job's speedup."""
        values = {0: -1 / (_WAITING_SPEEDUP * self._factor(job, now_ns, 0))}
        for workers in range(job.gpus_min, min(job.gpus_max, len(cluster.gpus)) + 1):
            faster = speedup(job, workers, jobs, cluster) * self._factor(job, now_ns, workers)
            values[workers] = -1 / max(faster, _WAITING_SPEEDUP)
        return values

    def _factor(self, job: JobView, now_ns: int, workers: int) -> float:
        """The factor of the speedup of a job that would have to be restarted; 1 for any other."""
        if not job.gpus or workers == len(job.gpus):
            return 1.0
        age = now_ns - job.arrival_ns
        return max(age - job.restarts * self.migration_ns, 0.1 * age, 1.0) / max(age + self.migration_ns, 1.0)


def speedup(job: JobView, workers: int, jobs: int, cluster: Cluster) -> float:
    """Goodput with so many workers, relative to that with a fair share of the cluster (Pollux, Eq. 11)."""
    fair = min(job.gpus_max, max(job.gpus_min, len(cluster.gpus) // max(jobs, 1)))
    return job.goodput(workers, fits_a_rack(cluster, workers)) / job.goodput(fair, fits_a_rack(cluster, fair))
