"""Pollux (Qiao et al., OSDI 2021), as far as Cassini's thesis uses it (4.5.1): shares by goodput.

A job's goodput is its throughput times its statistical efficiency, which falls as the total batch grows over the
gradient noise scale. Its speedup is its goodput over that in a fair share of the cluster. Periodically, and when jobs
come or go, GPUs are divided anew so that the power mean of all speedups, with the exponent p = -1 as in Pollux, is
the largest. A job that would have to be moved counts with its speedup times (T - R delta) / (T + delta): T is its age,
R how often it was moved, and delta what moving costs; so jobs are moved only where that pays, and seldom.

Left out: the tuning of batch sizes and learning rates (the batch of a worker stays what it is, so that the number of
workers decides the total batch), the fitting of the throughput model at run time, and growing the cluster. Pollux
searches by a genetic algorithm; the numbers of workers are divided exactly here, and then placed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster
from placement.policies.schedulers.candidates import Wish, placements
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView, free_gpus
from placement.policies.schedulers.shares import best_shares
from placement.policies.schedulers.themis import fits_a_rack, hash_of

INTERVAL_NS = 60 * 10**9
"""Between two reallocations, as in Pollux (4.1)."""

MIGRATION_NS = 30 * 10**9
"""What Pollux reckons a restart to cost (4.2)."""

_WAITING = 0.01
"""The speedup of a job that has no GPUs: the mean of the inverses must stay finite."""


@dataclass(frozen=True)
class Pollux:
    """The cluster-wide part of Pollux.

    Attributes:
        interval_ns: between two reallocations.
        migration_ns: delta.
        seed: of the draw among equally good placements.

    Raises:
        UsageError: an interval that is not positive, or a negative cost.
    """

    interval_ns: int = INTERVAL_NS
    migration_ns: int = MIGRATION_NS
    seed: int = 0

    def __post_init__(self) -> None:
        if self.interval_ns <= 0 or self.migration_ns < 0:
            raise UsageError(
                f"pollux: interval_ns {self.interval_ns}, migration_ns {self.migration_ns}: "
                "more than 0, and 0 or more, are allowed"
            )

    @property
    def name(self) -> str:
        """As it is asked for."""
        return "pollux"

    @property
    def lease_ns(self) -> int | None:
        """As long as it lasts until the next reallocation."""
        return self.interval_ns

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """Divide all GPUs anew; see `Scheduler.candidates`. Jobs that keep their number of workers stay."""
        free_gpus(cluster, {job.name: job.gpus for job in jobs})
        every = len(cluster.gpus)
        values = [self._values(job, now_ns, len(jobs), cluster) for job in jobs]
        shares = best_shares(values, every)
        wishes = [Wish(job.name, share, job.gpus) for job, share in zip(jobs, shares, strict=True) if share]
        return placements(cluster, {}, wishes, range(every), most, hash_of(self.seed, now_ns))

    def next_ns(self, now_ns: int, jobs: Sequence[JobView]) -> int | None:
        """The next whole interval, while there are jobs."""
        return (now_ns // self.interval_ns + 1) * self.interval_ns if jobs else None

    def _values(self, job: JobView, now_ns: int, jobs: int, cluster: Cluster) -> dict[int, float]:
        """Of each number of GPUs, minus the inverse of the job's speedup."""
        values = {0: -1 / (_WAITING * self._factor(job, now_ns, 0))}
        for workers in range(job.gpus_min, min(job.gpus_max, len(cluster.gpus)) + 1):
            faster = speedup(job, workers, jobs, cluster) * self._factor(job, now_ns, workers)
            values[workers] = -1 / max(faster, _WAITING)
        return values

    def _factor(self, job: JobView, now_ns: int, workers: int) -> float:
        """What a job that has to be moved counts."""
        if not job.gpus or workers == len(job.gpus):
            return 1.0
        age = now_ns - job.arrival_ns
        return max(age - job.restarts * self.migration_ns, 0.1 * age, 1.0) / max(age + self.migration_ns, 1.0)


def speedup(job: JobView, workers: int, jobs: int, cluster: Cluster) -> float:
    """Goodput with so many workers over that with a fair share of the cluster (Pollux, Eq. 11)."""
    fair = min(job.gpus_max, max(job.gpus_min, len(cluster.gpus) // max(jobs, 1)))
    return job.goodput(workers, fits_a_rack(cluster, workers)) / job.goodput(fair, fits_a_rack(cluster, fair))
