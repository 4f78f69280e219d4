"""DRS (Fu, Hu, Li, Journal of Computer Research and Development 60(6), 2023): GPU counts and placement by deadline.

Waiting jobs get a scheme each; those that meet their deadline come before the others, the one with the least slack
first. A job that runs keeps its number of GPUs. NoRM is DRS without migration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placement.model.cluster import Cluster
from placement.policies.schedulers.drs.allocation import FreeGpus
from placement.policies.schedulers.drs.migration import migrated
from placement.policies.schedulers.drs.scheme import Scheme, deadline_of, decide
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView
from placement.policies.schedulers.untimed import Untimed


@dataclass(frozen=True)
class Drs(Untimed):
    """The main loop of DRS.

    Attributes:
        migration: whether running jobs are moved; False is NoRM.
    """

    migration: bool = True

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return "drs" if self.migration else "norm"

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`. Jobs are in the order of their arrival, which decides between equals."""
        held: Assignment = {job.name: job.gpus for job in jobs if job.gpus}
        assignment = dict(migrated(cluster, held) if self.migration else held)
        free = FreeGpus(cluster, assignment)
        waiting = [job for job in jobs if not job.gpus]
        while waiting and free.total:
            chosen = first(waiting, now_ns, free)
            if chosen is None:
                break
            job, scheme = chosen
            gpus = free.take(scheme.gpus, scheme.cross_node)
            assert gpus is not None, "a decided scheme fits"
            assignment[job.name] = gpus
            waiting = [each for each in waiting if each is not job]
        return (assignment,)


def first(waiting: Sequence[JobView], now_ns: int, free: FreeGpus) -> tuple[JobView, Scheme] | None:
    """The first of Q_exp, or if there is none the first of Q_unexp; None if no job can run on the free GPUs."""
    ranked = []
    for number, job in enumerate(waiting):
        scheme = decide(job, now_ns, free.counts)
        if scheme is not None:
            deadline_ns = deadline_of(job)
            slack_ns = deadline_ns - scheme.end_ns
            rank = (0, slack_ns, deadline_ns) if slack_ns >= 0 else (1, scheme.end_ns, 0)
            ranked.append((rank, number, scheme))
    if not ranked:
        return None
    _, number, scheme = min(ranked, key=lambda each: each[:2])
    return waiting[number], scheme
