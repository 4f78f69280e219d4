"""The operations of the placement service, independent of gRPC.

Every change is durable before it is acknowledged. All methods run in one event loop, and each change of the registry
is made without awaiting in between, so no method sees a partial change of another.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from mltcp.core.demand import Demand
from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.one_line import one_line
from placement.cassini.circle import unified
from placement.cassini.compatibility import Compatibility, compatibility
from placement.cassini.drift import observed
from placement.engines.engine import HeldJob
from placement.service.agents.coordination import AgentCoordinator
from placement.service.agents.drift import IterationTiming
from placement.service.agents.sessions import AgentSession
from placement.service.context import ServiceContext
from placement.service.decisions.explanation import explain_stopping, explain_unplaced
from placement.service.decisions.job_scheduling import JobScheduling
from placement.service.decisions.placer import Placer, policy_named
from placement.service.decisions.policy import ServicePolicy, service_policy
from placement.service.decisions.whole_jobs import decider_of, shadow_of, status_of_decisions, warm_up_request
from placement.service.embedded_gate import EmbeddedGate
from placement.service.engine_jobs import EngineJobs, JobReactions
from placement.service.engine_runner import EngineRunner
from placement.service.job_registration import HELD_PREFIX, JobRegistration, check_not_held, check_policy
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import (
    check_count,
    check_profile,
    check_text,
    demand_of,
    profile_message,
)
from placement.service.protocol.pages import shorten_explanation
from placement.service.protocol.request_error import ErrorCode, RequestError, invalid
from placement.service.state.job_record import JobRecord, wrong_state
from placement.service.state.persistence import save_link, save_server, save_server_state
from placement.service.state.registry import OutOfUse
from placement.service.state.store import StoreUnwritableError

FORGET_EVERY_S = 600.0
MOST_SCORED = 1000
"""The number of jobs, and of profiles, of one call of Score."""

FORGET_AFTER_S = 1.0
"""How long after a job's end jobs are forgotten that are beyond the limit, so that its last status can be asked for."""

ENGINE_SAYS = "engine: "
"""The beginning of the reason for which the engine, and no operator, took a server out of use."""

_log = logging.getLogger("mltcp.placement")


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
        self._gate = gate
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_ended = asyncio.Event()
        # Of its own, so that scores that take long keep no job from being started.
        self._scoring = ThreadPoolExecutor(1, "score")
        self._engine_jobs: EngineJobs | None = None
        if engine is not None:
            reactions = JobReactions(
                *(self._begin, self._end, self._requeued, self._launched),
                *(self._host_out, self._host_back, self._host_used, self._held),
            )
            self._engine_jobs = EngineJobs(context, engine, reactions)
        policy = service_policy(context.rules.policy)
        self._jobs = JobRegistration(context, policy)
        self._scheduling = self._scheduling_of(policy)

    def start(self) -> None:
        """Start placing waiting jobs, and start the lease of jobs whose agents were attached before a restart."""
        self.agents.resume()
        self._begin(self._forget())
        if self._gate is not None:
            self._gate.start()
            for job in self._registry.jobs.values():
                if job.placed:
                    self._gate.placed(job)
        if self._scheduling is not None:
            _check_recovered(self._registry.jobs.values(), self._scheduling.name)
        if self._engine_jobs is not None:
            self._engine_jobs.start()
        if self._scheduling is not None:
            self._begin(self._scheduling.run())
        else:
            self._begin(self.placer.place_waiting())
        self._capacity_changed("the service was started")

    async def _forget(self) -> None:
        """Forget old jobs whenever one has ended, and as time passes; never returns."""
        while True:
            try:
                forgotten = self.context.forget()
                if self._engine_jobs is not None and forgotten:
                    await self._engine_jobs.forget(forgotten)
            except Exception:  # so that later jobs are forgotten nevertheless
                _log.exception("jobs that are over were not forgotten")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._has_ended.wait(), FORGET_EVERY_S)
                await asyncio.sleep(FORGET_AFTER_S)
            self._has_ended.clear()

    def _scheduling_of(self, policy: ServicePolicy) -> JobScheduling | None:
        """The scheduler of all jobs, if the service's policy is one.

        Raises:
            UsageError: there is no engine, so that jobs cannot be moved.
        """
        if not policy.moves_jobs:
            return None
        if self._engine_jobs is None:
            raise UsageError(
                f"--policy: expected an engine with {policy.name}, which stops jobs and starts them elsewhere, got none"
            )
        rules = self.context.rules
        return JobScheduling(
            *(self.context, decider_of(rules), shadow_of(rules)),
            *(self._placed, self._engine_jobs.requeue),
        )

    async def prepare(self) -> None:
        """Load the policies that decide in processes of their own, before the first decision."""
        if self._scheduling is not None:
            await self._scheduling.decider.start(warm_up_request(self.context))
            if self._scheduling.shadow is not None:
                await self._scheduling.shadow.start(warm_up_request(self.context))

    def decisions(self) -> pb.DecisionStatus | None:
        """The state of decisions about all jobs; None where jobs are placed one by one."""
        return None if self._scheduling is None else status_of_decisions(self.context, self._scheduling)

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
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._scheduling is not None:
            await self._scheduling.decider.close()
            if self._scheduling.shadow is not None:
                await self._scheduling.shadow.close()
        if self._engine_jobs is not None:
            await self._engine_jobs.close()
        if self._gate is not None:
            await asyncio.to_thread(self._gate.close)

    # ------------------------------------------------------------------------------------------------ the cluster

    async def register_servers(self, servers: Sequence[pb.Server]) -> int:
        """Register servers, and return the number of new ones. Raises `RequestError`."""
        self._check_accepts("servers")
        added = self._registry.add_servers(servers)
        for number in added:
            save_server(self.context.store, number, self._registry.servers[number])
        if added:
            self._capacity_changed("servers were added")
        await self.context.store.committed()
        return len(added)

    async def change_servers(self, names: Sequence[str], state: pb.ServerState, reason: str) -> int:
        """Take servers out of use or into use again, and return the number of those changed. Raises `RequestError`."""
        if state not in (pb.IN_USE, pb.DRAINING, pb.UNHEALTHY, pb.REMOVED):
            raise invalid("state", f"expected IN_USE, DRAINING, UNHEALTHY or REMOVED, got {state}")
        check_text(reason, "reason")
        registry, why = self._registry, None if state == pb.IN_USE else OutOfUse(state, reason)
        numbers = [
            each for each in registry.servers_named(names, "names") if registry.out_of_use.get(each) != why
        ]
        if why is not None and state == pb.REMOVED:
            for number in numbers:
                registry.check_removable(number, "names")
        for number in numbers:
            if why is not None and state == pb.REMOVED:
                registry.remove_server(number, why)
            else:
                registry.take_out_of_use(number, why)
            save_server_state(self.context.store, number, why)
        if numbers:
            self._capacity_changed("servers were changed")
        await self.context.store.committed()
        await self._leave_unhealthy()
        return len(numbers)

    async def _leave_unhealthy(self) -> None:
        """Stop the elastic jobs that an engine runs on unhealthy servers, to go on elsewhere."""
        unhealthy = {
            number: why.reason
            for number, why in self._registry.out_of_use.items()
            if why.state == pb.UNHEALTHY
        }
        if self._engine_jobs is None or not unhealthy:
            return
        for job in list(self._registry.jobs.values()):
            there = self._registry.pool(job).by_server(job.slots) if job.placed else {}
            number = next((each for each in there if each in unhealthy), None)
            if number is None:
                continue
            name, reason = self._registry.servers[number].name, unhealthy[number] or "no reason given"
            # One that is not elastic goes on there, and one that is being started is stopped once it runs.
            with suppress(RequestError):
                await self._engine_jobs.requeue(job, f"{name} is unhealthy: {reason}")

    async def register_links(self, links: Sequence[pb.Link]) -> int:
        """Register uplinks, and return the number of new ones. Raises `RequestError`."""
        self._check_accepts("links")
        added = self._registry.add_links(links)
        for number in added:
            save_link(self.context.store, number, self._registry.links[number])
        if added:
            self.context.save(self._registry.relink())
        await self.context.store.committed()
        return len(added)

    # --------------------------------------------------------------------------------------------------- the jobs

    def _check_accepts(self, field: str) -> None:
        """Raise `RequestError` if nothing new is accepted, because the store cannot keep it."""
        if refusal := self.context.store.refusal():
            raise RequestError(ErrorCode.FULL, field, refusal)

    async def register_job(self, spec: pb.Job, owner: str = "") -> pb.JobStatus:
        """Register a job without queueing it; a new one belongs to `owner`. Raises `RequestError`."""
        check_not_held(spec)
        if self._jobs.known(spec) is None:
            self._check_accepts("job")
            self._jobs.add(spec, pb.REGISTERED, owner)
        await self.context.store.committed()
        return self.status(spec.id)

    async def submit(self, spec: pb.Job, owner: str = "") -> pb.JobStatus:
        """Register and queue a job; durable when this returns. A new one belongs to `owner`. Raises `RequestError`."""
        check_not_held(spec)
        known = self._jobs.known(spec)
        if known is None:
            self._check_accepts("job")
            self._jobs.add(spec, pb.QUEUED, owner)
            self._job_queued(spec.id)
        elif known.state == pb.REGISTERED:
            queued = replace(known, state=pb.QUEUED)
            self._registry.add_job(queued)
            self.context.save([queued])
            self._job_queued(spec.id)
        await self.context.store.committed()
        return self.status(spec.id)

    async def place(self, job_id: str, asked: str) -> pb.JobStatus:
        """Place a job now. Raises `RequestError`."""
        job = self._registry.job(job_id)
        if self._scheduling is not None:
            raise RequestError(
                ErrorCode.STATE,
                "policy",
                f"expected a service whose jobs are placed one by one, got {self._scheduling.name}, "
                "which decides for all jobs",
            )
        if asked:
            check_policy(policy_named(asked), job.spec, "policy")
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
        check_text(reason, "reason")
        if self._engine_jobs is not None and self._engine_jobs.holds(job):
            await self._engine_jobs.release(job, reason or "released")
        elif not job.over:
            self._end(job, pb.FAILED if failed else pb.ENDED, reason or "released")
        released = self.status(job_id)  # it may be forgotten while the change is written
        await self.context.store.committed()
        return released

    async def requeue(self, job_id: str, reason: str) -> pb.JobStatus:
        """Stop an elastic job that runs, and queue it again. Raises `RequestError`."""
        check_text(reason, "reason")
        job = self._registry.job(job_id)
        if self._engine_jobs is None:
            raise RequestError(
                ErrorCode.STATE,
                "job_id",
                f"expected a job that an engine runs, got {job_id!r} without an engine",
            )
        await self._engine_jobs.requeue(job, reason or "requeued")
        await self.context.store.committed()
        return self.status(job_id)

    def status(self, job_id: str) -> pb.JobStatus:
        """The status of a job. Raises `RequestError`."""
        self._registry.job(job_id)
        return self.context.status(job_id, job_id in self.agents.sessions)

    def explain(self, job_id: str) -> pb.ExplainReply:
        """The explanation of a job's placement, or of its waiting. Raises `RequestError`."""
        job = self._registry.job(job_id)
        explained = pb.ExplainReply()
        explained.CopyFrom(self._explain(job))
        if further := [text for text in (self.context.notes(job), self._shadow_note(job)) if text]:
            explained.summary = "; ".join((explained.summary, *further))
        shorten_explanation(explained)
        return explained

    def _explain(self, job: JobRecord) -> pb.ExplainReply:
        if job.state == pb.STOPPING:
            return explain_stopping(self._registry, job)
        found = self.context.decisions.get(job.number)
        if found is not None and job.state != pb.QUEUED:
            return found
        first = self.placer.waits_for(job) if job.state == pb.QUEUED else None
        explained = explain_unplaced(self._registry, job, self.context.clock.now_ns(), first)
        if self._scheduling is not None and job.id in self._scheduling.waiting:
            explained.summary = self._scheduling.waiting[job.id]
        return explained

    def _shadow_note(self, job: JobRecord) -> str:
        """The shadow's choice for a job at the last decision, in words; empty if there is none."""
        shadow = None if self._scheduling is None else self._scheduling.shadow
        return "" if shadow is None or job.over else shadow.notes.get(job.id, "")

    # --------------------------------------------------------------------------------- profiles, scores, time shifts

    async def put_profile(self, job_id: str, profile: pb.Profile, field: str = "profile") -> pb.JobStatus:
        """Replace a job's profile. Raises `RequestError`."""
        job = self._registry.job(job_id)
        check_profile(profile, field)
        demand = demand_of(profile, field)
        if job.over:
            raise wrong_state("job_id", job, "REGISTERED, QUEUED or PLACED")
        if demand != job.demand:
            self._check_accepts(field)
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
        if self._engine_jobs is not None:
            self._engine_jobs.placed(job)

    def _requeued(self, job: JobRecord) -> None:
        """A job has been stopped, and waits; `job` is its former record."""
        self.agents.over(job, "the job is stopped, and goes on elsewhere")
        self.placer.unshift_alone(job.links)
        self.placer.capacity_changed()
        if self._scheduling is not None:
            self._scheduling.stopped(job.id)

    def _launched(self) -> None:
        if self._registry.out_of_use:
            self._begin(self._leave_unhealthy())
        if self._scheduling is not None:
            self._scheduling.advanced()

    def _host_out(self, host: str, why: str) -> None:
        """The engine's workload manager runs nothing on a host: unhealthy, unless an operator took it out of use."""
        number = self._registry.number_of(host)
        if number is None or number in self._registry.out_of_use:
            return
        _log.info("server %s: %s", one_line(host), one_line(why))
        self._begin(self._change_server(host, pb.UNHEALTHY, f"{ENGINE_SAYS}{why}"))

    def _host_back(self, host: str) -> None:
        number = self._registry.number_of(host)
        why = self._registry.out_of_use.get(number) if number is not None else None
        if why is not None and why.reason.startswith(ENGINE_SAYS):
            _log.info("server %s: in use again", one_line(host))
            self._begin(self._change_server(host, pb.IN_USE, ""))

    def _host_used(self, host: str, slots: int) -> None:
        number = self._registry.number_of(host)
        if number is not None:
            self._registry.use_outside(number, slots)
            self._capacity_changed(f"{host}: {slots} slots are used by others")

    def _held(self, held: Sequence[HeldJob]) -> None:
        """Queue the jobs that users gave to the engine's workload manager, and end those that they have taken back."""
        wanted = {each.reference: self._spec_of(each) for each in held}
        for job in list(self._registry.jobs.values()):
            if not job.spec.held or job.state != pb.QUEUED:
                continue
            if job.spec.held not in wanted:
                self._end(job, pb.ENDED, "it is not held in Slurm any more")
            elif job.spec != wanted[job.spec.held]:
                self._end(job, pb.ENDED, "its user changed what it asks for")
        for each in held:
            self._begin(self._take_held(each, wanted[each.reference]))

    def _spec_of(self, held: HeldJob) -> pb.Job:
        """What a held job asks for; hosts that the service does not know are none to it."""
        return pb.Job(
            id=f"{HELD_PREFIX}{held.reference}",
            gpus=held.gpus,
            slots_per_server=held.per_host,
            iterations=1,
            held=held.reference,
            servers=[host for host in held.hosts if self._registry.number_of(host) is not None],
        )

    async def _take_held(self, held: HeldJob, spec: pb.Job) -> None:
        try:
            if held.hosts and not spec.servers:
                raise invalid("job.servers", f"expected a known server, got {', '.join(held.hosts[:8])}")
            known = self._registry.jobs.get(spec.id)
            if known is not None and known.over:
                self.context.forget_job(known)  # Slurm holds it again, or has given its number to another job
                known = None
            if known is None:
                self._check_accepts("job")
                self._jobs.add(spec, pb.QUEUED, held.owner)
                self._job_queued(spec.id)
        except RequestError as error:
            if self._engine_jobs is not None:
                with suppress(MltcpError):  # it is told again
                    await self._engine_jobs.decline(held.reference, str(error))

    async def _change_server(self, host: str, state: pb.ServerState, reason: str) -> None:
        with suppress(
            RequestError, StoreUnwritableError
        ):  # it has been removed meanwhile, or is in memory only
            await self.change_servers([host], state, reason)

    def _agent_gone(self, job_id: str, orderly: bool, process_gone: bool) -> bool:
        """End a job whose agent is gone, unless its processes may go on; returns whether it is settled.

        An engine that runs the job knows better than a silent agent whether it goes on: the job is left to it, unless
        the service would be the only one to notice that its agent's process is gone.
        """
        job = self._registry.jobs[job_id]
        did = "left" if orderly else "was gone"
        reason = (
            f"its agent {did}, and did not come back within its lease of {self.context.rules.lease_s:g} s"
        )
        if not job.placed:
            return True  # it was stopped meanwhile, and waits
        if self._engine_jobs is None or not self._engine_jobs.holds(job):
            if not orderly and not process_gone:
                self._keep(
                    job, f"{reason}; its slots are kept, since it may go on: release it if it does not"
                )
                return False
            self._end(job, pb.ENDED if orderly else pb.FAILED, reason)
            return True
        stop = process_gone and not (orderly or self._engine_jobs.jobs_survive)
        self._registry.update(
            replace(job, shift_ns=None, turn="", agent=False, reason=reason if stop else job.reason)
        )
        self.context.save([self._registry.jobs[job_id]])
        if stop:
            self._begin(self._engine_jobs.stop(job_id))
        elif not orderly:
            self.context.unheard[job_id] = f"{reason}; its engine says that it goes on"
            _log.warning("job %s: %s", one_line(job_id), self.context.unheard[job_id])
        return True

    def _keep(self, job: JobRecord, reason: str) -> None:
        """Leave a job its slots, and say why."""
        if job.reason != reason:
            self._registry.update(replace(job, reason=reason))
            self.context.save([self._registry.jobs[job.id]])

    def _end(self, job: JobRecord, state: int, reason: str) -> None:
        ended = self._registry.end(job, state, reason, self.context.clock.now_ns())
        self.context.save([ended])
        self.context.placements_changed()
        self._has_ended.set()
        self.agents.over(ended, reason)
        self.placer.unshift_alone(job.links)
        self._capacity_changed(f"{job.id} ended")

    def _capacity_changed(self, cause: str) -> None:
        self.placer.capacity_changed()
        if self._scheduling is not None:
            self._scheduling.changed(cause)

    def _job_queued(self, job_id: str) -> None:
        self.placer.job_queued()
        if self._scheduling is not None:
            self._scheduling.changed(f"{job_id} was queued")

    def _demand(self, job_id: str, field: str) -> Demand:
        job = self._registry.job(job_id, field)
        if job.demand is None:
            raise RequestError(ErrorCode.STATE, field, f"expected a job with a profile, got {job_id!r}")
        return job.demand

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _check_recovered(jobs: Iterable[JobRecord], policy: str) -> None:
    """Raise UsageError if an earlier service has left a job that a scheduler of whole jobs cannot move."""
    for job in jobs:
        if not job.over and not job.spec.elastic:
            raise UsageError(f"--policy: expected one for job {job.id!r}, which is not elastic, got {policy}")


def _score(demands: Sequence[Demand], capacity_bps: int) -> tuple[int, Compatibility]:
    circles = unified(demands)
    return circles.angles, compatibility(circles, capacity_bps)
