"""Elastic schedulers: the GPUs of all jobs are divided anew whenever one arrives or ends.

By deadline, jobs get the fewest GPUs that meet theirs, in this order, and what is left speeds jobs up. By fairness, the
job that is farthest from fair gets the next GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster
from placement.policies.schedulers.admission import admitted
from placement.policies.schedulers.free_gpus import FreeGpus, largest_node
from placement.policies.schedulers.scheduler import (
    CANDIDATES,
    Assignment,
    JobView,
    Scheduler,
    Untimed,
    deadline_of,
)
from placement.policies.schedulers.speeds import LargerShare, Speeds, speeds_of

_Rated: TypeAlias = Sequence[tuple[JobView, Speeds]]

LEASE_NS = 1200 * 10**9
"""Between two divisions of Themis with leases."""

WEIGHT = 3
"""Of the work for each job given up, and one more; values from 2 to 6 are equally good on seeds 100 to 149."""


@dataclass(frozen=True)
class ElasticEdf(Untimed):
    """Elastic EDF, and the frame of elastic schedulers that go by deadline."""

    name = "elastic-edf"

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`. Jobs are in the order of their arrival, which decides between equals."""
        gpus, per_node = len(cluster.gpus), largest_node(cluster)
        ordered = [(job, speeds_of(job, gpus, per_node)) for job in sorted(jobs, key=deadline_of)]
        needs = {
            job.name: need
            for job, speeds in ordered
            if (need := fewest_in_time(job, speeds, now_ns, deadline_of(job))) is not None
        }
        shares = {job.name: 0 for job in jobs}
        left = gpus
        served = self.admitted(ordered, needs, now_ns, gpus)
        for job, _ in served:
            if needs[job.name] <= left:
                shares[job.name] = needs[job.name]
                left -= needs[job.name]
        for tier in self.tiers(ordered, served, needs):
            left = give_left_over(shares, tier, left)
        return (placed(cluster, jobs, shares),)

    def admitted(self, ordered: _Rated, needs: dict[str, int], now_ns: int, gpus: int) -> _Rated:
        """The jobs that get what they need while it lasts, in this order: all that can meet their deadlines."""
        return [each for each in ordered if each[0].name in needs]

    def tiers(self, ordered: _Rated, served: _Rated, needs: dict[str, int]) -> Sequence[_Rated]:
        """Groups of jobs that get what is left over, one after the other: all jobs are alike."""
        return (ordered,)


@dataclass(frozen=True)
class ElasticMh(ElasticEdf):
    """Elastic EDF that gives up the largest jobs first when not all deadlines can be met (Moore and Hodgson).

    The machine of the rule is the whole cluster, and the work of a job is its GPUs times its time on them.
    """

    name = "elastic-mh"

    def admitted(self, ordered: _Rated, needs: dict[str, int], now_ns: int, gpus: int) -> _Rated:
        """The jobs whose work fits before their deadlines; what the dropped ones get is what is left over."""
        possible = [each for each in ordered if each[0].name in needs]
        chosen = admitted(
            (work_ns(job, speeds, needs[job.name]), gpus * (deadline_of(job) - now_ns))
            for job, speeds in possible
        )
        return [possible[position] for position in chosen]


@dataclass(frozen=True)
class ElasticDensity(ElasticMh):
    """Elastic EDF with admission that serves small jobs early, the more so the more jobs are given up.

    In the order of deadlines alone, GPUs go to large jobs that later arrivals displace: their GPU time is lost. So the
    order of service is the time until the deadline plus the job's work, in hours of the whole cluster, times a weight.
    The weight grows with the number of jobs that Moore and Hodgson's rule gives up, that is, with the overload: without
    overload deadlines decide, under heavy overload the work does.

    Attributes:
        weight: of the work of a job against the time until its deadline, per job given up, and one more.
    """

    name = "elastic-density"
    weight: int = WEIGHT

    def admitted(self, ordered: _Rated, needs: dict[str, int], now_ns: int, gpus: int) -> _Rated:
        """The jobs whose work fits before their deadlines, by deadline and work."""
        kept = super().admitted(ordered, needs, now_ns, gpus)
        weight = self.weight * (1 + len(needs) - len(kept))

        def rank(each: tuple[JobView, Speeds]) -> int:
            job, speeds = each
            return gpus * (deadline_of(job) - now_ns) + weight * work_ns(job, speeds, needs[job.name])

        return sorted(kept, key=rank)

    def tiers(self, ordered: _Rated, served: _Rated, needs: dict[str, int]) -> Sequence[_Rated]:
        """The admitted jobs, those that were given up, and those that are late anyway."""
        names = {job.name for job, _ in served}
        given_up = [each for each in ordered if each[0].name in needs and each[0].name not in names]
        late = [each for each in ordered if each[0].name not in needs]
        return served, given_up, late


# -- by fairness -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ThemisLeases:
    """Finish-time fairness by leases, without auctions: the job that is farthest from fair gets the next GPU.

    rho is the time from a job's arrival to its end over its run time on one GPU. All GPUs are divided anew, one by one,
    at every arrival and end and whenever a lease ends. `themis` is the scheduler with auctions.

    Attributes:
        lease_every_ns: the time between two divisions, if no job arrives or ends.

    Raises:
        UsageError: it is not positive.
    """

    name = "themis-leases"
    lease_every_ns: int = LEASE_NS

    def __post_init__(self) -> None:
        if self.lease_every_ns <= 0:
            raise UsageError(
                f"themis-leases: lease_every_ns: expected more than 0, got {self.lease_every_ns}"
            )

    @property
    def lease_ns(self) -> int | None:
        """No job keeps its GPUs for certain: arrivals and ends divide all anew."""
        return None

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`. Jobs are in the order of their arrival, which decides between equals."""
        gpus, per_node = len(cluster.gpus), largest_node(cluster)
        contenders = [_Contender(job, speeds_of(job, gpus, per_node), now_ns) for job in jobs]
        left = gpus
        while left > 0:
            growing = [each for each in contenders if each.next_step(left) is not None]
            if not growing:
                break
            left -= max(growing, key=lambda each: each.unfairness).grow(left)
        return (placed(cluster, jobs, {each.job.name: each.gpus for each in contenders}),)

    def next_ns(self, now_ns: int, jobs: Sequence[JobView]) -> int | None:
        """The next multiple of the lease, while there are jobs."""
        return (now_ns // self.lease_every_ns + 1) * self.lease_every_ns if jobs else None


class _Contender:
    """A job and the GPUs that it has been given so far."""

    def __init__(self, job: JobView, speeds: Speeds, now_ns: int) -> None:
        self.job, self.gpus = job, 0
        self._speeds, self._age_ns = speeds, now_ns - job.arrival_ns
        self.unfairness = self._unfairness()

    def next_step(self, left: int) -> int | None:
        """The next larger number of GPUs that shortens the job, of at most `left` more."""
        larger = self._speeds.shorter(self.gpus)
        return larger if larger is not None and larger - self.gpus <= left else None

    def grow(self, left: int) -> int:
        """Take that step; returns the number of GPUs added."""
        larger = self.next_step(left)
        assert larger is not None
        added, self.gpus = larger - self.gpus, larger
        self.unfairness = self._unfairness()
        return added

    def _unfairness(self) -> tuple[bool, float]:
        """Whether the job has no GPUs, and rho: with those that it has, or the fewest."""
        gpus = self.gpus or self._speeds.fewest
        job, alone_ns = self.job, self.job.iterations * self._speeds.time_ns(self._speeds.fewest)
        remaining_ns = restart_of(job, gpus) + job.iterations_left * self._speeds.time_ns(gpus)
        return self.gpus == 0, float((self._age_ns + remaining_ns) / alone_ns)


# -- shares ------------------------------------------------------------------------------------------------------------


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


def give_left_over(shares: dict[str, int], jobs: _Rated, left: int) -> int:
    """Give GPUs that are left, step by step, where the gain in speed per GPU is greatest; the first job of equals.

    Returns how many nobody can use.

    Args:
        shares: the number of GPUs of every job; is changed.
        jobs: in the order of precedence.
        left: the GPUs to give.
    """
    while left > 0:
        best: tuple[LargerShare, str] | None = None
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


# -- places ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LeastMoves:
    """Decides as another scheduler does, and places the shares by `least_moves`.

    Attributes:
        scheduler: it must look at the numbers of GPUs alone; one that sends jobs back to the queue is not supported.
    """

    scheduler: Scheduler

    @property
    def name(self) -> str:
        """The name of the scheduler."""
        return self.scheduler.name

    @property
    def lease_ns(self) -> int | None:
        """See `Scheduler`."""
        return self.scheduler.lease_ns

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler`."""
        held = {job.name: job.gpus for job in jobs if job.gpus}
        return tuple(
            least_moves(held, {job: len(gpus) for job, gpus in assignment.items()}, len(cluster.gpus))
            for assignment in self.scheduler.candidates(cluster, now_ns, jobs, most)
        )

    def next_ns(self, now_ns: int, jobs: Sequence[JobView]) -> int | None:
        """See `Scheduler`."""
        return self.scheduler.next_ns(now_ns, jobs)


def least_moves(held: Mapping[str, Sequence[int]], shares: Mapping[str, int], gpus: int) -> Assignment:
    """Places for the shares: a job that grows keeps all of its GPUs, and one that shrinks keeps some of them.

    Args:
        held: the GPUs of the jobs that have any.
        shares: the number of GPUs of every job that is to have any; together no more than there are.
        gpus: of the cluster.
    """
    kept = {job: tuple(held.get(job, ()))[:share] for job, share in shares.items() if share}
    taken = {gpu for places in kept.values() for gpu in places}
    free = iter([gpu for gpu in range(gpus) if gpu not in taken])
    return {
        job: tuple(sorted((*places, *(next(free) for _ in range(shares[job] - len(places))))))
        for job, places in kept.items()
    }
