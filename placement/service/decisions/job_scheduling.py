"""Schedulers of whole jobs in the service: all running and waiting jobs are assigned slots at once, and moved.

It is the live counterpart of `placement.simulator.cluster_run.ClusterRun`. A decision has two parts, since a job gives
its slots back only when its processes have ended: jobs that are assigned other slots are stopped, and jobs whose slots
are free are started; when all stopped jobs have gone, the others are started as decided. There is no other decision
until then, so a job is never asked to stop while it, or another one, is being stopped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mltcp.core.errors import MltcpError
from mltcp.core.one_line import one_line
from placement.policies.schedulers.scheduler import JobView, Scheduler, gpu_owners
from placement.service.context import ServiceContext
from placement.service.decisions.cluster_views import ClusterView, cluster_view
from placement.service.decisions.explanation import deadline_text
from placement.service.decisions.job_views import FOREVER_NS, job_view
from placement.service.protocol import placement_pb2 as pb
from placement.service.state.job_record import JobRecord

_LONGEST_NS = 3600 * 10**9
_NO_SERVERS = "waits: no server is in use"
_log = logging.getLogger("mltcp.placement")


@dataclass
class _Plan:
    """A decision that is being carried out.

    Attributes:
        cause: the event that it followed.
        slots: that jobs are to be started on, of those that have not been started yet.
        took_ns: the time that it took.
    """

    cause: str
    slots: dict[str, tuple[int, ...]] = field(default_factory=dict)
    took_ns: int = 0


class JobScheduling:
    """Assigns slots to all elastic jobs by a scheduler of whole jobs, and moves those that run.

    Attributes:
        waiting: why each job waits that waited at the last decision.

    Args:
        context: the service's state.
        scheduler: decides.
        on_placed: called with each job that has been given slots.
        requeue: stops a job that runs; it is queued again when its processes have ended.
    """

    def __init__(
        self,
        context: ServiceContext,
        scheduler: Scheduler,
        on_placed: Callable[[JobRecord], None],
        requeue: Callable[[JobRecord, str], Awaitable[None]],
    ) -> None:
        self.waiting: dict[str, str] = {}
        self._context, self._registry = context, context.registry
        self._scheduler = scheduler
        self._on_placed, self._requeue = on_placed, requeue
        self._wake = asyncio.Event()
        self._causes: list[str] = []
        self._plan: _Plan | None = None
        self._origins: dict[str, str] = {}
        self._lease_ends: dict[str, int] = {}

    @property
    def name(self) -> str:
        """The scheduler's name."""
        return self._scheduler.name

    def changed(self, cause: str) -> None:
        """Notify that jobs were queued or have ended, or that slots were added: a decision is due."""
        self._causes.append(cause)
        self._wake.set()

    def advanced(self) -> None:
        """Notify that a job was started: the rest of a decision may be carried out."""
        self._wake.set()

    def stopped(self, job_id: str) -> None:
        """Notify that a job has been stopped, and waits; a decision is due if no decision asked for it."""
        if job_id not in self._origins:
            self._causes.append(f"{job_id} was stopped")
        self._wake.set()

    async def run(self) -> None:
        """Decide whenever notified or when the scheduler wants to be asked again; never returns."""
        while True:
            due_s = self._due_s()
            try:
                await asyncio.wait_for(self._wake.wait(), due_s)
            except TimeoutError:
                self._causes.append("time passed")
            self._wake.clear()
            try:
                await self._step()
            except MltcpError as error:
                _log.error("%s: %s", self._scheduler.name, error)
            except Exception:  # without this loop no job would ever be placed again
                _log.exception("%s: no decision was made", self._scheduler.name)

    async def _step(self) -> None:
        if self._settling():
            return
        if self._plan is not None:
            plan, self._plan = self._plan, None
            for job_id, slots in plan.slots.items():
                self._start(job_id, slots, plan)
        if self._causes:
            cause, self._causes = ", ".join(dict.fromkeys(self._causes)), []
            await self._decide(cause)

    def _settling(self) -> bool:
        """Whether a job is being stopped or started."""
        return any(
            job.state == pb.STOPPING or (job.placed and not job.engine)
            for job in self._registry.jobs.values()
        )

    def _due_s(self) -> float | None:
        now_ns = self._context.clock.now_ns()
        found = []
        for jobs in self._kinds():
            view = cluster_view(self._registry, jobs[0])
            if view is None:
                continue
            next_ns = self._scheduler.next_ns(now_ns, self._views(jobs, view, now_ns))
            if next_ns is not None:
                found.append(next_ns)
        return max(0.0, min(min(found) - now_ns, _LONGEST_NS) / 1e9) if found else None

    def _kinds(self) -> list[list[JobRecord]]:
        """The jobs that run or wait: those with GPUs, and those with CPU slots."""
        kinds: dict[bool, list[JobRecord]] = {}
        for job in self._registry.jobs.values():
            if (job.placed or job.state == pb.QUEUED) and job.spec.elastic:
                kinds.setdefault(bool(job.spec.gpus), []).append(job)
        return list(kinds.values())

    def _views(self, jobs: Sequence[JobRecord], view: ClusterView, now_ns: int) -> list[JobView]:
        restart_ns = round(self._context.rules.restart_cost_s * 1e9)
        return [
            job_view(job, view, now_ns, restart_ns, self._lease_ends.get(job.id, FOREVER_NS))
            for job in jobs
            if view.shows(job)
        ]

    async def _decide(self, cause: str) -> None:
        self.waiting.clear()
        for jobs in self._kinds():
            view, now_ns = cluster_view(self._registry, jobs[0]), self._context.clock.now_ns()
            if view is None:
                self.waiting.update({job.id: _NO_SERVERS for job in jobs if job.state == pb.QUEUED})
                continue
            began_ns = time.perf_counter_ns()
            views = self._views(jobs, view, now_ns)
            assignment = self._scheduler.candidates(view.cluster, now_ns, views, 1)[0]
            gpu_owners(view.cluster, assignment)  # raises if two jobs are given a slot
            plan = _Plan(cause, {}, time.perf_counter_ns() - began_ns)
            shown = [job for job in jobs if view.shows(job)]
            assigned = {job.id: view.slots_of(assignment.get(job.id, ())) for job in shown}
            self._explain_waiting(shown, assigned, plan, len(view.slots))
            await self._carry_out(shown, assigned, plan)

    async def _carry_out(
        self, jobs: Sequence[JobRecord], assigned: Mapping[str, tuple[int, ...]], plan: _Plan
    ) -> None:
        moving = [job for job in jobs if job.placed and tuple(sorted(job.slots)) != assigned[job.id]]
        taken = {slot for job in jobs if job.placed for slot in job.slots}
        starting = [job for job in jobs if assigned[job.id] and (not job.placed or job in moving)]
        free = [job for job in starting if not job.placed and not taken.intersection(assigned[job.id])]
        later = {job.id: assigned[job.id] for job in starting if job not in free}
        if later:
            plan.slots = {**(self._plan.slots if self._plan else {}), **later}
            self._plan = plan
        for job in free:
            self._start(job.id, assigned[job.id], plan)
        for job in moving:
            await self._move(job, assigned[job.id], plan)

    async def _move(self, job: JobRecord, slots: tuple[int, ...], plan: _Plan) -> None:
        where, now = _places_text(self._registry.places(job, slots)), self._registry.jobs[job.id]
        self._origins[job.id] = _places_text(self._registry.places(job))
        target = f"to go on at {where}" if slots else "to wait for slots"
        reason = f"{self._scheduler.name} stops it {target}, after {plan.cause}"
        try:
            await self._requeue(now, reason)
        except MltcpError as error:  # it has ended meanwhile, or is being released
            _log.info("job %s: not moved: %s", one_line(job.id), error)

    def _start(self, job_id: str, slots: tuple[int, ...], plan: _Plan) -> None:
        registry, now_ns = self._registry, self._context.clock.now_ns()
        job = registry.jobs[job_id]
        held = {slot for each in registry.jobs.values() if each.placed for slot in each.slots}
        if job.state != pb.QUEUED or held.intersection(slots):
            return  # it was released or did not stop; the event that told so leads to another decision
        self.waiting.pop(job_id, None)
        lease_ns = self._scheduler.lease_ns
        self._lease_ends[job_id] = FOREVER_NS if lease_ns is None else now_ns + lease_ns
        named = replace(job, policy=self._scheduler.name)
        placed = registry.place(named, slots, registry.links_of(job, slots), now_ns)
        self._context.save([placed])
        self._explain(placed, self._placed_text(placed, plan, now_ns), plan)
        self._on_placed(placed)

    def _placed_text(self, job: JobRecord, plan: _Plan, now_ns: int) -> str:
        origin = self._origins.pop(job.id, "")
        count = f"{len(job.slots)} slot{'s' if len(job.slots) != 1 else ''}"
        text = f"placed on {count}"
        if origin:
            text = f"moved from {origin} to {count} (restart {job.restarts})"
        elif job.restarts:
            text = f"goes on with {count} (restart {job.restarts})"
        run_ns = job.run_ns * job.count // len(job.slots)
        return f"{self._scheduler.name}: {text}, after {plan.cause}" + deadline_text(
            job, now_ns + run_ns, "expected to end"
        )

    def _explain_waiting(
        self, jobs: Sequence[JobRecord], assigned: Mapping[str, tuple[int, ...]], plan: _Plan, total: int
    ) -> None:
        given = sum(map(len, assigned.values()))
        before = " ".join(sorted(job for job, slots in assigned.items() if slots)) or "no job"
        for job in jobs:
            if job.state == pb.QUEUED:
                self.waiting[job.id] = (
                    f"waits: {self._scheduler.name} gives {given} of {total} slots to {before}, after {plan.cause}"
                    if not assigned[job.id]
                    else f"waits: {self._scheduler.name} gives it slots that are not free yet, after {plan.cause}"
                )

    def _explain(self, job: JobRecord, summary: str, plan: _Plan) -> None:
        chosen = pb.Candidate(places=self._registry.places(job), chosen=True)
        reply = pb.ExplainReply(
            job_id=job.id,
            policy=self._scheduler.name,
            summary=summary,
            candidates=[chosen],
            decision_ns=plan.took_ns,
        )
        self._context.remember(job, reply)


def _places_text(places: Sequence[pb.ServerSlots]) -> str:
    return " ".join(f"{each.server}:{','.join(map(str, each.slots))}" for each in places)
