"""The scheme decision of DRS (3.1): how many GPUs a waiting job gets, on one node or across nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster
from placement.policies.schedulers.drs.migration import by_node
from placement.policies.schedulers.scheduler import JobView, progress


@dataclass(frozen=True)
class Scheme:
    """R_t: a number of GPUs and a kind.

    Attributes:
        gpus: N.
        cross_node: the kind; one GPU is never cross-node.
        end_ns: T_end, if the job started now.
    """

    gpus: int
    cross_node: bool
    end_ns: int


def decide(job: JobView, now_ns: int, free: Sequence[int]) -> Scheme | None:
    """The scheme of a waiting job; None if it cannot run on as few GPUs as are free.

    Only the multiset of `free`, the free GPUs of each node, counts.

    Raises:
        UsageError: the job has no deadline.
    """
    deadline_ns = deadline_of(job)
    single = schemes(job, now_ns, max(free), cross_node=False)
    across = schemes(job, now_ns, sum(free), cross_node=True) if sum(map(bool, free)) > 1 else []
    expected_across, expected_single = expected(across, deadline_ns), expected(single, deadline_ns)
    if expected_across is not None and _uses_fragment(free, expected_across.gpus):
        return expected_across
    if expected_single is not None:
        return expected_single
    late_across, late_single = late(across, deadline_ns), late(single, deadline_ns)
    if late_across is not None and _uses_fragment(free, late_across.gpus):
        return late_across
    return late_single


def schemes(job: JobView, now_ns: int, most: int, cross_node: bool) -> list[Scheme]:
    """The schemes of a kind with up to `most` GPUs that (11) lets pass, by their numbers of GPUs.

    (11) refuses GPUs that make the job slower than on the fewest that it can run on, which always pass.
    """
    found = []
    for gpus in range(job.gpus_min, min(most, job.gpus_max) + 1):
        one_node = not cross_node or gpus == 1
        if gpus == job.gpus_min or gains(job, gpus, one_node):
            found.append(Scheme(gpus, not one_node, now_ns + job.restart_ns + job.run_ns(gpus, one_node)))
    return found


def running_end_ns(cluster: Cluster, job: JobView, now_ns: int) -> int:
    """T_end of a job that runs."""
    one_node = len(by_node(cluster, job.gpus)) == 1
    return now_ns + job.restart_left_ns + job.run_ns(len(job.gpus), one_node)


def gains(job: JobView, gpus: int, one_node: bool) -> bool:
    """Whether the job is faster than on the fewest GPUs that it can run on: (10), and so (11)."""
    fewest = job.gpus_min
    time, fewest_time = job.times.iteration_ns(gpus, one_node), job.times.iteration_ns(fewest, True)
    return time * progress(job, fewest) < fewest_time * progress(job, gpus)


def expected(listed: Iterable[Scheme], deadline_ns: int) -> Scheme | None:
    """Of the schemes that meet the deadline, that with the largest PR = (T_dl - T_end) / N (12), or the fewest GPUs."""
    best: Scheme | None = None
    for each in listed:
        slack_ns = deadline_ns - each.end_ns
        if slack_ns >= 0 and (best is None or slack_ns * best.gpus > (deadline_ns - best.end_ns) * each.gpus):
            best = each
    return best


def late(listed: Iterable[Scheme], deadline_ns: int) -> Scheme | None:
    """Of the schemes that miss the deadline, that which ends first, or has the fewest GPUs."""
    return min(
        (each for each in listed if each.end_ns > deadline_ns),
        key=lambda each: (each.end_ns, each.gpus),
        default=None,
    )


def deadline_of(job: JobView) -> int:
    """T_dl.

    Raises:
        UsageError: the job has none.
    """
    if job.deadline_ns is None:
        raise UsageError(f"job {job.name!r}: deadline: expected one under this scheduler, got none")
    return job.deadline_ns


def _uses_fragment(free: Sequence[int], gpus: int) -> bool:
    """Whether some node has free GPUs, but fewer than so many."""
    return any(0 < count < gpus for count in free)
