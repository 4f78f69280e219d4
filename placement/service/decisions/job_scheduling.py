"""Schedulers of whole jobs in the service: all running and waiting jobs are assigned slots at once, and moved.

It is the live counterpart of `placement.simulator.cluster_run.ClusterRun`. A decision has two parts, since a job gives
its slots back only when its processes have ended: jobs that are assigned other slots are stopped, and jobs whose slots
are free are started; when all stopped jobs have gone, the others are started as decided. There is no other decision
until then, so a job is never asked to stop while it, or another one, is being stopped.

In rounds, decisions are made at multiples of the round's length on the service's clock, or as soon after it as nothing
is being stopped or started; whatever happens during a round waits for the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.one_line import one_line
from placement.policies.schedulers.scheduler import JobView, stops_and_starts
from placement.service.context import ServiceContext
from placement.service.decisions.decider import Decided
from placement.service.decisions.dispatcher import Dispatcher
from placement.service.decisions.explanation import deadline_text, explain_unplaced
from placement.service.decisions.policy import status_of_decisions, warm_up_request
from placement.service.decisions.policy_trial import PolicyTrial
from placement.service.decisions.views import FOREVER_NS, ClusterView, cluster_view, job_view
from placement.service.lifecycle import JobLifecycle
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import ErrorCode, RequestError
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
        decided: the decision.
    """

    cause: str
    slots: dict[str, tuple[int, ...]]
    decided: Decided

    @property
    def by(self) -> str:
        """The scheduler that decided, and why it was not the policy if it was not."""
        return (
            f"{self.decided.by}, since {self.decided.instead}," if self.decided.instead else self.decided.by
        )


class JobScheduling(Dispatcher):
    """Assigns slots to all elastic jobs by a scheduler of whole jobs, and moves those that run.

    Args:
        context: the service's state.
        lifecycle: changes the jobs.
        trial: has what decides.
        requeue: stops a job that runs; it is queued again when its processes have ended.

    Raises:
        UsageError: a job that is there is not elastic.
    """

    def __init__(
        self,
        context: ServiceContext,
        lifecycle: JobLifecycle,
        trial: PolicyTrial,
        requeue: Callable[[JobRecord, str], Awaitable[None]],
    ) -> None:
        self._context, self._registry, self._lifecycle = context, context.registry, lifecycle
        self._trial, self._requeue = trial, requeue
        self._made = 0
        self._waiting: dict[str, str] = {}
        self._round_ns = round(context.rules.round_s * 1e9)
        self._decide_from_ns = 0
        self._queued_ns: dict[str, int] = {}
        self._wake = asyncio.Event()
        self._causes: list[str] = []
        self._plan: _Plan | None = None
        self._origins: dict[str, str] = {}
        self._lease_ends: dict[str, int] = {}
        self._is_prepared = False
        for job in self._registry.unended.values():
            if not job.spec.elastic:
                raise UsageError(
                    f"--policy: expected one for job {job.id!r}, which is not elastic, got {trial.decider.name}"
                )
        lifecycle.subscribe(self._job_changed)

    async def prepare(self) -> None:
        """See `Dispatcher`: load the policies, and have each decide once."""
        await self._trial.start(warm_up_request(self._context))
        self._is_prepared = True

    def capacity_changed(self, cause: str) -> None:
        """See `Dispatcher`: a decision is due."""
        self._causes.append(cause)
        self._wake.set()

    async def place(self, job: JobRecord, asked: str) -> None:
        """See `Dispatcher`: there is no decision about a single job."""
        raise RequestError(
            ErrorCode.STATE,
            "policy",
            f"expected a service whose jobs are placed one by one, got {self._trial.decider.name}, "
            "which decides for all jobs",
        )

    def why_waiting(self, job: JobRecord) -> pb.ExplainReply:
        """See `Dispatcher`."""
        explained = explain_unplaced(self._registry, job, self._context.clock.now_ns())
        explained.summary = self._waiting.get(job.id, explained.summary)
        if not self._is_prepared:
            explained.summary = f"waits: {self._trial.decider.name} is being loaded and compiled"
        return explained

    def note(self, job: JobRecord) -> str:
        """See `Dispatcher`: the shadow's choice for the job."""
        return "" if job.over else self._trial.note(job.id)

    def status(self) -> pb.DecisionStatus:
        """See `Dispatcher`."""
        return status_of_decisions(self._context, self._trial, self._made)

    def promote(self, back: bool) -> pb.DecisionStatus:
        """See `Dispatcher`."""
        self._trial.change(back)
        return self.status()

    async def close(self) -> None:
        """See `Dispatcher`."""
        await self._trial.close()

    def _job_changed(self, before: JobRecord | None, job: JobRecord) -> None:
        if job.over and (before is None or not before.over):
            self.capacity_changed(f"{job.id} ended")
        elif before is not None and before.placed and not job.placed:
            self._queued_ns[job.id] = self._context.clock.now_ns()
            if job.id not in self._origins:  # no decision has asked for it
                self._causes.append(f"{job.id} was stopped")
            self._wake.set()
        elif job.state == pb.QUEUED and (before is None or before.state == pb.REGISTERED):
            self.capacity_changed(f"{job.id} was queued")
        elif job.placed and job.engine and before is not None and not before.engine:
            self._wake.set()  # it has been started: the rest of a decision may be carried out

    async def run(self) -> None:
        """Decide whenever notified or when the scheduler wants to be asked again; never returns."""
        while True:
            due_s = self._due_s()
            try:
                async with asyncio.timeout(due_s):
                    await self._wake.wait()
            except TimeoutError:
                self._causes.append("a round began" if self._round_ns else "time passed")
            self._wake.clear()
            try:
                await self._step()
            except MltcpError as error:
                _log.error("%s: %s", self._trial.decider.name, one_line(str(error)))
                self._context.counts.failed_decisions += 1
            except Exception:  # without this loop no job would ever be placed again
                _log.exception("%s: no decision was made", self._trial.decider.name)
                self._context.counts.failed_decisions += 1

    async def _step(self) -> None:
        if self._settling():
            return
        if self._plan is not None:
            plan, self._plan = self._plan, None
            for job_id, slots in plan.slots.items():
                self._start(job_id, slots, plan)
        if self._causes and self._round_has_begun():
            cause, self._causes = ", ".join(dict.fromkeys(self._causes)), []
            await self._decide(cause)

    def _round_has_begun(self) -> bool:
        """Whether a decision may be made now; in rounds, this begins the wait for the next round."""
        if not self._round_ns:
            return True
        now_ns = self._context.clock.now_ns()
        if now_ns < self._decide_from_ns:
            return False
        self._decide_from_ns = (now_ns // self._round_ns + 1) * self._round_ns
        return True

    def _settling(self) -> bool:
        """Whether a job is being stopped or started."""
        jobs = self._registry.unended.values()
        return any(job.state == pb.STOPPING or (job.placed and not job.engine) for job in jobs)

    def _due_s(self) -> float | None:
        now_ns = self._context.clock.now_ns()
        if self._round_ns:
            if now_ns >= self._decide_from_ns and self._settling():
                return None  # whoever is being stopped or started wakes the loop
            return max(0.0, (self._decide_from_ns - now_ns) / 1e9) if self._kinds() else None
        found = []
        for jobs in self._kinds():
            view = cluster_view(self._registry, jobs[0])
            if view is None:
                continue
            next_ns = self._trial.decider.scheduler.next_ns(now_ns, self._views(jobs, view, now_ns))
            if next_ns is not None:
                found.append(next_ns)
        return max(0.0, min(min(found) - now_ns, _LONGEST_NS) / 1e9) if found else None

    def _kinds(self) -> list[list[JobRecord]]:
        """The jobs that run or wait: those with GPUs, and those with CPU slots."""
        kinds: dict[bool, list[JobRecord]] = {}
        for job in self._registry.unended.values():
            if (job.placed or job.state == pb.QUEUED) and job.spec.elastic:
                kinds.setdefault(bool(job.spec.gpus), []).append(job)
        return list(kinds.values())

    def _views(self, jobs: Sequence[JobRecord], view: ClusterView, now_ns: int) -> list[JobView]:
        return [
            job_view(
                *(self._context, job, view, now_ns),
                self._lease_ends.get(job.id, FOREVER_NS),
                self._queued_ns.get(job.id, job.submitted_ns),
            )
            for job in jobs
            if view.shows(job)
        ]

    async def _decide(self, cause: str) -> None:
        self._waiting.clear()
        self._forget_ended()
        self._context.placements_changed()  # what was measured during the last round counts in this decision
        for jobs in self._kinds():
            view, now_ns = cluster_view(self._registry, jobs[0]), self._context.clock.now_ns()
            if view is None:
                self._waiting.update({job.id: _NO_SERVERS for job in jobs if job.state == pb.QUEUED})
                continue
            views = self._views(jobs, view, now_ns)
            decided = await self._trial.decider.decide(view.cluster, now_ns, views)
            self._made += 1
            self._context.counts.decided(decided.took_ns)
            plan = _Plan(cause, {}, decided)
            # A policy in another process leaves time for changes. Where servers or places changed, it is asked again.
            if self._has_changed(jobs, view):
                self.capacity_changed(f"{cause}, and the cluster changed during the decision")
                self._decide_from_ns = 0
                return
            self._trial.decided(view.cluster, now_ns, views, decided, cause)
            shown = [
                each for job in jobs if view.shows(each := self._registry.jobs[job.id]) and not each.over
            ]
            assigned = {job.id: view.slots_of(decided.assignment.get(job.id, ())) for job in shown}
            self._explain_waiting(shown, assigned, plan, len(view.slots))
            await self._carry_out(shown, assigned, plan)

    def _forget_ended(self) -> None:
        for times in (self._queued_ns, self._lease_ends):
            for job_id in [each for each in times if self._is_over(each)]:
                del times[job_id]

    def _is_over(self, job_id: str) -> bool:
        job = self._registry.jobs.get(job_id)
        return job is None or job.over

    def _has_changed(self, jobs: Sequence[JobRecord], view: ClusterView) -> bool:
        """Whether a decision was made for slots or places that are others now; jobs that have ended do not count."""
        present = cluster_view(self._registry, jobs[0])
        if present is None or present.slots != view.slots:
            return True
        now = [self._registry.jobs.get(job.id) for job in jobs]
        return any(
            each is None or (not each.over and (each.state, each.slots) != (job.state, job.slots))
            for job, each in zip(jobs, now, strict=True)
        )

    async def _carry_out(
        self, jobs: Sequence[JobRecord], assigned: Mapping[str, tuple[int, ...]], plan: _Plan
    ) -> None:
        held = {job.id: tuple(sorted(job.slots)) if job.placed else () for job in jobs}
        taken = {slot for slots in held.values() for slot in slots}
        stops, starts = stops_and_starts(held, assigned)
        moving = [job for job in jobs if job.id in stops]
        free = [name for name in starts if not held[name] and not taken.intersection(assigned[name])]
        later = {name: assigned[name] for name in starts if name not in free}
        if later:
            plan.slots = {**(self._plan.slots if self._plan else {}), **later}
            self._plan = plan
        for name in free:
            self._start(name, assigned[name], plan)
        for job in moving:
            await self._move(job, assigned[job.id], plan)

    async def _move(self, job: JobRecord, slots: tuple[int, ...], plan: _Plan) -> None:
        where, now = _places_text(self._registry.places(job, slots)), self._registry.jobs[job.id]
        self._origins[job.id] = _places_text(self._registry.places(job))
        target = f"to go on at {where}" if slots else "to wait for slots"
        reason = f"{plan.by} stops it {target}, after {plan.cause}"
        try:
            await self._requeue(now, reason)
        except MltcpError as error:  # it has ended meanwhile, or is being released
            _log.info("job %s: not moved: %s", one_line(job.id), one_line(str(error)))

    def _start(self, job_id: str, slots: tuple[int, ...], plan: _Plan) -> None:
        registry, now_ns = self._registry, self._context.clock.now_ns()
        job = registry.jobs[job_id]
        held = {slot for each in registry.unended.values() if each.placed for slot in each.slots}
        if job.state != pb.QUEUED or held.intersection(slots):
            return  # it was released or did not stop; the event that told so leads to another decision
        self._waiting.pop(job_id, None)
        lease_ns = self._trial.decider.scheduler.lease_ns
        self._lease_ends[job_id] = FOREVER_NS if lease_ns is None else now_ns + lease_ns
        placed = self._lifecycle.place(job, plan.decided.by, slots)
        self._queued_ns.pop(job_id, None)
        self._explain(placed, self._placed_text(placed, plan, now_ns), plan)

    def _placed_text(self, job: JobRecord, plan: _Plan, now_ns: int) -> str:
        origin = self._origins.pop(job.id, "")
        count = f"{len(job.slots)} slot{'s' if len(job.slots) != 1 else ''}"
        text = f"placed on {count}"
        if origin:
            text = f"moved from {origin} to {count} (restart {job.restarts})"
        elif job.restarts:
            text = f"goes on with {count} (restart {job.restarts})"
        run_ns = job.run_on_ns(len(job.slots), self._context.on_one_server(job), Fraction(job.done))
        reason = plan.decided.reasons.get(job.id, "")
        text = f"{plan.by}: {text}, after {plan.cause}" + (f"; {reason}" if reason else "")
        return text + deadline_text(job, now_ns + run_ns, "expected to end")

    def _explain_waiting(
        self, jobs: Sequence[JobRecord], assigned: Mapping[str, tuple[int, ...]], plan: _Plan, total: int
    ) -> None:
        given = sum(map(len, assigned.values()))
        before = " ".join(sorted(job for job, slots in assigned.items() if slots)) or "no job"
        for job in jobs:
            if job.state == pb.QUEUED:
                self._waiting[job.id] = (
                    f"waits: {plan.by} gives {given} of {total} slots to {before}, after {plan.cause}"
                    if not assigned[job.id]
                    else f"waits: {plan.by} gives it slots that are not free yet, after {plan.cause}"
                )

    def _explain(self, job: JobRecord, summary: str, plan: _Plan) -> None:
        chosen = pb.Candidate(places=self._registry.places(job), chosen=True)
        reply = pb.ExplainReply(
            job_id=job.id,
            policy=plan.decided.by,
            summary=summary,
            candidates=[chosen],
            decision_ns=plan.decided.took_ns,
        )
        self._context.remember(job, reply)


def _places_text(places: Sequence[pb.ServerSlots]) -> str:
    return " ".join(f"{each.server}:{','.join(map(str, each.slots))}" for each in places)
