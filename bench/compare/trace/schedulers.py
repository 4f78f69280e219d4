"""The schedulers of a comparison: those of `scheduling_policy`, and the compiled placement policies as schedulers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.compare.approaches.approach import SCHEDULER_NAMES
from placement.model.cluster import Cluster
from placement.policies.catalogue import placement_policy
from placement.policies.schedulers.greedy import GreedyScheduler
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView, Scheduler, Untimed
from placement.policies.schedulers.scheduling_policy import (
    AUGMENTED,
    SCHEDULERS,
    SchedulingPolicy,
    scheduling_policy,
)


@dataclass(frozen=True)
class UntimedScheduler(Untimed):
    """A scheduler without its leases and timers: it only decides when jobs arrive or end.

    Attributes:
        scheduler: makes the decisions.
    """

    scheduler: Scheduler

    @property
    def name(self) -> str:
        """The name of the scheduler."""
        return self.scheduler.name

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`."""
        return self.scheduler.candidates(cluster, now_ns, jobs, most)


def scheduler(name: str, cassini: bool, seed: int) -> SchedulingPolicy:
    """The scheduler of this name, alone or with Cassini.

    Raises:
        UsageError: there is no such scheduler.
    """
    part = SCHEDULER_NAMES.parse(name)
    if part.base in SCHEDULERS:
        return scheduling_policy(name + (AUGMENTED if cassini else ""), seed=seed)
    return SchedulingPolicy(GreedyScheduler(placement_policy(part.base, part.number or 1)), cassini)
