"""Placement of waiting jobs, one decision at a time: made by a policy and Cassini, then applied to the registry."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from mltcp.core.errors import UsageError
from mltcp.core.one_line import one_line
from placement.cassini.placement_selection import PlacementChoice
from placement.service.context import ServiceContext
from placement.service.decisions.candidates import (
    CassiniRequest,
    candidates,
    request_for_job,
    request_for_links,
)
from placement.service.decisions.explanation import does_not_fit, explain_placement
from placement.service.decisions.policy import ServicePolicy, parse_policy
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import RequestError, invalid
from placement.service.state.job_record import JobRecord, ResourceClass, wrong_state
from placement.service.state.registry import Registry

INLINE_JOBS = 16
"""Up to this number of connected jobs Cassini runs in the event loop, as handing it to a thread would take longer."""


@dataclass(frozen=True)
class PlacementDecision:
    """The placement chosen for a job.

    Attributes:
        job_id: the job's id.
        policy: name of the policy that decided.
        slots: numbers of the chosen slots in the job's pool.
        explanation: the explanation for clients.
        connected: the jobs whose time shifts were recomputed, itself included.
        choice: Cassini's choice; None without Cassini.
    """

    job_id: str
    policy: str
    slots: tuple[int, ...]
    explanation: pb.ExplainReply
    connected: tuple[str, ...] = ()
    choice: PlacementChoice | None = None


async def decide(
    registry: Registry, job: JobRecord, policy: ServicePolicy, now_ns: int
) -> PlacementDecision | None:
    """Decide on a placement without changing the registry; None if the job does not fit.

    Raises:
        RequestError: the policy cannot place this job.
    """
    began_ns = time.perf_counter_ns()
    try:
        found = candidates(registry, job, policy, now_ns)
    except UsageError as error:
        raise invalid(
            "policy", f"expected one that can place the job, got {policy.name!r}: {error}"
        ) from None
    if not found:
        return None
    choice: PlacementChoice | None = None
    connected: tuple[str, ...] = ()
    if policy.cassini and job.demand is not None:
        request = request_for_job(registry, job, found)
        choice, connected = await solve(request), tuple(request.demands)
    taken = found[choice.candidate if choice else 0]
    took_ns = time.perf_counter_ns() - began_ns
    explained = explain_placement(registry, job, policy, found, choice, took_ns, now_ns)
    return PlacementDecision(job.id, policy.name, taken.slots, explained, connected, choice)


def carry_out(registry: Registry, decision: PlacementDecision, now_ns: int) -> list[JobRecord]:
    """Place the job and set the time shifts; returns all jobs that changed, the placed one first."""
    job = replace(registry.jobs[decision.job_id], policy=decision.policy)
    placed = registry.place(job, decision.slots, registry.links_of(job, decision.slots), now_ns)
    changed = shift(registry, decision.connected, decision.choice, now_ns) if decision.choice else []
    return [registry.jobs[placed.id], *(each for each in changed if each.id != placed.id)]


def shift(
    registry: Registry, connected: Iterable[str], choice: PlacementChoice, now_ns: int
) -> list[JobRecord]:
    """Set or remove the time shifts of connected jobs; returns the jobs that changed.

    Jobs that are shifted against each other get a common `turn`, which no earlier decision has used.
    """
    tied = {job: f"{turn[0]}@{now_ns}" for turn in choice.tied for job in turn}
    changed = []
    for job_id in connected:
        job = registry.jobs[job_id]
        turn = tied.get(job_id, "")
        shift_ns = choice.shifts_ns.get(job_id) if turn else None
        if job.placed and (job.shift_ns, job.turn) != (shift_ns, turn):
            registry.update(replace(job, shift_ns=shift_ns, turn=turn))
            changed.append(registry.jobs[job_id])
    return changed


def unshift_alone(registry: Registry, links: tuple[str, ...]) -> list[JobRecord]:
    """Remove the time shifts of jobs that no longer share any link; returns the jobs that changed."""
    around = registry.traffic_around(links)
    sharing = {job for jobs in around.values() if len(jobs) > 1 for job in jobs}
    alone = {job for jobs in around.values() for job in jobs} - sharing
    changed = []
    for job_id in sorted(alone):
        if registry.jobs[job_id].shift_ns is not None:
            registry.update(replace(registry.jobs[job_id], shift_ns=None, turn=""))
            changed.append(registry.jobs[job_id])
    return changed


async def solve(request: CassiniRequest) -> PlacementChoice:
    """Solve a request, in another thread if it has many jobs."""
    if len(request.demands) <= INLINE_JOBS:
        return request.solve()
    return await asyncio.to_thread(request.solve)


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
