"""The common part of elastic schedulers: GPUs that are left over, and places for new shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placement.model.cluster import Cluster
from placement.policies.schedulers.drs.allocation import FreeGpus
from placement.policies.schedulers.elastic.speeds import Speeds, Step
from placement.policies.schedulers.scheduler import Assignment, JobView


def largest_node(cluster: Cluster) -> int:
    """The GPUs of the largest node."""
    return max(len(server.gpus) for server in cluster.servers)


def end_ns(job: JobView, now_ns: int, gpus: int, one_node: bool) -> int:
    """T_end on so many GPUs from now on; a restart counts if their number changes."""
    return now_ns + restart_of(job, gpus) + job.run_ns(gpus, one_node)


def restart_of(job: JobView, gpus: int) -> int:
    """The time for which the job would hold so many GPUs before it goes on."""
    return job.restart_left_ns if gpus == len(job.gpus) else job.restart_ns


def fewest_in_time(job: JobView, speeds: Speeds, now_ns: int, deadline_ns: int) -> int | None:
    """The fewest GPUs that meet the deadline, restart included; None if none do."""
    slack_ns = deadline_ns - now_ns
    found = speeds.within(slack_ns - job.restart_ns, job.iterations_left)
    present = len(job.gpus)
    if present and (found is None or present < found):
        kept = speeds.within(slack_ns - job.restart_left_ns, job.iterations_left)
        if kept is not None and kept <= present:
            return present
    return found


def work_ns(job: JobView, speeds: Speeds, gpus: int) -> int:
    """The GPU time that is left of the job on so many GPUs, restart included."""
    run_ns = -int(-(job.iterations_left * speeds.time_ns(gpus)) // 1)
    return gpus * (run_ns + restart_of(job, gpus))


def give_left_over(shares: dict[str, int], jobs: Sequence[tuple[JobView, Speeds]], left: int) -> int:
    """Give GPUs that are left, step by step, where the gain in speed per GPU is greatest; the first job of equals.

    Returns how many nobody can use.

    Args:
        shares: the number of GPUs of every job; is changed.
        jobs: in the order of precedence.
        left: the GPUs to give.
    """
    while left > 0:
        best: tuple[Step, str] | None = None
        for job, speeds in jobs:
            step = speeds.step(shares[job.name], left)
            if step is not None and (best is None or step.gain > best[0].gain):
                best = step, job.name
        if best is None:
            break
        step, name = best
        left -= step.gpus - shares[name]
        shares[name] = step.gpus
    return left


def placed(cluster: Cluster, jobs: Sequence[JobView], shares: Mapping[str, int]) -> Assignment:
    """Places for the shares: jobs whose number of GPUs does not change stay; the others by descending N.

    A job gets GPUs of one node if one has room, the tightest first, and else of several.
    """
    assignment = {job.name: job.gpus for job in jobs if job.gpus and len(job.gpus) == shares[job.name]}
    free = FreeGpus(cluster, assignment)
    moving = [job for job in jobs if shares[job.name] and job.name not in assignment]
    for job in sorted(moving, key=lambda job: -shares[job.name]):
        gpus = free.take_room(shares[job.name])
        assert gpus is not None, "the shares fit together"
        assignment[job.name] = gpus
    return assignment
