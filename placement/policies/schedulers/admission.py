"""Earliest deadline first on efficient numbers of GPUs, with admission by Moore and Hodgson's rule.

A job gets as many GPUs of a node as it uses well, or more if it would be late on these, and it waits until they are
free. The jobs that Moore and Hodgson's rule gives up, and those that are late on any number of GPUs, are deferred: they
start only while no other job runs or waits, because a job that cannot be stopped would keep GPUs from jobs to come.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from placement.model.cluster import Cluster
from placement.policies.schedulers.deadlines.scheduler import start_on_whole_nodes
from placement.policies.schedulers.free_gpus import FreeGpus, largest_node, running_end_ns
from placement.policies.schedulers.non_preemptive import Scheme
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView, Untimed, deadline_of
from placement.policies.schedulers.speeds import LEAST_EFFICIENCY, efficient_scheme


@dataclass(frozen=True)
class EdfEfficient(Untimed):
    """EDF with admission, on efficient numbers of GPUs; no job is interrupted.

    Attributes:
        least: the efficiency that a job's GPUs must have, 0 to 1, unless it needs more of them to be in time.
    """

    name = "edf-efficient"
    least: Fraction = LEAST_EFFICIENCY

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`. Jobs are in the order of their arrival, which decides between equals."""
        assignment = {job.name: job.gpus for job in jobs if job.gpus}
        free = FreeGpus(cluster, assignment)
        if len(assignment) == len(jobs) or not free.total:
            return (assignment,)
        ends = [(job, running_end_ns(cluster, job, now_ns)) for job in jobs if job.gpus]
        offers, late = self._offers(cluster, now_ns, jobs)
        load = [(len(job.gpus), end_ns) for job, end_ns in ends]
        chosen = admitted(
            (
                scheme.gpus * (scheme.end_ns - now_ns),
                _capacity(len(cluster.gpus), load, now_ns, deadline_of(job)),
            )
            for job, scheme in offers
        )
        for position in chosen:
            job, scheme = offers[position]
            _start(job, scheme, free, assignment)
        if not chosen and not any(end_ns <= deadline_of(job) for job, end_ns in ends):
            for job, scheme in offers:  # all of them were given up
                _start(job, scheme, free, assignment)
            return (start_on_whole_nodes(cluster, now_ns, late, assignment),)
        return (assignment,)

    def _offers(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView]
    ) -> tuple[list[tuple[JobView, Scheme]], list[JobView]]:
        """The waiting jobs that can be in time and their schemes, by deadline; and those that are late."""
        node, gpus = largest_node(cluster), len(cluster.gpus)
        offers: list[tuple[JobView, Scheme]] = []
        late: list[JobView] = []
        for job in jobs:
            if job.gpus:
                continue
            scheme = efficient_scheme(job, now_ns, node, gpus, self.least)
            if scheme is None:
                late.append(job)
            else:
                offers.append((job, scheme))
        offers.sort(key=lambda each: deadline_of(each[0]))
        return offers, late


def admitted(demands: Iterable[tuple[int, int]]) -> list[int]:
    """The jobs that the rule of Moore and Hodgson does not give up (Management Science 15(1), 1968).

    Jobs are admitted in the order of their deadlines. Whenever their work exceeds what can be done before the deadline
    of the last one, the job with the most work is given up. On one machine, with all jobs there, no other choice admits
    more.

    Args:
        demands: a pair a job, in the order of their deadlines: its work, and the work that can be done from now until
            its deadline, in the same unit. Of jobs with equal work the one with the earlier deadline is given up.

    Returns:
        Their positions, ascending.
    """
    kept: list[int] = []
    work: list[int] = []
    total = 0
    for position, (demand, capacity) in enumerate(demands):
        kept.append(position)
        work.append(demand)
        total += demand
        if total > capacity:
            largest = work.index(max(work))
            total -= work[largest]
            del kept[largest], work[largest]
    return kept


def _capacity(gpus: int, load: Sequence[tuple[int, int]], now_ns: int, until_ns: int) -> int:
    """The GPU time from now until a time that running jobs leave."""
    held_ns = sum(count * (min(end_ns, until_ns) - now_ns) for count, end_ns in load)
    return gpus * (until_ns - now_ns) - held_ns


def _start(job: JobView, scheme: Scheme, free: FreeGpus, assignment: dict[str, tuple[int, ...]]) -> None:
    """Start the job if there is room."""
    gpus = free.take(scheme.gpus, scheme.cross_node)
    if gpus is not None:
        assignment[job.name] = gpus
