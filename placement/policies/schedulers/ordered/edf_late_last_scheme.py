"""Earliest deadline first with the schemes of DRS; jobs that would end late come after all others."""

from __future__ import annotations

from dataclasses import dataclass

from placement.policies.schedulers.drs.allocation import FreeGpus
from placement.policies.schedulers.drs.non_preemptive import NonPreemptive, Rank
from placement.policies.schedulers.drs.scheme import Scheme, decide
from placement.policies.schedulers.ordered.shares import late_last
from placement.policies.schedulers.scheduler import JobView


@dataclass(frozen=True)
class EdfLateLastScheme(NonPreemptive):
    """EDF, late jobs last, with the schemes of DRS."""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return "edf-late-last-scheme"

    def share(self, job: JobView, now_ns: int, free: FreeGpus) -> Scheme | None:
        """See `NonPreemptive`."""
        return decide(job, now_ns, free.counts)

    def rank(self, job: JobView, now_ns: int, scheme: Scheme) -> Rank:
        """See `NonPreemptive`."""
        return late_last(job, scheme)
