"""A scheduler's shares with places that move as few workers as possible, for jobs whose speed depends on no place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placement.model.cluster import Cluster
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView, Scheduler


@dataclass(frozen=True)
class LeastMoves:
    """Decides as another scheduler does, and places the shares by `least_moves`.

    Attributes:
        scheduler: it must look at the numbers of GPUs alone; one that sends jobs back to the queue is not supported.
    """

    scheduler: Scheduler

    @property
    def name(self) -> str:
        """The name of the scheduler."""
        return self.scheduler.name

    @property
    def lease_ns(self) -> int | None:
        """See `Scheduler`."""
        return self.scheduler.lease_ns

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler`."""
        held = {job.name: job.gpus for job in jobs if job.gpus}
        return tuple(
            least_moves(held, {job: len(gpus) for job, gpus in assignment.items()}, len(cluster.gpus))
            for assignment in self.scheduler.candidates(cluster, now_ns, jobs, most)
        )

    def next_ns(self, now_ns: int, jobs: Sequence[JobView]) -> int | None:
        """See `Scheduler`."""
        return self.scheduler.next_ns(now_ns, jobs)


def least_moves(held: Mapping[str, Sequence[int]], shares: Mapping[str, int], gpus: int) -> Assignment:
    """Places for the shares: a job that grows keeps all of its GPUs, and one that shrinks keeps some of them.

    Args:
        held: the GPUs of the jobs that have any.
        shares: the number of GPUs of every job that is to have any; together no more than there are.
        gpus: of the cluster.
    """
    kept = {job: tuple(held.get(job, ()))[:share] for job, share in shares.items() if share}
    taken = {gpu for places in kept.values() for gpu in places}
    free = iter([gpu for gpu in range(gpus) if gpu not in taken])
    return {
        job: tuple(sorted((*places, *(next(free) for _ in range(shares[job] - len(places))))))
        for job, places in kept.items()
    }
