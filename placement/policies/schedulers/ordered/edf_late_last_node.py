"""Earliest deadline first with a whole node for each job; jobs that would end late come after all others."""

from __future__ import annotations

from dataclasses import dataclass

from placement.policies.schedulers.drs.allocation import FreeGpus
from placement.policies.schedulers.drs.non_preemptive import NonPreemptive, Rank
from placement.policies.schedulers.drs.scheme import Scheme
from placement.policies.schedulers.ordered.shares import late_last, whole_node
from placement.policies.schedulers.scheduler import JobView


@dataclass(frozen=True)
class EdfLateLastNode(NonPreemptive):
    """EDF, late jobs last, one node a job."""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return "edf-late-last-node"

    def share(self, job: JobView, now_ns: int, free: FreeGpus) -> Scheme | None:
        """See `NonPreemptive`."""
        return whole_node(job, now_ns, free)

    def rank(self, job: JobView, now_ns: int, scheme: Scheme) -> Rank:
        """See `NonPreemptive`."""
        return late_last(job, scheme)
