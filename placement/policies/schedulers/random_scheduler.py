"""Random of 4.5.1: the workers of each job anywhere, whoever came first; the one with the highest network overhead."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from placement.model.cluster import Cluster
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView, free_gpus
from placement.policies.schedulers.themis import hash_of


@dataclass(frozen=True)
class Random:
    """Each job waits for as many GPUs as it asked for, and keeps those it gets to its end.

    Jobs do not overtake each other: one that does not fit holds up those behind it.

    Attributes:
        seed: of the draw.
    """

    seed: int = 0

    @property
    def name(self) -> str:
        """As it is asked for."""
        return "random"

    @property
    def lease_ns(self) -> int | None:
        """To the end of the job."""
        return None

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """Place jobs on any GPUs; see `Scheduler.candidates`."""
        kept = {job.name: job.gpus for job in jobs if job.gpus}
        free = free_gpus(cluster, kept)
        waiting = sorted((job for job in jobs if not job.gpus), key=lambda job: (job.arrival_ns, job.name))
        draw = random.Random(hash_of(self.seed, now_ns))
        found: list[Assignment] = []
        for _ in range(most):
            placed = {**kept, **_scattered(waiting, free, draw)}
            if placed not in found:
                found.append(placed)
        return tuple(found)

    def next_ns(self, now_ns: int, jobs: Sequence[JobView]) -> int | None:
        """Only when a job comes or goes."""
        return None


def _scattered(
    waiting: Sequence[JobView], free: Sequence[int], draw: random.Random
) -> dict[str, tuple[int, ...]]:
    left = draw.sample(list(free), len(free))
    found = {}
    for job in waiting:
        if job.gpus_wanted > len(left):
            break
        found[job.name] = tuple(sorted(left[: job.gpus_wanted]))
        left = left[job.gpus_wanted :]
    return found
