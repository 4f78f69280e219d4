"""What decides about waiting jobs: the interface, and jobs that are placed one by one, each by a policy and Cassini."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import abstractmethod
from functools import lru_cache
from typing import Protocol

from mltcp.core.errors import UsageError
from mltcp.core.one_line import one_line
from placement.service.context import ServiceContext
from placement.service.decisions.candidates import candidates
from placement.service.decisions.explanation import does_not_fit, explain_placement, explain_unplaced
from placement.service.decisions.policy import ServicePolicy, check_policy, parse_policy
from placement.service.decisions.time_shifts import TimeShifts, request_for_job, solve
from placement.service.lifecycle import JobLifecycle
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import ErrorCode, RequestError, invalid
from placement.service.state.job_record import JobRecord, ResourceClass, wrong_state


class Dispatcher(Protocol):
    """Gives slots to waiting jobs whenever something changes; the life cycle tells it of each change of a job."""

    async def prepare(self) -> None:
        """Get ready for the first decision. Raises `MltcpError`: that fails."""
        return None

    @abstractmethod
    async def run(self) -> None:
        """Decide whenever that is due; never returns."""

    @abstractmethod
    def capacity_changed(self, cause: str) -> None:
        """Notify that slots were freed or added."""

    @abstractmethod
    async def place(self, job: JobRecord, asked: str) -> None:
        """Place a job now if it waits, by the policy asked for if any. Raises `RequestError`: it is not placed."""

    @abstractmethod
    def why_waiting(self, job: JobRecord) -> pb.ExplainReply:
        """The explanation of a job that has not been placed."""

    def note(self, job: JobRecord) -> str:
        """A remark on the last decision about a job, for people; empty: none."""
        return ""

    def status(self) -> pb.DecisionStatus | None:
        """The state of decisions about all jobs; None where jobs are placed one by one."""
        return None

    def promote(self, back: bool) -> pb.DecisionStatus:
        """Make the shadow the policy, or the former policy again. Raises `RequestError`: that cannot be."""
        raise RequestError(
            ErrorCode.STATE, "back", "expected a service with a shadow (serve --shadow), got one without"
        )

    async def close(self) -> None:
        """End its processes."""
        return None


# --------------------------------------------------------------------------------------------------- jobs one by one


policy_named = lru_cache(maxsize=64)(parse_policy)

_log = logging.getLogger("mltcp.placement")

_WAITING = (pb.REGISTERED, pb.QUEUED)


class Placer(Dispatcher):
    """Assigns slots to jobs: to waiting ones whenever something changes, and to single ones on request.

    Args:
        context: the service's state.
        lifecycle: changes the jobs.
        shifts: their time shifts.
    """

    def __init__(self, context: ServiceContext, lifecycle: JobLifecycle, shifts: TimeShifts) -> None:
        self._context, self._registry = context, context.registry
        self._lifecycle, self._shifts = lifecycle, shifts
        self._has_work = asyncio.Event()
        self._full: set[ResourceClass] = set()
        lifecycle.subscribe(self._job_changed)

    async def run(self) -> None:
        """See `Dispatcher`."""
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            while (job := self._next()) is not None:
                async with self._shifts.deciding:
                    await self._try_waiting(job.id)
                await asyncio.sleep(0)

    def capacity_changed(self, cause: str) -> None:
        """See `Dispatcher`: resource classes that did not fit are tried again."""
        self._full.clear()
        self._has_work.set()

    async def place(self, job: JobRecord, asked: str) -> None:
        """See `Dispatcher`."""
        if asked:
            check_policy(policy_named(asked), job.spec, "policy")
        if job.placed and asked in ("", job.policy):
            return
        if job.placed or job.over:
            raise wrong_state("job_id", job, "REGISTERED or QUEUED")
        async with self._shifts.deciding:
            present = self._registry.jobs[job.id]
            if not await self._decide(present, self._policy_of(present, asked)):
                raise does_not_fit(self._registry, present)

    def why_waiting(self, job: JobRecord) -> pb.ExplainReply:
        """See `Dispatcher`."""
        first = self._first() if job.state == pb.QUEUED else None
        return explain_unplaced(
            *(self._registry, job, self._context.clock.now_ns()),
            first if self._waits_for(job, first) else None,
        )

    def _job_changed(self, before: JobRecord | None, job: JobRecord) -> None:
        if job.over or (before is not None and before.placed and not job.placed):
            self.capacity_changed("a job gave its slots back")
        elif job.state == pb.QUEUED and (before is None or before.state == pb.REGISTERED):
            self._has_work.set()

    def _next(self) -> JobRecord | None:
        """The waiting job to be tried next; None: no other one can fit."""
        registry, first = self._registry, self._first()
        if first is not None and registry.resource_class(first) not in self._full:
            return first
        for job_id, resource_class in registry.waiting.heads(self._context.clock.now_ns()):
            job = registry.jobs[job_id]
            if resource_class not in self._full and not self._waits_for(job, first):
                return job
        return None

    def _first(self) -> JobRecord | None:
        """The job that has waited longest, if longer than the service's patience: smaller ones could starve it."""
        oldest = self._registry.waiting.oldest()
        if oldest is None:
            return None
        job_id, submitted_ns = oldest
        waited_s = (self._context.clock.now_ns() - submitted_ns) / 1e9
        return self._registry.jobs[job_id] if waited_s > self._context.rules.patience_s else None

    def _waits_for(self, job: JobRecord, first: JobRecord | None) -> bool:
        """Whether a waiting job is not placed before the one that has waited longest."""
        if first is None or job.id == first.id or job.deadline_ns is not None:
            return False
        return self._registry.pool(job) is self._registry.pool(first)

    def _policy_of(self, job: JobRecord, asked: str = "") -> ServicePolicy:
        """The policy for a job: the requested one if given, else the job's own, else the service's."""
        return policy_named(asked or job.spec.policy or self._context.rules.policy)

    async def _try_waiting(self, job_id: str) -> None:
        job = self._registry.jobs[job_id]
        if job.state != pb.QUEUED:
            return
        try:
            placed = await self._decide(job, self._policy_of(job))
        except RequestError:
            placed = False  # it waits until capacity changes; Explain reports what it needs
        except Exception:  # of one job; the others are placed nevertheless
            _log.exception("job %s: no decision was made", one_line(job_id))
            self._context.counts.failed_decisions += 1
            placed = False
        if not placed:
            self._full.add(self._registry.resource_class(job))

    async def _decide(self, job: JobRecord, policy: ServicePolicy) -> bool:
        """One decision; False: the job does not fit.

        Raises:
            RequestError: the policy cannot place this job, or it was released meanwhile.
        """
        began_ns, now_ns = time.perf_counter_ns(), self._context.clock.now_ns()
        # 1. The placements that the policy considers equally good.
        try:
            considered = candidates(self._registry, job, policy, now_ns)
        except UsageError as error:
            raise invalid(
                "policy", f"expected one that can place the job, got {policy.name!r}: {error}"
            ) from None
        if not considered:
            return False
        # 2. Cassini's choice among them, on a snapshot of the links and the jobs that they carry.
        request = choice = None
        if policy.cassini and job.demand is not None:
            request = request_for_job(self._registry, job, considered)
            choice = await solve(request)
        took_ns = time.perf_counter_ns() - began_ns
        self._context.counts.decided(took_ns, choice.links if choice else ())
        explained = explain_placement(self._registry, job, policy, considered, choice, took_ns, now_ns)
        # 3. The job may have been released while Cassini chose; slots are given by decisions only.
        present = self._registry.jobs[job.id]
        if present.state not in _WAITING:
            raise wrong_state("job_id", present, "REGISTERED or QUEUED")
        # 4. The job gets its slots, and the jobs around it their time shifts.
        self._context.remember(present, explained)
        self._lifecycle.place(present, policy.name, considered[choice.candidate if choice else 0].slots)
        if request is not None and choice is not None:
            self._shifts.shift(request.demands, choice)
        return True
