"""Checks an assignment before anything is done about it, whoever made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mltcp.core.errors import UsageError, shown
from placement.model.cluster import Cluster
from placement.model.throughput_table import Layout
from placement.policies.schedulers.contention.profiles import TableTimed
from placement.policies.schedulers.scheduler import Assignment, JobView, gpu_owners
from placement.service.deciding.failure import FailureReason, PolicyFailure


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
    counts = cluster.by_node(gpus)
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
