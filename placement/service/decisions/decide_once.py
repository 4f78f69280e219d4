"""One decision of a scheduler of whole jobs, and the check of an assignment before anything is done about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace

from mltcp.core.errors import UsageError, shown
from placement.model.cluster import Cluster
from placement.model.throughput.table import Layout
from placement.policies.schedulers.contention.profiles import TableTimed
from placement.policies.schedulers.scheduler import Assignment, JobView, Scheduler, gpu_owners, jobs_to_stop
from placement.service.decisions.policy_process import FailureReason, PolicyFailure


def plain_assignment(found: object) -> dict[str, tuple[int, ...]]:
    """An assignment as names and numbers.

    Raises:
        PolicyFailure: it is anything but a mapping from names of jobs to sequences of whole numbers.
    """
    if not isinstance(found, Mapping):
        raise _infeasible(f"expected a mapping from jobs to GPUs, got {_kind(found)}")
    plain: dict[str, tuple[int, ...]] = {}
    for job, gpus in found.items():
        if not isinstance(job, str):
            raise _infeasible(f"expected names of jobs, got {_kind(job)}")
        if not isinstance(gpus, tuple | list) or any(type(gpu) is not int for gpu in gpus):
            raise _infeasible(f"job {shown(job)}: expected the numbers of its GPUs, got {_kind(gpus)}")
        plain[job] = tuple(sorted(gpus))
    return plain


def check_assignment(cluster: Cluster, jobs: Sequence[JobView], assignment: Assignment) -> None:
    """Check that an assignment can be carried out.

    Raises:
        PolicyFailure: it names an unknown job, a GPU that does not exist, a GPU twice, a number of GPUs that a job
            cannot use, or a layout of which the table has no row.
    """
    views = {job.name: job for job in jobs}
    for name, gpus in assignment.items():
        view = views.get(name)
        if view is None:
            raise _infeasible(f"job {shown(name)}: expected one that runs or waits")
        if gpus and not view.gpus_min <= len(gpus) <= view.gpus_max:
            raise _infeasible(
                f"job {shown(name)}: GPUs: expected {view.gpus_min} to {view.gpus_max}, got {len(gpus)}"
            )
    try:
        gpu_owners(cluster, assignment)
    except UsageError as error:
        raise _infeasible(str(error)) from None
    for name, gpus in assignment.items():
        # A job that stays where it is was put there by an earlier decision.
        if gpus and gpus != views[name].gpus:
            _check_layout(cluster, views[name], gpus)


def _check_layout(cluster: Cluster, view: JobView, gpus: Sequence[int]) -> None:
    """Check that the table has a row for a job of a table on these GPUs."""
    if not isinstance(view.times, TableTimed):
        return
    counts: dict[int, int] = {}
    for gpu in gpus:
        counts[cluster.gpus[gpu][0]] = counts.get(cluster.gpus[gpu][0], 0) + 1
    layout = Layout(view.times.model_name, len(gpus), len(counts))
    if len(set(counts.values())) > 1 or layout not in view.times.model.table.samples_per_s:
        raise _infeasible(
            f"job {shown(view.name)}: expected the same number of GPUs on each of some nodes, "
            f"as in a row of the table, got {list(counts.values())} of {layout.model}"
        )


def _infeasible(text: str) -> PolicyFailure:
    return PolicyFailure(FailureReason.INFEASIBLE, text)


def _kind(value: object) -> str:
    return type(value).__name__


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
