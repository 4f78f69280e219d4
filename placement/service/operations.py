"""The operations of the placement service, independent of gRPC.

Every change is durable before it is acknowledged. All methods run in one event loop, and each change of the registry
is made without awaiting in between, so no method sees a partial change of another.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace

from mltcp.core.demand import Demand
from mltcp.core.errors import MltcpError
from placement.cassini.circle import unified
from placement.cassini.compatibility import Compatibility, compatibility
from placement.cassini.observed import observed
from placement.engines.engine import EngineEvent, JobFailed, JobHandle, JobStarted
from placement.service.agents.coordination import AgentCoordinator
from placement.service.agents.drift import IterationTiming
from placement.service.agents.sessions import AgentSession
from placement.service.context import ServiceContext
from placement.service.decisions.explanation import explain_unplaced
from placement.service.decisions.placer import Placer, policy_named
from placement.service.decisions.policy import ServicePolicy
from placement.service.embedded_gate import EmbeddedGate
from placement.service.engine_runner import EngineRunner
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import check_deadline, check_job, demand_of, profile_message
from placement.service.protocol.request_error import ErrorCode, RequestError, invalid
from placement.service.state.capacity import check_possible
from placement.service.state.job_record import JobRecord, deadline_of, wrong_state
from placement.service.state.persistence import save_link, save_new_job, save_server


class ServiceOperations:
    """The operations on one service context.

    Args:
        context: the recovered state.
        engine: runs the jobs that have a command, if given.
        gate: the embedded gate, if given.
    """

    def __init__(
        self, context: ServiceContext, engine: EngineRunner | None = None, gate: EmbeddedGate | None = None
    ) -> None:
        self.context = context
        self.placer = Placer(context, self._placed)
        self.agents = AgentCoordinator(context, self._agent_gone)
        self._registry = context.registry
        self._engine = engine
        self._gate = gate
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start placing waiting jobs, and start the lease of jobs whose agents were attached before a restart."""
        self.agents.resume()
        if self._gate is not None:
            self._gate.start()
            for job in self._registry.jobs.values():
                if job.placed:
                    self._gate.placed(job)
        if self._engine is not None:
            engine = [
                JobHandle(job.id, job.engine)
                for job in self._registry.jobs.values()
                if job.placed and job.engine
            ]
            self._engine.listen(engine, self._engine_event)
            for job in self._registry.jobs.values():
                if job.placed and job.spec.command and not job.engine:
                    self._begin(self._launch(job))
        self._begin(self.placer.place_waiting())
        self.placer.capacity_changed()

    async def close(self) -> None:
        """Stop all tasks; jobs, slots and time shifts stay as they are in the store."""
        self.agents.sessions.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._engine is not None:
            await asyncio.to_thread(self._engine.close)
        if self._gate is not None:
            await asyncio.to_thread(self._gate.close)

    # ------------------------------------------------------------------------------------------------ the cluster

    async def register_servers(self, servers: Sequence[pb.Server]) -> int:
        """Register servers, and return the number of new ones. Raises `RequestError`."""
        added = self._registry.add_servers(servers)
        for number in added:
            save_server(self.context.store, number, self._registry.servers[number])
        if added:
            self.placer.capacity_changed()
        await self.context.store.committed()
        return len(added)

    async def register_links(self, links: Sequence[pb.Link]) -> int:
        """Register uplinks, and return the number of new ones. Raises `RequestError`."""
        added = self._registry.add_links(links)
        for number in added:
            save_link(self.context.store, number, self._registry.links[number])
        if added:
            self.context.save(self._registry.relink())
        await self.context.store.committed()
        return len(added)

    # --------------------------------------------------------------------------------------------------- the jobs

    async def register_job(self, spec: pb.Job) -> pb.JobStatus:
        """Register a job without queueing it. Raises `RequestError`."""
        if self._known(spec) is None:
            self._add(spec, pb.REGISTERED)
        await self.context.store.committed()
        return self.status(spec.id)

    async def submit(self, spec: pb.Job) -> pb.JobStatus:
        """Register and queue a job; durable when this returns. Raises `RequestError`."""
        known = self._known(spec)
        if known is None:
            self._add(spec, pb.QUEUED)
            self.placer.job_queued()
        elif known.state == pb.REGISTERED:
            queued = replace(known, state=pb.QUEUED)
            self._registry.add_job(queued)
            self.context.save([queued])
            self.placer.job_queued()
        await self.context.store.committed()
        return self.status(spec.id)

    async def place(self, job_id: str, asked: str) -> pb.JobStatus:
        """Place a job now. Raises `RequestError`."""
        job = self._registry.job(job_id)
        if asked:
            _check_policy(policy_named(asked), job.spec, "policy")
        if job.placed and asked in ("", job.policy):
            return self.status(job_id)
        if job.placed or job.over:
            raise wrong_state("job_id", job, "REGISTERED or QUEUED")
        await self.placer.place(job_id, asked)
        await self.context.store.committed()
        return self.status(job_id)

    async def release(self, job_id: str, reason: str, failed: bool) -> pb.JobStatus:
        """End a job; one that an engine runs keeps its slots until its processes have ended. Raises `RequestError`."""
        job = self._registry.job(job_id)
        if job.placed and job.engine and self._engine is not None:
            self._registry.update(replace(job, reason=reason or "released"))
            self.context.save([self._registry.jobs[job_id]])
            await self._engine.stop(job_id)
        elif not job.over:
            self._end(job, pb.FAILED if failed else pb.ENDED, reason or "released")
        await self.context.store.committed()
        return self.status(job_id)

    def status(self, job_id: str) -> pb.JobStatus:
        """The status of a job. Raises `RequestError`."""
        self._registry.job(job_id)
        return self.context.status(job_id, job_id in self.agents.sessions)

    def explain(self, job_id: str) -> pb.ExplainReply:
        """The explanation of a job's placement, or of its waiting. Raises `RequestError`."""
        job = self._registry.job(job_id)
        found = self.context.decisions.get(job.number)
        return (
            found if found is not None else explain_unplaced(self._registry, job, self.context.clock.now_ns())
        )

    # --------------------------------------------------------------------------------- profiles, scores, time shifts

    async def put_profile(self, job_id: str, profile: pb.Profile, field: str = "profile") -> pb.JobStatus:
        """Replace a job's profile. Raises `RequestError`."""
        job = self._registry.job(job_id)
        demand = demand_of(profile, field)
        if job.over:
            raise wrong_state("job_id", job, "REGISTERED, QUEUED or PLACED")
        if demand != job.demand:
            changed = replace(job, demand=demand)
            self._registry.new_demand(job, changed)
            self.context.save([changed])
            if self._gate is not None and changed.placed:
                self._gate.placed(changed)
            if self._registry.coordinated(job_id):
                await self.placer.shift_anew(job.links)
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
        await self.put_profile(job_id, profile, "profile.profile")

    async def score(self, request: pb.ScoreRequest) -> pb.ScoreReply:
        """The compatibility score of jobs on a link. Raises `RequestError`."""
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
        angles, found = await asyncio.to_thread(_score, demands, capacity_bps)
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
            for job in jobs or self._registry.jobs.values()
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

    async def agent_says(self, session: AgentSession, message: pb.AgentMessage) -> None:
        """Handle a message of an attached agent. Raises `RequestError`."""
        if message.WhichOneof("message") == "profile":
            await self._profile_seen(session.job_id, message.profile.profile)
        else:
            self.agents.message(session, message)

    # ------------------------------------------------------------------------------------------------- the engine

    def _placed(self, job: JobRecord) -> None:
        if self._gate is not None:
            self._gate.placed(job)
        if self._engine is not None and job.spec.command:
            self._begin(self._launch(job))

    async def _launch(self, job: JobRecord) -> None:
        assert self._engine is not None
        await self.context.store.committed()
        try:
            reference = await self._engine.start(job, self._registry.places(job))
        except MltcpError as error:
            self._end(self._registry.jobs[job.id], pb.FAILED, str(error))
            return
        if self._registry.jobs[job.id].over:
            await self._stop(job.id)  # it was released while it was being started
            return
        self._registry.update(replace(self._registry.jobs[job.id], engine=reference))
        self.context.save([self._registry.jobs[job.id]])

    def _engine_event(self, event: EngineEvent) -> None:
        job = self._registry.jobs.get(event.job_id)
        if isinstance(event, JobStarted) or job is None or not job.placed:
            return
        if isinstance(event, JobFailed):
            self._end(job, pb.FAILED, event.why)
        else:
            self._end(job, pb.ENDED, job.reason or "finished")

    def _agent_gone(self, job_id: str, orderly: bool) -> None:
        job = self._registry.jobs[job_id]
        did = "left" if orderly else "was gone"
        reason = (
            f"its agent {did}, and did not come back within its lease of {self.context.rules.lease_s:g} s"
        )
        if self._engine is None or not job.engine:
            self._end(job, pb.ENDED if orderly else pb.FAILED, reason)
            return
        self._registry.update(
            replace(job, shift_ns=None, turn="", agent=False, reason="" if orderly else reason)
        )
        self.context.save([self._registry.jobs[job_id]])
        if not orderly:
            self._begin(self._stop(job_id))

    async def _stop(self, job_id: str) -> None:
        assert self._engine is not None
        with suppress(MltcpError):  # it has ended by itself; the event is on its way
            await self._engine.stop(job_id)

    def _end(self, job: JobRecord, state: int, reason: str) -> None:
        ended = self._registry.end(job, state, reason, self.context.clock.now_ns())
        self.context.save([ended])
        self.agents.over(ended, reason)
        self.placer.unshift_alone(job.links)
        self.placer.capacity_changed()

    # ---------------------------------------------------------------------------------------------------- registration

    def _known(self, spec: pb.Job) -> JobRecord | None:
        """The registered job of this id, if any; raises `RequestError` if its specification differs."""
        known = self._registry.jobs.get(spec.id)
        if known is not None and known.spec != spec:
            different = next(
                name
                for name in spec.DESCRIPTOR.fields_by_name
                if getattr(spec, name) != getattr(known.spec, name)
            )
            raise RequestError(
                ErrorCode.EXISTS,
                f"job.{different}",
                f"expected the value of job {spec.id!r} as registered before, got another",
            )
        return known

    def _add(self, spec: pb.Job, state: int) -> None:
        now_ns = self.context.clock.now_ns()
        check_job(spec)
        check_deadline(spec, now_ns)
        if spec.policy:
            _check_policy(policy_named(spec.policy, "job.policy"), spec, "job.policy")
        for place, server in enumerate(spec.servers):
            self._registry.server_number(server, f"job.servers[{place}]")
        demand = demand_of(spec.profile, "job.profile") if spec.HasField("profile") else None
        job = JobRecord(
            len(self._registry.jobs),
            spec,
            demand,
            state,
            spec.policy,
            submitted_ns=now_ns,
            deadline_ns=deadline_of(spec, demand, now_ns),
        )
        check_possible(self._registry, job)
        self._registry.add_job(job)
        save_new_job(self.context.store, job)

    def _demand(self, job_id: str, field: str) -> Demand:
        job = self._registry.job(job_id, field)
        if job.demand is None:
            raise RequestError(ErrorCode.STATE, field, f"expected a job with a profile, got {job_id!r}")
        return job.demand

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _check_policy(asked: ServicePolicy, spec: pb.Job, field: str) -> None:
    """Raise `RequestError` if the policy is a scheduler that ignores a constraint of the job."""
    if asked.scheduler is not None and (spec.servers or spec.shares_gpus):
        what = "servers" if spec.servers else "shares_gpus"
        raise invalid(field, f"expected a policy that supports job.{what}, got {asked.name!r}")


def _score(demands: Sequence[Demand], capacity_bps: int) -> tuple[int, Compatibility]:
    circles = unified(demands)
    return circles.angles, compatibility(circles, capacity_bps)
