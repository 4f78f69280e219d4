"""The time shifts of jobs that share links: set by a decision of Cassini, removed when a job is alone on its links."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from placement.cassini.placement_selection import PlacementChoice
from placement.service.context import ServiceContext
from placement.service.decisions.candidates import CassiniRequest, request_for_links
from placement.service.lifecycle import JobLifecycle
from placement.service.state.job_record import JobRecord

INLINE_JOBS = 16
"""Up to this number of connected jobs Cassini runs in the event loop, as handing it to a thread would take longer."""


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
