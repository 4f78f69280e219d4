"""The shares of the cluster that a job may get at its start, and the ranks that several policies have in common."""

from __future__ import annotations

from collections.abc import Iterable

from placement.policies.schedulers.drs.allocation import FreeGpus
from placement.policies.schedulers.drs.non_preemptive import Rank
from placement.policies.schedulers.drs.scheme import Scheme, deadline_of
from placement.policies.schedulers.scheduler import JobView


def whole_cluster(job: JobView, now_ns: int, free: FreeGpus) -> Scheme | None:
    """All GPUs, or as many as the job can use, once all are free."""
    if not free.all_free:
        return None
    gpus = min(free.total, job.gpus_max)
    return _scheme(job, now_ns, gpus, one_node=gpus <= max(free.counts))


def whole_node(job: JobView, now_ns: int, free: FreeGpus) -> Scheme | None:
    """All GPUs of a node, or as many as the job can use, once a node is free.

    A job that cannot run on as few GPUs as any node has gets the fewest whole nodes that it can run on.
    """
    nodes = free.free_nodes()
    if job.gpus_min <= free.largest_node:
        nodes = [gpus for gpus in nodes if gpus >= job.gpus_min][:1]
    gpus = 0
    while nodes and gpus < job.gpus_min:
        gpus += nodes.pop(0)
    if gpus == 0:
        return None
    return _scheme(job, now_ns, min(gpus, job.gpus_max), one_node=job.gpus_min <= free.largest_node)


def start_on_whole_nodes(
    jobs: Iterable[JobView], now_ns: int, free: FreeGpus, assignment: dict[str, tuple[int, ...]]
) -> None:
    """Start the jobs that find a free node, the shortest on its fewest GPUs first, and add them to the assignment."""
    for job in sorted(jobs, key=lambda each: each.run_ns(each.gpus_min, True)):
        share = whole_node(job, now_ns, free)
        gpus = None if share is None else free.take(share.gpus, share.cross_node)
        if gpus is not None:
            assignment[job.name] = gpus


def late_last(job: JobView, scheme: Scheme) -> Rank:
    """Earliest deadline first; jobs that would end late come after all others, by their end."""
    deadline_ns = deadline_of(job)
    return (0, deadline_ns) if scheme.end_ns <= deadline_ns else (1, scheme.end_ns)


def _scheme(job: JobView, now_ns: int, gpus: int, one_node: bool) -> Scheme | None:
    if gpus < job.gpus_min:
        return None
    return Scheme(gpus, not one_node, now_ns + job.restart_ns + job.run_ns(gpus, one_node))
