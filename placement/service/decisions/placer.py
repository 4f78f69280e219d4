"""Placement of waiting jobs, one decision at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import lru_cache

from mltcp.core.one_line import one_line
from placement.service.context import ServiceContext
from placement.service.decisions.cassini_request import request_for_links
from placement.service.decisions.decision import carry_out, decide, shift, solve, unshift_alone
from placement.service.decisions.policy import ServicePolicy, parse_policy
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.request_error import RequestError
from placement.service.state.capacity import does_not_fit
from placement.service.state.job_record import JobRecord, ResourceClass, wrong_state

policy_named = lru_cache(maxsize=64)(parse_policy)

_log = logging.getLogger("mltcp.placement")

_WAITING = (pb.REGISTERED, pb.QUEUED)


class Placer:
    """Assigns slots to jobs: to waiting ones whenever something changes, and to single ones on request.

    Args:
        context: the service's state.
        on_placed: called with each placed job.
    """

    def __init__(self, context: ServiceContext, on_placed: Callable[[JobRecord], None]) -> None:
        self._context = context
        self._on_placed = on_placed
        self._deciding = asyncio.Lock()
        self._has_work = asyncio.Event()
        self._full: set[ResourceClass] = set()

    def job_queued(self) -> None:
        """Notify that a job was queued."""
        self._has_work.set()

    def capacity_changed(self) -> None:
        """Notify that slots were freed or added: resource classes that did not fit are tried again."""
        self._full.clear()
        self._has_work.set()

    def policy_of(self, job: JobRecord, asked: str = "") -> ServicePolicy:
        """The policy for a job: the requested one if given, else the job's own, else the service's."""
        return policy_named(asked or job.spec.policy or self._context.rules.policy)

    async def place_waiting(self) -> None:
        """Place waiting jobs whenever notified; never returns."""
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            await self._place_all()

    async def place(self, job_id: str, asked: str) -> None:
        """Place a job now.

        Raises:
            RequestError: it does not fit, the policy cannot place it, or it was released meanwhile.
        """
        async with self._deciding:
            job = self._context.registry.jobs[job_id]
            if not await self._try(job, self.policy_of(job, asked)):
                raise does_not_fit(self._context.registry, job)

    async def shift_anew(self, links: tuple[str, ...]) -> None:
        """Recompute the time shifts of all jobs connected with these links, after the profile of one changed."""
        async with self._deciding:
            request = request_for_links(self._context.registry, links)
            if request is not None:
                choice = await solve(request)
                now_ns = self._context.clock.now_ns()
                self._context.save(shift(self._context.registry, request.demands, choice, now_ns))
            self.unshift_alone(links)

    def unshift_alone(self, links: tuple[str, ...]) -> None:
        """Remove the time shifts of jobs that no longer share any link."""
        self._context.save(unshift_alone(self._context.registry, links))

    async def _place_all(self) -> None:
        while (job := self._next()) is not None:
            async with self._deciding:
                await self._try_waiting(job.id)
            await asyncio.sleep(0)

    def _next(self) -> JobRecord | None:
        registry = self._context.registry
        first = self.first()
        if first is not None and registry.resource_class(first) not in self._full:
            return first
        for job_id, resource_class in registry.waiting.heads(self._context.clock.now_ns()):
            job = registry.jobs[job_id]
            if resource_class not in self._full and not self._waits_for(job, first):
                return job
        return None

    def first(self) -> JobRecord | None:
        """The job that has waited longest, if longer than the service's patience: smaller ones could starve it."""
        registry = self._context.registry
        oldest = registry.waiting.oldest()
        if oldest is None:
            return None
        job_id, submitted_ns = oldest
        waited_s = (self._context.clock.now_ns() - submitted_ns) / 1e9
        return registry.jobs[job_id] if waited_s > self._context.rules.patience_s else None

    def waits_for(self, job: JobRecord) -> JobRecord | None:
        """The job that must be placed before a waiting one, if there is one."""
        first = self.first()
        return first if self._waits_for(job, first) else None

    def _waits_for(self, job: JobRecord, first: JobRecord | None) -> bool:
        if first is None or job.id == first.id or job.deadline_ns is not None:
            return False
        return self._context.registry.pool(job) is self._context.registry.pool(first)

    async def _try_waiting(self, job_id: str) -> None:
        job = self._context.registry.jobs[job_id]
        if job.state != pb.QUEUED:
            return
        try:
            placed = await self._try(job, self.policy_of(job))
        except RequestError:
            placed = False  # it waits until capacity changes; Explain reports what it needs
        except Exception:  # of one job; the others are placed nevertheless
            _log.exception("job %s: no decision was made", one_line(job_id))
            placed = False
        if not placed:
            self._full.add(self._context.registry.resource_class(job))

    async def _try(self, job: JobRecord, chosen: ServicePolicy) -> bool:
        context = self._context
        decision = await decide(context.registry, job, chosen, context.clock.now_ns())
        if decision is None:
            return False
        now = context.registry.jobs[job.id]
        if now.state not in _WAITING:
            raise wrong_state("job_id", now, "REGISTERED or QUEUED")
        changed = carry_out(context.registry, decision, context.clock.now_ns())
        context.save(changed)
        context.remember(changed[0], decision.explanation)
        self._on_placed(changed[0])
        return True
