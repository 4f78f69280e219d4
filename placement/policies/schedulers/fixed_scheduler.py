"""A scheduler with a fixed assignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placement.model.cluster import Cluster
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView
from placement.policies.schedulers.untimed import Untimed


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
