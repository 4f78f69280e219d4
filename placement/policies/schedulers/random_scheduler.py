"""Random of 4.5.1: workers on any GPUs, first come first served; the baseline with the most network traffic."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from placement.model.cluster import Cluster
from placement.policies.schedulers.candidates import seed_of
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView, free_gpus
from placement.policies.schedulers.untimed import Untimed


@dataclass(frozen=True)
class RandomScheduler(Untimed):
    """A job waits for as many GPUs as it asked for, and keeps them to its end.

    Jobs do not overtake each other: one that does not fit blocks those behind it.

    Attributes:
        seed: of the draws.
    """

    seed: int = 0

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return "random"

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
