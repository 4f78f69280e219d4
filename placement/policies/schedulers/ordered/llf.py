"""Least laxity first on the whole cluster: the job that could least wait for its start; late jobs come last."""

from __future__ import annotations

from dataclasses import dataclass

from placement.policies.schedulers.drs.allocation import FreeGpus
from placement.policies.schedulers.drs.non_preemptive import NonPreemptive, Rank
from placement.policies.schedulers.drs.scheme import Scheme, deadline_of
from placement.policies.schedulers.ordered.shares import whole_cluster
from placement.policies.schedulers.scheduler import JobView


@dataclass(frozen=True)
class Llf(NonPreemptive):
    """Least T_dl - now - T_run first; jobs that would end late come after all others, by their end."""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return "llf"

    def share(self, job: JobView, now_ns: int, free: FreeGpus) -> Scheme | None:
        """See `NonPreemptive`."""
        return whole_cluster(job, now_ns, free)

    def rank(self, job: JobView, now_ns: int, scheme: Scheme) -> Rank:
        """See `NonPreemptive`."""
        slack_ns = deadline_of(job) - scheme.end_ns
        return (0, slack_ns, scheme.end_ns + slack_ns) if slack_ns >= 0 else (1, scheme.end_ns)
