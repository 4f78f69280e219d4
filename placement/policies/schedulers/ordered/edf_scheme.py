"""Earliest deadline first, with the number of GPUs that DRS's scheme decision gives each job."""

from __future__ import annotations

from dataclasses import dataclass

from placement.policies.schedulers.drs.allocation import FreeGpus
from placement.policies.schedulers.drs.non_preemptive import NonPreemptive, Rank
from placement.policies.schedulers.drs.scheme import Scheme, deadline_of, decide
from placement.policies.schedulers.scheduler import JobView


@dataclass(frozen=True)
class EdfScheme(NonPreemptive):
    """The order of EDF with the schemes of DRS."""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return "edf-scheme"

    def share(self, job: JobView, now_ns: int, free: FreeGpus) -> Scheme | None:
        """See `NonPreemptive`."""
        return decide(job, now_ns, free.counts)

    def rank(self, job: JobView, now_ns: int, scheme: Scheme) -> Rank:
        """See `NonPreemptive`."""
        return (deadline_of(job),)
