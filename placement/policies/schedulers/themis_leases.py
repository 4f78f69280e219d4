"""Finish-time fairness by leases, without auctions: the job that is farthest from fair gets the next GPU.

rho is the time from a job's arrival to its end over its run time on one GPU. All GPUs are divided anew, one by one, at
every arrival and end and whenever a lease ends. `themis` is the scheduler with auctions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster
from placement.policies.schedulers.elastic import placed, restart_of
from placement.policies.schedulers.free_gpus import largest_node
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView
from placement.policies.schedulers.speeds import Speeds, speeds_of

LEASE_NS = 1200 * 10**9


@dataclass(frozen=True)
class ThemisLeases:
    """Division of all GPUs by finish-time fairness.

    Attributes:
        lease_every_ns: the time between two divisions, if no job arrives or ends.

    Raises:
        UsageError: it is not positive.
    """

    name = "themis-leases"
    lease_every_ns: int = LEASE_NS

    def __post_init__(self) -> None:
        if self.lease_every_ns <= 0:
            raise UsageError(
                f"themis-leases: lease_every_ns: expected more than 0, got {self.lease_every_ns}"
            )

    @property
    def lease_ns(self) -> int | None:
        """No job keeps its GPUs for certain: arrivals and ends divide all anew."""
        return None

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`. Jobs are in the order of their arrival, which decides between equals."""
        gpus, per_node = len(cluster.gpus), largest_node(cluster)
        contenders = [_Contender(job, speeds_of(job, gpus, per_node), now_ns) for job in jobs]
        left = gpus
        while left > 0:
            growing = [each for each in contenders if each.next_step(left) is not None]
            if not growing:
                break
            left -= max(growing, key=lambda each: each.unfairness).grow(left)
        return (placed(cluster, jobs, {each.job.name: each.gpus for each in contenders}),)

    def next_ns(self, now_ns: int, jobs: Sequence[JobView]) -> int | None:
        """The next multiple of the lease, while there are jobs."""
        return (now_ns // self.lease_every_ns + 1) * self.lease_every_ns if jobs else None


class _Contender:
    """A job and the GPUs that it has been given so far."""

    def __init__(self, job: JobView, speeds: Speeds, now_ns: int) -> None:
        self.job, self.gpus = job, 0
        self._speeds, self._age_ns = speeds, now_ns - job.arrival_ns
        self.unfairness = self._unfairness()

    def next_step(self, left: int) -> int | None:
        """The next larger number of GPUs that shortens the job, of at most `left` more."""
        larger = self._speeds.shorter(self.gpus)
        return larger if larger is not None and larger - self.gpus <= left else None

    def grow(self, left: int) -> int:
        """Take that step; returns the number of GPUs added."""
        larger = self.next_step(left)
        assert larger is not None
        added, self.gpus = larger - self.gpus, larger
        self.unfairness = self._unfairness()
        return added

    def _unfairness(self) -> tuple[bool, float]:
        """Whether the job has no GPUs, and rho: with those that it has, or the fewest."""
        gpus = self.gpus or self._speeds.fewest
        job, alone_ns = self.job, self.job.iterations * self._speeds.time_ns(self._speeds.fewest)
        remaining_ns = restart_of(job, gpus) + job.iterations_left * self._speeds.time_ns(gpus)
        return self.gpus == 0, float((self._age_ns + remaining_ns) / alone_ns)
