"""A scheduler that decides nothing: the GPUs of every job are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placement.model.cluster import Cluster
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView


@dataclass(frozen=True)
class FixedScheduler:
    """Every job gets the GPUs that `assignment` has for it as soon as it arrives, and keeps them to its end.

    Attributes:
        name: for reports.
        assignment: the GPUs of each job; no two jobs that run at the same time share one.
    """

    name: str
    assignment: Assignment

    @property
    def lease_ns(self) -> int | None:
        """No leases."""
        return None

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """The single candidate; see `Scheduler.candidates`."""
        return ({job.name: self.assignment[job.name] for job in jobs},)

    def next_ns(self, now_ns: int, jobs: Sequence[JobView]) -> int | None:
        """No timers."""
        return None
