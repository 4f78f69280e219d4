"""One decision of a scheduler of whole jobs: stops first, then an assignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace

from placement.model.cluster import Cluster
from placement.policies.schedulers.scheduler import JobView, Scheduler, jobs_to_stop
from placement.service.deciding.assignment_check import plain_assignment


def decide_once(
    scheduler: Scheduler, cluster: Cluster, now_ns: int, jobs: Sequence[JobView]
) -> dict[str, tuple[int, ...]]:
    """The first candidate of a scheduler.

    A job that the scheduler sends back to the queue first is shown to it as one that waits. It goes on undisturbed if
    it is then given the GPUs that it has.

    Raises:
        UsageError: the scheduler cannot decide about these jobs or on this cluster.
        PolicyFailure: its answer is no assignment.
    """
    stops = frozenset(jobs_to_stop(scheduler, now_ns, jobs))
    shown = [_stopped(job, now_ns) if job.name in stops else job for job in jobs]
    return plain_assignment(scheduler.candidates(cluster, now_ns, shown, 1)[0])


def in_rounds(scheduler: Scheduler, round_ns: int) -> Scheduler:
    """The same scheduler told the length of the rounds, if it is one that decides in rounds."""
    if decides_in_rounds(scheduler) and is_dataclass(scheduler) and not isinstance(scheduler, type):
        return replace(scheduler, round_ns=round_ns)
    return scheduler


def decides_in_rounds(scheduler: Scheduler) -> bool:
    """Whether a scheduler knows rounds."""
    return is_dataclass(scheduler) and any(each.name == "round_ns" for each in fields(scheduler))


def _stopped(job: JobView, now_ns: int) -> JobView:
    return replace(
        job, gpus=(), since_ns=now_ns, lease_end_ns=0, restart_left_ns=0, restart_ns=job.restart_cost_ns
    )
