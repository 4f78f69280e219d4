"""DRS (Fu, Hu, Li, Journal of Computer Research and Development 60(6), 2023): GPU counts and placement by deadline.

Waiting jobs get a scheme each; those that meet their deadline come before the others, the one with the least slack
first. A job that runs keeps its number of GPUs. NoRM is DRS without migration.
"""

from __future__ import annotations

from dataclasses import dataclass

from placement.model.cluster import Cluster
from placement.policies.schedulers.drs.allocation import FreeGpus
from placement.policies.schedulers.drs.migration import migrated
from placement.policies.schedulers.drs.non_preemptive import NonPreemptive, Rank
from placement.policies.schedulers.drs.scheme import Scheme, deadline_of, decide
from placement.policies.schedulers.scheduler import Assignment, JobView


@dataclass(frozen=True)
class Drs(NonPreemptive):
    """The main loop of DRS.

    Attributes:
        migration: whether running jobs are moved; False is NoRM.
    """

    migration: bool = True

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return "drs" if self.migration else "norm"

    def share(self, job: JobView, now_ns: int, free: FreeGpus) -> Scheme | None:
        """The scheme of section 3.1."""
        return decide(job, now_ns, free.counts)

    def rank(self, job: JobView, now_ns: int, scheme: Scheme) -> Rank:
        """Q_exp by slack and deadline, then Q_unexp by end."""
        deadline_ns = deadline_of(job)
        slack_ns = deadline_ns - scheme.end_ns
        return (0, slack_ns, deadline_ns) if slack_ns >= 0 else (1, scheme.end_ns)

    def kept(self, cluster: Cluster, held: Assignment) -> Assignment:
        """Those that running jobs hold, or where migration (section 3.3) puts them."""
        return migrated(cluster, held) if self.migration else held
