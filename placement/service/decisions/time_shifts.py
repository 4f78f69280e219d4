"""Requests to Cassini, and the time shifts that follow: of jobs that share links, until one is alone on its links."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mltcp.core.demand import Demand
from placement.cassini.circle import KEPT_TOLERANCE
from placement.cassini.placement_selection import PlacementChoice, Traffic, choose_placement
from placement.service.context import ServiceContext
from placement.service.decisions.candidates import Candidate
from placement.service.lifecycle import JobLifecycle
from placement.service.state.job_record import JobRecord
from placement.service.state.registry import Registry

INLINE_JOBS = 16
"""Up to this number of connected jobs Cassini runs in the event loop, as handing it to a thread would take longer."""


MOST_COMPARED = 16
"""With more connected jobs than this, candidates are compared by the links that they use themselves only."""


@dataclass(frozen=True)
class CassiniRequest:
    """The input of Cassini's search, copied from the registry so that another thread can solve it.

    Attributes:
        traffic: for each candidate, the coordinated jobs of each link that the candidate uses or that is connected.
        touched: the links that any candidate uses itself.
        demands: the demand of each of these jobs.
        capacities_bps: the capacity of each of these links.
    """

    traffic: Sequence[Mapping[str, Sequence[str]]]
    touched: frozenset[str]
    demands: Mapping[str, Demand]
    capacities_bps: Mapping[str, int]

    def solve(self) -> PlacementChoice:
        """Choose a candidate and the time shifts by Algorithm 2 of Cassini.

        Without loops in the affinity graph, links that no candidate touches have the same score under all candidates.
        With many connected jobs, the candidates are therefore compared by the touched links only, and time shifts are
        computed for the chosen candidate.
        """
        if len(self.traffic) == 1 or len(self.demands) <= MOST_COMPARED:
            return self._choose(self.traffic)
        near = [{link: jobs for link, jobs in each.items() if link in self.touched} for each in self.traffic]
        compared = self._choose(near)
        whole = self._choose([self.traffic[compared.candidate]])
        links = tuple(each for each in whole.links if each.link in self.touched)
        return replace(compared, shifts_ns=whole.shifts_ns, tied=whole.tied, links=links)

    def _choose(self, traffic: Sequence[Traffic]) -> PlacementChoice:
        return choose_placement(
            traffic, self.demands, self.capacities_bps, tolerance=KEPT_TOLERANCE, timed=True
        )


def request_for_job(registry: Registry, job: JobRecord, candidates: Sequence[Candidate]) -> CassiniRequest:
    """The request for placing a job that has a profile.

    All candidates are scored on the same links, so that their mean scores are comparable: on those that are connected
    with any link that the job would use under any candidate.
    """
    touched = frozenset(link for each in candidates for link in each.links)
    around = registry.traffic_around(touched)
    return CassiniRequest(
        [_with(around, job.id, candidate.links) for candidate in candidates],
        touched,
        _demands(registry, around) | ({job.id: job.demand} if job.demand is not None else {}),
        registry.capacities_bps(around),
    )


def request_for_links(registry: Registry, links: Sequence[str]) -> CassiniRequest | None:
    """The request for recomputing the time shifts around these links; None if no jobs share any."""
    around = registry.traffic_around(links)
    if not any(len(jobs) > 1 for jobs in around.values()):
        return None
    return CassiniRequest(
        [around], frozenset(around), _demands(registry, around), registry.capacities_bps(around)
    )


def _with(around: Mapping[str, list[str]], job_id: str, links: Sequence[str]) -> dict[str, list[str]]:
    return {link: [*jobs, job_id] if link in links else jobs for link, jobs in around.items()}


def _demands(registry: Registry, around: Mapping[str, list[str]]) -> dict[str, Demand]:
    jobs = {job_id: registry.jobs[job_id] for listed in around.values() for job_id in listed}
    return {job.id: job.demand for job in jobs.values() if job.demand is not None}


class TimeShifts:
    """The time shifts of the jobs of a service.

    Attributes:
        deciding: is held by each decision, so that none is made on the shifts that another one is about to replace.

    Args:
        context: the service's state.
        lifecycle: changes the jobs.
    """

    def __init__(self, context: ServiceContext, lifecycle: JobLifecycle) -> None:
        self.deciding = asyncio.Lock()
        self._context, self._registry, self._lifecycle = context, context.registry, lifecycle
        lifecycle.subscribe(self._job_changed)

    async def recompute(self, links: tuple[str, ...]) -> None:
        """Recompute the time shifts of all jobs connected with these links, after the profile of one changed."""
        async with self.deciding:
            request = request_for_links(self._registry, links)
            if request is not None:
                self.shift(request.demands, await solve(request))
            self._unshift_alone(links)

    def shift(self, connected: Iterable[str], choice: PlacementChoice) -> None:
        """Set or remove the time shifts of connected jobs.

        Jobs that are shifted against each other get a common `turn`, which no earlier decision has used.
        """
        now_ns = self._context.clock.now_ns()
        tied = {job: f"{group[0]}@{now_ns}" for group in choice.tied for job in group}
        for job_id in connected:
            job, turn = self._registry.jobs[job_id], tied.get(job_id, "")
            shift_ns = choice.shifts_ns.get(job_id) if turn else None
            if job.placed and (job.shift_ns, job.turn) != (shift_ns, turn):
                self._lifecycle.change(job, shift_ns=shift_ns, turn=turn)

    def _job_changed(self, before: JobRecord | None, job: JobRecord) -> None:
        if before is not None and before.placed and not job.placed:
            self._unshift_alone(before.links)

    def _unshift_alone(self, links: tuple[str, ...]) -> None:
        """Remove the time shifts of jobs that no longer share any link."""
        around = self._registry.traffic_around(links)
        sharing = {job for jobs in around.values() if len(jobs) > 1 for job in jobs}
        alone = {job for jobs in around.values() for job in jobs} - sharing
        for job in (self._registry.jobs[job_id] for job_id in sorted(alone)):
            if job.shift_ns is not None:
                self._lifecycle.change(job, shift_ns=None, turn="")


async def solve(request: CassiniRequest) -> PlacementChoice:
    """Solve a request, in another thread if it has many jobs."""
    if len(request.demands) <= INLINE_JOBS:
        return request.solve()
    return await asyncio.to_thread(request.solve)
