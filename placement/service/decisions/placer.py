"""Places what waits, as soon as it fits; one job after the other, and one decision at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache

from placement.service.context import ServiceContext
from placement.service.decisions.cassini_request import request_for_links
from placement.service.decisions.decision import carry_out, decide, shift, solve, unshift_alone
from placement.service.decisions.policy import ServicePolicy, parse_policy
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.request_error import ErrorCode, RequestError
from placement.service.state.capacity import no_room
from placement.service.state.job_record import JobRecord, ResourceClass

policy_named = lru_cache(maxsize=64)(parse_policy)

_WAITING = (pb.REGISTERED, pb.QUEUED)


class Placer:
    """The only one that gives slots to jobs.

    Args:
        context: the state.
        on_placed: called with each job that was placed.
    """

    def __init__(self, context: ServiceContext, on_placed: Callable[[JobRecord], None]) -> None:
        self._context = context
        self._on_placed = on_placed
        self._deciding = asyncio.Lock()
        self._has_work = asyncio.Event()
        self._full: set[ResourceClass] = set()

    def more_jobs(self) -> None:
        """A job has come: look whether it fits."""
        self._has_work.set()

    def more_room(self) -> None:
        """Slots have become free, or known: look again for all that wait."""
        self._full.clear()
        self._has_work.set()

    def policy_of(self, job: JobRecord, asked: str = "") -> ServicePolicy:
        """The policy that a job is to be placed by: the one asked for now, its own, or the service's."""
        return policy_named(asked or job.spec.policy or self._context.rules.policy)

    async def place_waiting(self) -> None:
        """Place jobs for ever."""
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            await self._place_all()

    async def place(self, job_id: str, asked: str) -> None:
        """Place a job now.

        Raises:
            RequestError: there is no room for it, the policy cannot place it, or it does not wait any more.
        """
        async with self._deciding:
            job = self._context.registry.jobs[job_id]
            if not await self._try(job, self.policy_of(job, asked)):
                raise no_room(self._context.registry, job)

    async def shift_anew(self, links: tuple[str, ...]) -> None:
        """Work out the time shifts of the jobs around these links again: one of them is not what it was."""
        async with self._deciding:
            request = request_for_links(self._context.registry, links)
            if request is not None:
                choice = await solve(request)
                now_ns = self._context.clock.now_ns()
                self._context.save(shift(self._context.registry, request.demands, choice, now_ns))
            self.unshift_alone(links)

    def unshift_alone(self, links: tuple[str, ...]) -> None:
        """Take the time shifts of jobs that are alone on these links now."""
        self._context.save(unshift_alone(self._context.registry, links))

    async def _place_all(self) -> None:
        while (job := self._next()) is not None:
            async with self._deciding:
                await self._try_waiting(job.id)
            await asyncio.sleep(0)

    def _next(self) -> JobRecord | None:
        registry = self._context.registry
        for job_id, resource_class in registry.waiting.heads():
            if resource_class not in self._full:
                return registry.jobs[job_id]
        return None

    async def _try_waiting(self, job_id: str) -> None:
        job = self._context.registry.jobs[job_id]
        if job.state != pb.QUEUED:
            return
        try:
            placed = await self._try(job, self.policy_of(job))
        except RequestError:
            placed = False  # it waits until something changes; Explain tells what for
        if not placed:
            self._full.add(self._context.registry.resource_class(job))

    async def _try(self, job: JobRecord, chosen: ServicePolicy) -> bool:
        context = self._context
        decision = await decide(context.registry, job, chosen, context.clock.now_ns())
        if decision is None:
            return False
        now = context.registry.jobs[job.id]
        if now.state not in _WAITING:
            raise RequestError(ErrorCode.STATE, "job_id", f"is {job.id!r}, which was released meanwhile")
        changed = carry_out(context.registry, decision, context.clock.now_ns())
        context.save(changed)
        context.remember(changed[0], decision.explanation)
        self._on_placed(changed[0])
        return True
