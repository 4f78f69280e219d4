"""Schedulers that interrupt no job: a base for policies of one's own, a fixed assignment, and random GPUs."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from placement.model.cluster import Cluster
from placement.policies.schedulers.candidates import seed_of
from placement.policies.schedulers.free_gpus import FreeGpus
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView, Untimed, free_gpus

Rank: TypeAlias = tuple[int, ...]
"""The least comes first; of equals the job that arrived first."""


@dataclass(frozen=True)
class Scheme:
    """R_t of DRS: a number of GPUs and a kind.

    Attributes:
        gpus: N.
        cross_node: the kind; one GPU is never cross-node.
        end_ns: T_end, if the job started now.
    """

    gpus: int
    cross_node: bool
    end_ns: int


class NonPreemptive(Untimed, ABC):
    """A scheduler that starts the first waiting job, again and again; a subclass is one policy.

    It is two rules: the share of the free GPUs that a waiting job would get now, and the rank by which it competes
    with that share.
    """

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

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`. Jobs are in the order of their arrival, which decides between equals."""
        assignment = {job.name: job.gpus for job in jobs if job.gpus}
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
            waiting = [other for other in waiting if other is not job]
        return (assignment,)

    def _first(
        self, waiting: Sequence[JobView], now_ns: int, free: FreeGpus
    ) -> tuple[JobView, Scheme] | None:
        shares = [(job, self.share(job, now_ns, free)) for job in waiting]
        possible = [(job, scheme) for job, scheme in shares if scheme is not None]
        return min(possible, key=lambda pair: self.rank(pair[0], now_ns, pair[1]), default=None)


@dataclass(frozen=True)
class FixedScheduler(Untimed):
    """Gives every job the GPUs of `assignment` when it arrives, and lets it keep them to its end.

    Attributes:
        name: of the results.
        assignment: the GPUs of each job; jobs that run at the same time share none.
    """

    name: str
    assignment: Assignment

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`."""
        return ({job.name: self.assignment[job.name] for job in jobs},)


@dataclass(frozen=True)
class RandomScheduler(Untimed):
    """Random of 4.5.1: workers on any GPUs, first come first served; the baseline with the most network traffic.

    A job waits for as many GPUs as it asked for, and keeps them to its end.

    Jobs do not overtake each other: one that does not fit blocks those behind it.

    Attributes:
        seed: of the draws.
    """

    name = "random"
    seed: int = 0

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`."""
        kept = {job.name: job.gpus for job in jobs if job.gpus}
        free = free_gpus(cluster, kept)
        waiting = sorted((job for job in jobs if not job.gpus), key=lambda job: (job.arrival_ns, job.name))
        draw = random.Random(seed_of(self.seed, now_ns))
        different: list[Assignment] = []
        for _ in range(most):
            assignment = {**kept, **_scattered(waiting, free, draw)}
            if assignment not in different:
                different.append(assignment)
        return tuple(different)


def _scattered(
    waiting: Sequence[JobView], free: Sequence[int], draw: random.Random
) -> dict[str, tuple[int, ...]]:
    """Random GPUs for each of the jobs, up to the first that does not fit."""
    left = draw.sample(list(free), len(free))
    placed = {}
    for job in waiting:
        if job.gpus_wanted > len(left):
            break
        placed[job.name] = tuple(sorted(left[: job.gpus_wanted]))
        left = left[job.gpus_wanted :]
    return placed
