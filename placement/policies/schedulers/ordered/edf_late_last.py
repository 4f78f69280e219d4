"""Earliest deadline first on the whole cluster, but jobs that would end late come after all others."""

from __future__ import annotations

from dataclasses import dataclass

from placement.policies.schedulers.drs.allocation import FreeGpus
from placement.policies.schedulers.drs.non_preemptive import NonPreemptive, Rank
from placement.policies.schedulers.drs.scheme import Scheme
from placement.policies.schedulers.ordered.shares import late_last, whole_cluster
from placement.policies.schedulers.scheduler import JobView


@dataclass(frozen=True)
class EdfLateLast(NonPreemptive):
    """EDF that spends nothing on late jobs while others wait."""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return "edf-late-last"

    def share(self, job: JobView, now_ns: int, free: FreeGpus) -> Scheme | None:
        """See `NonPreemptive`."""
        return whole_cluster(job, now_ns, free)

    def rank(self, job: JobView, now_ns: int, scheme: Scheme) -> Rank:
        """See `NonPreemptive`."""
        return late_last(job, scheme)
