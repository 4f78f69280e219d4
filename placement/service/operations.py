"""The operations of the placement service, independent of gRPC.

Every change is durable before it is acknowledged. All methods run in one event loop, and each change of the registry
is made without awaiting in between, so no method sees a partial change of another.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from mltcp.core.demand import Demand
from mltcp.core.errors import UsageError
from placement.cassini.circle import unified
from placement.cassini.compatibility import Compatibility, compatibility
from placement.cassini.drift import observed
from placement.engines.engine import EngineEvent, HostBack, HostOut, HostUsed, JobsHeld
from placement.service.agents import AgentCoordinator, AgentSession
from placement.service.cluster_changes import ClusterChanges
from placement.service.context import ServiceContext
from placement.service.decisions.dispatcher import Dispatcher, Placer
from placement.service.decisions.explanation import explain_stopping
from placement.service.decisions.job_scheduling import JobScheduling
from placement.service.decisions.policy import ServicePolicy, service_policy, trial_of
from placement.service.decisions.time_shifts import TimeShifts
from placement.service.drift import IterationTiming
from placement.service.embedded_gate import EmbeddedGate
from placement.service.engine_jobs import EngineJobs, EngineRunner
from placement.service.job_registration import HeldJobs, JobRegistration, check_not_held
from placement.service.lifecycle import JobLifecycle
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import (
    ErrorCode,
    RequestError,
    check_count,
    check_profile,
    check_text,
    demand_of,
    invalid,
    profile_message,
)
from placement.service.protocol.pages import shorten_explanation
from placement.service.state.job_record import JobRecord, wrong_state
from placement.service.state.store import StoreUnwritableError

FORGET_EVERY_S = 600.0
MOST_SCORED = 1000
"""The number of jobs, and of profiles, of one call of Score."""

FORGET_AFTER_S = 1.0
"""How long after a job's end jobs are forgotten that are beyond the limit, so that its last status can be asked for."""

ABANDONED_S = 30 * 86400.0
"""A job that is registered for longer, and neither submitted nor placed, fails: its client has gone."""

_log = logging.getLogger("mltcp.placement")


class ServiceOperations:
    """The operations on one service context.

    Attributes:
        context: the recovered state.
        decides: whether waiting jobs are placed.

    Args:
        context: the recovered state.
        engine: runs the jobs that have a command, if given.
        gate: the embedded gate, if given.
    """

    def __init__(
        self, context: ServiceContext, engine: EngineRunner | None = None, gate: EmbeddedGate | None = None
    ) -> None:
        self.context, self._registry, self._gate = context, context.registry, gate
        self._lifecycle = JobLifecycle(context, engine is not None)
        policy = service_policy(context.rules.policy)
        if policy.moves_jobs and engine is None:
            raise UsageError(
                f"--policy: expected an engine with {policy.name}, which stops jobs and starts them elsewhere, got none"
            )
        # The listeners are told of each change of a job in the order of these lines.
        self._lifecycle.subscribe(context.job_changed)
        self._engine_jobs = EngineJobs(context, self._lifecycle, engine)
        self.agents = AgentCoordinator(context, self._lifecycle, self._engine_jobs)
        self._shifts = TimeShifts(context, self._lifecycle)
        if gate is not None:
            self._lifecycle.subscribe(gate.job_changed)
        self._dispatcher = self._dispatcher_of(policy)
        self.cluster = ClusterChanges(context, self._lifecycle, self._engine_jobs, self._dispatcher)
        self._lifecycle.subscribe(self._job_changed)
        self._jobs = JobRegistration(context, self._lifecycle, policy)
        self._held = HeldJobs(context, self._lifecycle, self._jobs, self._engine_jobs)
        self._has_ended = asyncio.Event()
        self.decides = asyncio.Event()
        # Of its own, so that scores that take long keep no job from being started.
        self._scoring = ThreadPoolExecutor(1, "score")

    def _dispatcher_of(self, policy: ServicePolicy) -> Dispatcher:
        context = self.context
        if policy.moves_jobs:
            return JobScheduling(context, self._lifecycle, trial_of(context), self._engine_jobs.requeue)
        return Placer(context, self._lifecycle, self._shifts)

    def start(self) -> None:
        """Start all but decisions, and start the lease of jobs whose agents were attached before a restart."""
        self.agents.resume()
        self.context.begin(self._forget())
        self.context.begin(self._end_abandoned())
        if self._gate is not None:
            self._gate.start(self._registry.unended.values())
        self._engine_jobs.start(self._on_engine_event)

    async def decide(self) -> None:
        """Get ready for the first decision, which may take minutes, and start placing waiting jobs.

        Raises:
            MltcpError: the policy cannot decide in this cluster.
        """
        await self._dispatcher.prepare()
        self.context.begin(self._dispatcher.run())
        self._dispatcher.capacity_changed("the service was started")
        self.decides.set()

    async def _forget(self) -> None:
        """Forget old jobs whenever one has ended, and as time passes; never returns."""
        while True:
            try:
                forgotten = self.context.forget()
                await self._engine_jobs.forget(forgotten)
            except Exception:  # so that later jobs are forgotten nevertheless
                _log.exception("jobs that are over were not forgotten")
            with suppress(TimeoutError):
                async with asyncio.timeout(FORGET_EVERY_S):
                    await self._has_ended.wait()
                await asyncio.sleep(FORGET_AFTER_S)
            self._has_ended.clear()

    async def _end_abandoned(self) -> None:
        """End the jobs that were registered long ago, and that nobody has submitted or placed since; never returns."""
        while True:
            before_ns = self.context.clock.now_ns() - round(ABANDONED_S * 1e9)
            try:
                for job in list(self._registry.unended.values()):
                    if job.state == pb.REGISTERED and job.submitted_ns < before_ns:
                        self._lifecycle.end(
                            job, pb.FAILED, "neither submitted nor placed since it was registered"
                        )
            except Exception:  # so that they are ended later nevertheless
                _log.exception("jobs that nobody submitted were not ended")
            await asyncio.sleep(FORGET_EVERY_S)

    def _job_changed(self, before: JobRecord | None, job: JobRecord) -> None:
        if job.over:
            self._has_ended.set()

    def _on_engine_event(self, event: EngineEvent) -> None:
        """Act on an event of the engine that is not about a job that it runs."""
        if isinstance(event, HostOut | HostBack | HostUsed):
            self.cluster.host_changed(event)
        elif isinstance(event, JobsHeld):
            self._held.update(event.jobs)

    def decisions(self) -> pb.DecisionStatus | None:
        """The state of decisions about all jobs; None where jobs are placed one by one."""
        return self._dispatcher.status()

    async def promote(self, back: bool) -> pb.DecisionStatus:
        """Make the shadow the policy, or the former policy again. Raises `RequestError`."""
        status = self._dispatcher.promote(back)
        await self.context.store.committed()
        return status

    def ratios(self) -> pb.RatiosReply:
        """The table of contention ratios in use. Raises `RequestError`: there is none."""
        if self.context.contention is None:
            raise RequestError(
                ErrorCode.STATE, "table", "expected a service with a table (serve --table), got one without"
            )
        return self.context.contention.ratios()

    async def close(self) -> None:
        """Stop all tasks and jobs; slots and time shifts stay as they are in the store, elastic jobs are queued."""
        self.agents.sessions.close()
        self._scoring.shutdown(wait=False, cancel_futures=True)
        for task in self.context.tasks:
            task.cancel()
        await asyncio.gather(*self.context.tasks, return_exceptions=True)
        await self._dispatcher.close()
        await self._engine_jobs.close()
        if self._gate is not None:
            await asyncio.to_thread(self._gate.close)

    # --------------------------------------------------------------------------------------------------- the jobs

    async def register_job(self, spec: pb.Job, owner: str = "") -> pb.JobStatus:
        """Register a job without queueing it; a new one belongs to `owner`. Raises `RequestError`."""
        check_not_held(spec)
        if self._jobs.known(spec) is None:
            self.context.check_accepts("job")
            self._jobs.add(spec, pb.REGISTERED, owner)
        await self.context.store.committed()
        return self.status(spec.id)

    async def submit(self, spec: pb.Job, owner: str = "") -> pb.JobStatus:
        """Register and queue a job; durable when this returns. A new one belongs to `owner`. Raises `RequestError`."""
        check_not_held(spec)
        known = self._jobs.known(spec)
        if known is None:
            self.context.check_accepts("job")
            self._jobs.add(spec, pb.QUEUED, owner)
        elif known.state == pb.REGISTERED:
            self._lifecycle.queue(known)
        await self.context.store.committed()
        return self.status(spec.id)

    async def place(self, job_id: str, asked: str) -> pb.JobStatus:
        """Place a job now. Raises `RequestError`."""
        await self._dispatcher.place(self._registry.job(job_id), asked)
        await self.context.store.committed()
        return self.status(job_id)

    async def release(self, job_id: str, reason: str, failed: bool) -> pb.JobStatus:
        """End a job; one that an engine runs keeps its slots until its processes have ended. Raises `RequestError`."""
        job = self._registry.job(job_id)
        check_text(reason, "reason")
        if self._lifecycle.has_processes(job):
            await self._engine_jobs.release(job, reason or "released")
        elif not job.over:
            self._lifecycle.end(job, pb.FAILED if failed else pb.ENDED, reason or "released")
        released = self.status(job_id)  # it may be forgotten while the change is written
        await self.context.store.committed()
        return released

    async def requeue(self, job_id: str, reason: str) -> pb.JobStatus:
        """Stop an elastic job that runs, and queue it again. Raises `RequestError`."""
        check_text(reason, "reason")
        await self._engine_jobs.requeue(self._registry.job(job_id), reason or "requeued")
        await self.context.store.committed()
        return self.status(job_id)

    def status(self, job_id: str) -> pb.JobStatus:
        """The status of a job. Raises `RequestError`."""
        job = self._registry.job(job_id)
        return self.context.status(job_id, job_id in self.agents.sessions, self.agents.slowed_by(job))

    def explain(self, job_id: str) -> pb.ExplainReply:
        """The explanation of a job's placement, or of its waiting. Raises `RequestError`."""
        job = self._registry.job(job_id)
        explained = pb.ExplainReply()
        explained.CopyFrom(self._explain(job))
        notes = (
            *(self.context.notes(job), self.context.speeds.explanation(job)),
            self.context.restarts.explanation(job.id) if job.spec.elastic else "",
            *(self.agents.slowed_by(job), self._dispatcher.note(job)),
        )
        if further := [text for text in notes if text]:
            explained.summary = "; ".join((explained.summary, *further))
        shorten_explanation(explained)
        return explained

    def _explain(self, job: JobRecord) -> pb.ExplainReply:
        if job.state == pb.STOPPING:
            return explain_stopping(self._registry, job)
        found = self.context.decisions.get(job.number)
        if found is not None and job.state != pb.QUEUED:
            return found
        return self._dispatcher.why_waiting(job)

    # --------------------------------------------------------------------------------- profiles, scores, time shifts

    async def put_profile(self, job_id: str, profile: pb.Profile, field: str = "profile") -> pb.JobStatus:
        """Replace a job's profile. Raises `RequestError`."""
        job = self._registry.job(job_id)
        check_profile(profile, field)
        demand = demand_of(profile, field)
        if job.over:
            raise wrong_state("job_id", job, "REGISTERED, QUEUED or PLACED")
        if demand != job.demand:
            self.context.check_accepts(field)
            self._lifecycle.change(job, demand=demand)
            if self._registry.coordinated(job_id):
                await self._shifts.recompute(job.links)
        await self.context.store.committed()
        return self.status(job_id)

    async def _profile_seen(self, job_id: str, profile: pb.Profile) -> None:
        """Handle a profile observed by a running job: refine the known profile, or adopt it. Raises `RequestError`."""
        known = self._registry.job(job_id).demand
        if known is not None and known.bits:
            found = observed(demand_of(profile, "profile.profile"), known)
            if found is known:
                return
            profile = profile_message(found)
        # What is in memory only is enough for a profile, which the agent reports again.
        with suppress(StoreUnwritableError):
            await self.put_profile(job_id, profile, "profile.profile")

    async def score(self, request: pb.ScoreRequest) -> pb.ScoreReply:
        """The compatibility score of jobs on a link. Raises `RequestError`."""
        check_count(request.job_ids, MOST_SCORED, "job_ids")
        check_count(request.profiles, MOST_SCORED, "profiles")
        for place, each in enumerate(request.profiles):
            check_profile(each, f"profiles[{place}]")
        demands = [
            self._demand(job_id, f"job_ids[{place}]") for place, job_id in enumerate(request.job_ids)
        ] + [demand_of(each, f"profiles[{place}]") for place, each in enumerate(request.profiles)]
        if not demands:
            raise invalid("job_ids", "expected one or more job_ids or profiles, got none")
        capacity_bps = request.capacity_bps
        if request.link:
            capacity_bps = self._registry.capacity_bps(request.link, "link")
        elif capacity_bps <= 0:
            raise invalid("capacity_bps", f"expected a capacity above 0, or a link, got {capacity_bps}")
        loop = asyncio.get_running_loop()
        angles, found = await loop.run_in_executor(self._scoring, _score, demands, capacity_bps)
        return pb.ScoreReply(
            score=found.score,
            bound=found.bound,
            proven=found.proven,
            rotations=[math.tau * rotation / angles for rotation in found.rotations],
            shifts_ns=found.shifts_ns,
        )

    def time_shifts(self, job_ids: Sequence[str]) -> list[pb.TimeShift]:
        """The time shifts of the given jobs, or of all jobs that have one. Raises `RequestError`."""
        jobs = [self._registry.job(each, f"job_ids[{place}]") for place, each in enumerate(job_ids)]
        return [
            pb.TimeShift(
                job_id=job.id,
                shift_ns=job.shift_ns,
                period_ns=job.iteration_ns,
                links=[link for link in job.links if len(self._registry.jobs_of[link]) > 1],
                drift_ns=self.agents.drift_ns(job),
            )
            for job in jobs or self._registry.unended.values()
            if job.shift_ns is not None
        ]

    def report_drift(self, request: pb.ReportDriftRequest) -> pb.ReportDriftReply:
        """Record an iteration start of a job without an agent. Raises `RequestError`."""
        job = self._registry.job(request.job_id)
        if not job.placed:
            raise wrong_state("job_id", job, "PLACED")
        report = IterationTiming(request.number, request.began_ns, request.duration_ns)
        delays = self.agents.report_alone(job.id, report)
        return pb.ReportDriftReply(delay=delays)

    # ----------------------------------------------------------------------------------------------------- agents

    async def agent_message(self, session: AgentSession, message: pb.AgentMessage) -> None:
        """Handle a message of an attached agent. Raises `RequestError`."""
        if message.WhichOneof("message") == "profile":
            await self._profile_seen(session.job_id, message.profile.profile)
        else:
            self.agents.message(session, message)

    def _demand(self, job_id: str, field: str) -> Demand:
        job = self._registry.job(job_id, field)
        if job.demand is None:
            raise RequestError(ErrorCode.STATE, field, f"expected a job with a profile, got {job_id!r}")
        return job.demand


def _score(demands: Sequence[Demand], capacity_bps: int) -> tuple[int, Compatibility]:
    circles = unified(demands)
    return circles.angles, compatibility(circles, capacity_bps)
