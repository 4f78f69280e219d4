"""Themis (Mahajan et al., NSDI 2020), as far as Cassini's thesis uses it (4.4.2, 4.5.1): finish-time fair auctions.

A job's finish-time fairness is rho = T_shared / T_independent: how long it takes in the shared cluster, from its
arrival to its end, over how long it would take alone in a fair share of it. GPUs are leased. When a lease ends its GPUs
are auctioned, together with those that are free: the jobs that are farthest from fair bid, with the rho that each
number of workers would bring them, and the winners are those whose improvements, multiplied, are the largest (Nash's
social welfare, which is what Themis' partial allocation maximizes). What they leave is auctioned among the others.

Left out: the hidden payments that keep agents of different owners honest (here the arbiter works out all bids itself),
apps of several jobs that tune hyper-parameters, and the slowdown of GPUs of the same rack in different servers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster
from placement.policies.schedulers.candidates import Wish, placements
from placement.policies.schedulers.scheduler import (
    CANDIDATES,
    Assignment,
    JobView,
    first_lease_end_ns,
    free_gpus,
)
from placement.policies.schedulers.shares import best_shares

LEASE_NS = 600 * 10**9
"""10 minutes, the bidding period of 4.5.1."""

FAIRNESS = 0.8
"""Themis' f: the GPUs are offered to the share 1 - f of the jobs that are farthest from fair."""


@dataclass(frozen=True)
class Themis:
    """The arbiter.

    Attributes:
        lease_ns: for how long a job keeps what it wins.
        fairness: f, from 0 to (not including) 1.
        seed: of the draw among equally good placements.

    Raises:
        UsageError: a lease that is not positive, or f outside of 0 to 1.
    """

    lease_ns: int = LEASE_NS
    fairness: float = FAIRNESS
    seed: int = 0

    def __post_init__(self) -> None:
        if self.lease_ns <= 0 or not 0 <= self.fairness < 1:
            raise UsageError(
                f"themis: lease_ns {self.lease_ns}, fairness {self.fairness}: "
                "more than 0, and 0 up to (not including) 1, are allowed"
            )

    @property
    def name(self) -> str:
        """As it is asked for."""
        return "themis"

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """Auction what is free; see `Scheduler.candidates`."""
        kept = {job.name: job.gpus for job in jobs if job.holds(now_ns)}
        free = free_gpus(cluster, kept)
        bidders = [job for job in jobs if job.name not in kept]
        won = self._auction(cluster, now_ns, bidders, len(jobs), len(free))
        wishes = [Wish(job.name, won[job.name], job.gpus) for job in bidders if won[job.name]]
        return placements(cluster, kept, wishes, free, most, hash_of(self.seed, now_ns), stay=False)

    def next_ns(self, now_ns: int, jobs: Sequence[JobView]) -> int | None:
        """When the next lease ends."""
        return first_lease_end_ns(now_ns, jobs)

    def _auction(
        self, cluster: Cluster, now_ns: int, bidders: Sequence[JobView], contenders: int, gpus: int
    ) -> dict[str, int]:
        """Round by round, until all have been asked: how many GPUs each wins."""
        won = {job.name: 0 for job in bidders}
        waiting = sorted(
            bidders,
            key=lambda job: (-rho(job, self._finish_ns(job, now_ns, 0), contenders, cluster), job.name),
        )
        while waiting and gpus:
            asked = max(1, math.ceil((1 - self.fairness) * len(waiting)))
            round_of, waiting = waiting[:asked], waiting[asked:]
            values = [self._bid(job, now_ns, contenders, gpus, cluster) for job in round_of]
            for job, share in zip(round_of, best_shares(values, gpus), strict=True):
                won[job.name] = share
                gpus -= share
        return won

    def _bid(
        self, job: JobView, now_ns: int, contenders: int, gpus: int, cluster: Cluster
    ) -> dict[int, float]:
        """Of each number of GPUs, the logarithm of the factor by which it improves rho."""
        without = rho(job, self._finish_ns(job, now_ns, 0), contenders, cluster)
        bids = {0: 0.0}
        for workers in range(job.gpus_min, min(job.gpus_max, gpus) + 1):
            finish_ns = self._finish_ns(job, now_ns, workers, fits_a_rack(cluster, workers))
            bids[workers] = math.log(without / rho(job, finish_ns, contenders, cluster))
        return bids

    def _finish_ns(self, job: JobView, now_ns: int, workers: int, one_rack: bool = True) -> float:
        """When it ends with so many workers; with none it waits for a lease, and gets its least then."""
        if workers:
            return now_ns + job.iterations_left / job.throughput(workers, one_rack) * 1e9
        return now_ns + self.lease_ns + job.iterations_left / job.throughput(job.gpus_min, False) * 1e9


def rho(job: JobView, finish_ns: float, contenders: int, cluster: Cluster) -> float:
    """Finish-time fairness: T_shared over T_independent.

    T_independent is the time alone in the whole cluster, times the number of jobs that contend for it (Themis, 3.1);
    no job is made faster by more than the workers it can use.
    """
    alone = min(job.gpus_max, max(job.gpus_min, len(cluster.gpus)))
    alone_ns = job.iterations / job.throughput(alone, fits_a_rack(cluster, alone)) * 1e9
    return max(finish_ns - job.arrival_ns, 1.0) / (alone_ns * max(contenders, 1))


def fits_a_rack(cluster: Cluster, workers: int) -> bool:
    """Whether the largest rack has as many GPUs."""
    room: dict[str, int] = {}
    for server in cluster.servers:
        room[server.switch] = room.get(server.switch, 0) + len(server.gpus)
    return workers <= max(room.values())


def hash_of(*numbers: int) -> int:
    """A seed made of several numbers, the same in every process."""
    mixed = 0
    for number in numbers:
        mixed = (mixed * 1_000_003 + number) % 2**63
    return mixed
