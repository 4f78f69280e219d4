"""Themis (Mahajan et al., NSDI 2020), as far as Cassini's thesis uses it (4.4.2, 4.5.1): finish-time fair auctions.

A job's finish-time fairness is rho = T_shared / T_independent: the time from its arrival to its end in the shared
cluster, relative to that alone in a fair share of it. GPUs are leased. When a lease ends its GPUs are auctioned,
together with those that are free. The jobs that are farthest from fair bid the rho that each number of workers would
give them, and the winners are those for which the product of the improvements is largest (Nash social welfare, which
Themis's partial allocation maximizes). GPUs that they leave are auctioned among the other jobs.

Left out: the hidden payments that keep agents of different owners honest (here the arbiter works out all bids itself),
apps of several jobs that tune hyper-parameters, and the slowdown of GPUs of the same rack in different servers.
"""

from __future__ import annotations

import math
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
from placement.policies.schedulers.scheduler import (
    CANDIDATES,
    Assignment,
    JobView,
    first_lease_end_ns,
    free_gpus,
)

LEASE_NS = 600 * 10**9
"""10 minutes, the bidding period of 4.5.1."""

FAIRNESS = 0.8
"""Themis's f: GPUs are offered to the fraction 1 - f of the jobs that are farthest from fair."""


@dataclass(frozen=True)
class Themis:
    """Themis's arbiter.

    Attributes:
        lease_ns: how long a job keeps the GPUs that it wins.
        fairness: f.
        seed: of the draws among equally good placements.

    Raises:
        UsageError: a value is out of range.
    """

    name = "themis"
    lease_ns: int = LEASE_NS
    fairness: float = FAIRNESS
    seed: int = 0

    def __post_init__(self) -> None:
        if self.lease_ns <= 0:
            raise UsageError(f"themis: lease_ns: expected more than 0, got {self.lease_ns}")
        if not 0 <= self.fairness < 1:
            raise UsageError(f"themis: fairness: expected 0 <= fairness < 1, got {self.fairness}")

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`: auction the GPUs that are not leased."""
        kept = {job.name: job.gpus for job in jobs if job.holds(now_ns)}
        free = free_gpus(cluster, kept)
        bidders = [job for job in jobs if job.name not in kept]
        won = self._auction(cluster, now_ns, bidders, len(jobs), len(free))
        requests = [PlacementRequest(job.name, won[job.name], job.gpus) for job in bidders if won[job.name]]
        return placements(cluster, kept, requests, free, most, seed_of(self.seed, now_ns), stay=False)

    def next_ns(self, now_ns: int, jobs: Sequence[JobView]) -> int | None:
        """The end of the lease that ends next."""
        return first_lease_end_ns(now_ns, jobs)

    def _auction(
        self, cluster: Cluster, now_ns: int, bidders: Sequence[JobView], contenders: int, gpus: int
    ) -> dict[str, int]:
        """The number of GPUs that each bidder wins, in rounds until all have bid."""
        won = {job.name: 0 for job in bidders}
        waiting = sorted(
            bidders,
            key=lambda job: (-rho(job, self._finish_ns(job, now_ns, 0), contenders, cluster), job.name),
        )
        while waiting and gpus:
            bidding = max(1, math.ceil((1 - self.fairness) * len(waiting)))
            in_round, waiting = waiting[:bidding], waiting[bidding:]
            values = [self._bid(job, now_ns, contenders, gpus, cluster) for job in in_round]
            for job, share in zip(in_round, best_shares(values, gpus), strict=True):
                won[job.name] = share
                gpus -= share
        return won

    def _bid(
        self, job: JobView, now_ns: int, contenders: int, gpus: int, cluster: Cluster
    ) -> dict[int, float]:
        """The value of each number of GPUs: the logarithm of the factor by which it improves rho."""
        without = rho(job, self._finish_ns(job, now_ns, 0), contenders, cluster)
        bids = {0: 0.0}
        for workers in range(job.gpus_min, min(job.gpus_max, gpus) + 1):
            finish_ns = self._finish_ns(job, now_ns, workers, fits_a_rack(cluster, workers))
            bids[workers] = math.log(without / rho(job, finish_ns, contenders, cluster))
        return bids

    def _finish_ns(self, job: JobView, now_ns: int, workers: int, one_node: bool = True) -> float:
        """The job's end with so many workers; with none, it waits for one lease and then gets `gpus_min`."""
        if workers:
            return now_ns + job.iterations_left / job.throughput(workers, one_node) * 1e9
        return now_ns + self.lease_ns + job.iterations_left / job.throughput(job.gpus_min, False) * 1e9


def rho(job: JobView, finish_ns: float, contenders: int, cluster: Cluster) -> float:
    """Finish-time fairness: T_shared / T_independent.

    T_independent is the time alone in the whole cluster, on at most `gpus_max` GPUs, multiplied by the number of jobs
    that contend for the cluster (Themis, 3.1).
    """
    alone = min(job.gpus_max, max(job.gpus_min, len(cluster.gpus)))
    alone_ns = job.iterations / job.throughput(alone, fits_a_rack(cluster, alone)) * 1e9
    return max(finish_ns - job.arrival_ns, 1.0) / (alone_ns * max(contenders, 1))
