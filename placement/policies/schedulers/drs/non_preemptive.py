"""The loop of schedulers that start the first waiting job, again and again, and change no running job's number of GPUs.

A scheduler of this kind is two rules: the share of the free GPUs that a waiting job would get now, and the rank by
which it competes with that share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeAlias

from placement.model.cluster import Cluster
from placement.policies.schedulers.drs.allocation import FreeGpus
from placement.policies.schedulers.drs.scheme import Scheme
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView
from placement.policies.schedulers.untimed import Untimed

Rank: TypeAlias = tuple[int, ...]
"""The least comes first; of equals the job that arrived first."""


class NonPreemptive(Untimed, ABC):
    """A scheduler without preemption; a subclass is one policy."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name on the command line."""

    @abstractmethod
    def share(self, job: JobView, now_ns: int, free: FreeGpus) -> Scheme | None:
        """The share that the job would get now; None if it has to wait."""

    @abstractmethod
    def rank(self, job: JobView, now_ns: int, scheme: Scheme) -> Rank:
        """The rank of a waiting job that would get this share."""

    def kept(self, cluster: Cluster, held: Assignment) -> Assignment:
        """The GPUs of running jobs from now on: those that they hold."""
        return held

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`. Jobs are in the order of their arrival, which decides between equals."""
        held = {job.name: job.gpus for job in jobs if job.gpus}
        assignment = dict(self.kept(cluster, held))
        free = FreeGpus(cluster, assignment)
        waiting = [job for job in jobs if not job.gpus]
        while waiting and free.total:
            chosen = self._first(waiting, now_ns, free)
            if chosen is None:
                break
            job, scheme = chosen
            gpus = free.take(scheme.gpus, scheme.cross_node)
            assert gpus is not None, "a share fits"
            assignment[job.name] = gpus
            waiting = [each for each in waiting if each is not job]
        return (assignment,)

    def _first(
        self, waiting: Sequence[JobView], now_ns: int, free: FreeGpus
    ) -> tuple[JobView, Scheme] | None:
        offers = [(job, self.share(job, now_ns, free)) for job in waiting]
        possible = [(job, scheme) for job, scheme in offers if scheme is not None]
        if not possible:
            return None
        return min(possible, key=lambda each: self.rank(each[0], now_ns, each[1]))
