"""Earliest deadline first, as in the DRS paper: a job waits until the whole cluster is free, and gets all of it."""

from __future__ import annotations

from dataclasses import dataclass

from placement.policies.schedulers.drs.allocation import FreeGpus
from placement.policies.schedulers.drs.non_preemptive import NonPreemptive, Rank
from placement.policies.schedulers.drs.scheme import Scheme, deadline_of
from placement.policies.schedulers.ordered.shares import whole_cluster
from placement.policies.schedulers.scheduler import JobView


@dataclass(frozen=True)
class Edf(NonPreemptive):
    """EDF: the earliest deadline first, one job at a time."""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return "edf"

    def share(self, job: JobView, now_ns: int, free: FreeGpus) -> Scheme | None:
        """See `NonPreemptive`."""
        return whole_cluster(job, now_ns, free)

    def rank(self, job: JobView, now_ns: int, scheme: Scheme) -> Rank:
        """See `NonPreemptive`."""
        return (deadline_of(job),)
