"""Coordination of agents: their streams and leases, reports of iteration starts, and corrective delays."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from mltcp.core.one_line import one_line
from mltcp.core.processes import boot_id, pid_namespace, start_ticks
from placement.service.context import ServiceContext
from placement.service.drift import IterationTiming, JobTimelines, overlap
from placement.service.engine_jobs import EngineJobs
from placement.service.lifecycle import JobLifecycle, JobStage
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import check_text, invalid
from placement.service.state.job_record import JobRecord, wrong_state


def is_known_to_be_gone(process: pb.AgentProcess) -> bool:
    """Whether it was on this machine, where its number is seen, and has ended."""
    if process.boot_id != boot_id() or process.pid_namespace != pid_namespace():
        return False
    return start_ticks(process.pid) != process.start_ticks


class AgentSession:
    """The queue of decisions to one agent."""

    def __init__(self, job_id: str, ranks: int) -> None:
        self.job_id = job_id
        self.ranks = ranks
        self._decisions: asyncio.Queue[pb.Decision | None] = asyncio.Queue()

    def send(self, decision: pb.Decision) -> None:
        """Queue a decision."""
        self._decisions.put_nowait(decision)

    def end(self) -> None:
        """End the stream after the queued decisions."""
        self._decisions.put_nowait(None)

    async def next(self) -> pb.Decision | None:
        """The next decision; None at the end."""
        return await self._decisions.get()


class AgentSessions:
    """At most one session per job; a new one replaces the old. A job that lost its session has a lease.

    Args:
        lease_s: length of the lease.
        on_end: called with the job's id when its lease expires.
    """

    def __init__(self, lease_s: float, on_end: Callable[[str], None]) -> None:
        self.lease_s = lease_s
        self._on_end = on_end
        self._sessions: dict[str, AgentSession] = {}
        self._leases: dict[str, asyncio.TimerHandle] = {}

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._sessions

    @property
    def attached(self) -> int:
        """The number of sessions."""
        return len(self._sessions)

    @property
    def leased(self) -> int:
        """The number of jobs without a session whose lease runs."""
        return len(self._leases)

    def attach(self, session: AgentSession) -> None:
        """Add a session, detach the job's previous one, and end its lease."""
        before = self._sessions.get(session.job_id)
        if before is not None:
            before.send(pb.Decision(detach=pb.Detach(reason="another agent of this job has attached")))
            before.end()
        self._sessions[session.job_id] = session
        self._end_lease(session.job_id)

    def leave(self, session: AgentSession) -> bool:
        """Remove a session, and return whether it was the job's present one."""
        if self._sessions.get(session.job_id) is not session:
            return False
        del self._sessions[session.job_id]
        return True

    def lease(self, job_id: str) -> None:
        """Start the lease of a job without a session."""
        self._end_lease(job_id)
        loop = asyncio.get_running_loop()
        self._leases[job_id] = loop.call_later(self.lease_s, self._over, job_id)

    def send(self, job_id: str, decision: pb.Decision) -> bool:
        """Send a decision to a job's agent, and return whether one is attached."""
        session = self._sessions.get(job_id)
        if session is not None:
            session.send(decision)
        return session is not None

    def detach(self, job_id: str, reason: str) -> None:
        """End the session and the lease of a job that has ended."""
        self._end_lease(job_id)
        session = self._sessions.pop(job_id, None)
        if session is not None:
            session.send(pb.Decision(detach=pb.Detach(reason=reason)))
            session.end()

    def close(self) -> None:
        """End all sessions without a Detach: the agents reconnect to the next service."""
        for session in self._sessions.values():
            session.end()
        self._sessions.clear()
        for job_id in list(self._leases):
            self._end_lease(job_id)

    def _end_lease(self, job_id: str) -> None:
        handle = self._leases.pop(job_id, None)
        if handle is not None:
            handle.cancel()

    def _over(self, job_id: str) -> None:
        self._leases.pop(job_id, None)
        self._on_end(job_id)


# ------------------------------------------------------------------------------------------------------ coordination


_log = logging.getLogger("mltcp.placement")

SLOWED = 0.1
"""A job is slowed down if its iterations take longer than its profile by more than this fraction."""

COINCIDES = 0.05
"""Jobs are not named that send for less than this fraction of a slowed job's sending."""

MOST_BESIDE = 5

SILENT_NS = 10_000_000_000
"""A job without a report for this time and for three of its iterations is left out when its group is compared."""


class AgentCoordinator:
    """Keeps jobs that share links aligned with their time shifts.

    Args:
        context: the service's state.
        lifecycle: changes the jobs.
        engine_jobs: the jobs that an engine runs.
    """

    def __init__(self, context: ServiceContext, lifecycle: JobLifecycle, engine_jobs: EngineJobs) -> None:
        self._context, self._lifecycle, self._engine_jobs = context, lifecycle, engine_jobs
        self._timelines = JobTimelines(context.rules.drift_threshold, context.epoch)
        self.sessions = AgentSessions(context.rules.lease_s, self._lease_over)
        self._left: set[str] = set()
        self._held: dict[str, pb.Delay] = {}
        self._processes: dict[str, pb.AgentProcess] = {}
        lifecycle.subscribe(self._job_changed)

    def resume(self) -> None:
        """After a restart, start the lease of every job that had an agent."""
        for job in self._context.registry.unended.values():
            if job.placed and job.agent:
                self.sessions.lease(job.id)

    def attach(self, hello: pb.Hello) -> AgentSession:
        """Open the session of an agent.

        Raises:
            RequestError: the job is unknown or not placed, or the number of ranks is out of range.
        """
        job = self._context.registry.job(hello.job_id, "hello.job_id")
        if not job.placed:
            raise wrong_state("hello.job_id", job, "PLACED")
        if hello.HasField("restarts") and hello.restarts != job.restarts:
            raise wrong_state(
                "hello.restarts", job, f"in run {hello.restarts}, as this agent, not {job.restarts}"
            )
        if not 1 <= hello.ranks <= 1_000_000:
            raise invalid("hello.ranks", f"expected 1 to 1000000, got {hello.ranks}")
        check_text(hello.process.boot_id, "hello.process.boot_id")
        session = AgentSession(job.id, hello.ranks)
        self.sessions.attach(session)
        self._context.unheard.pop(job.id, None)
        self._timelines.forget(job.id)
        self._left.discard(job.id)
        self._held.pop(job.id, None)
        self._processes[job.id] = hello.process
        kept = self._lifecycle.stage(job) is JobStage.RUNNING and job.reason and not job.engine
        if kept or not job.agent:
            self._lifecycle.change(job, agent=True, reason="" if kept else job.reason)
        return session

    def leave(self, session: AgentSession, orderly: bool) -> None:
        """Close a session, and start the lease of its job."""
        if not self.sessions.leave(session):
            return
        job = self._context.registry.jobs[session.job_id]
        if job.placed:
            if orderly:
                self._left.add(job.id)
            self.sessions.lease(job.id)

    def message(self, session: AgentSession, message: pb.AgentMessage) -> None:
        """Handle a message that follows an agent's Hello.

        Raises:
            RequestError: the message is invalid.
        """
        kind = message.WhichOneof("message")
        if kind == "iteration":
            sent = message.iteration
            report = IterationTiming(sent.number, sent.began_ns, sent.duration_ns)
            self._send(self.reported(session.job_id, report, "iteration."))
        elif kind == "applied":
            self._timelines.applied(session.job_id, message.applied.sequence, message.applied.iteration)
        elif kind != "profile":
            raise invalid(
                kind or "message", "expected an iteration, applied or profile message after the first one"
            )

    def reported(self, job_id: str, report: IterationTiming, prefix: str = "") -> dict[str, pb.Delay]:
        """Record an iteration start, and return the delays that it calls for, by job.

        Raises:
            RequestError: the report is invalid, or its clock jumped.
        """
        context = self._context
        now_ns = context.clock.now_ns()
        job = context.registry.jobs[job_id]
        counts = self._timelines.note(job_id, report, now_ns, prefix)
        if context.contention is not None:
            context.contention.reported(context.registry, job, report.number, report.duration_ns)
        if job.placed and job.spec.elastic:
            context.restarts.reported(job, report.number, report.began_ns, report.duration_ns)
        self._progressed(job, report)
        if not counts or not job.turn:
            return {}
        group = self._reporting_group(job, now_ns)
        return self._timelines.delays([each.id for each in group], *_targets(group), now_ns)

    def _progressed(self, job: JobRecord, report: IterationTiming) -> None:
        """Note how far a job is by a report; of one with a speed, it is a measurement, too."""
        context = self._context
        if job.speed is None:
            context.registry.progress(job, min(report.number, job.spec.iterations))
            return
        if not job.placed:  # the last report of a run that was stopped
            return
        one_server = context.on_one_server(job)
        speed = context.speeds.reported(job, one_server, report.number, report.duration_ns)
        further = context.registry.progress(job, int(context.done(job)))
        if speed is not job.speed:
            self._lifecycle.change(further, speed=speed)

    def report_alone(self, job_id: str, report: IterationTiming) -> pb.Delay | None:
        """`reported` for a job without a session: returns the job's own delay, which counts as applied.

        Raises:
            RequestError: the report is invalid, or its clock jumped.
        """
        self._send(self.reported(job_id, report))
        own = self._held.pop(job_id, None)
        if own is not None:
            self._timelines.applied(job_id, own.sequence, report.number + 2)
        return own

    def _send(self, delays: Mapping[str, pb.Delay]) -> None:
        """Send delays to agents; those of jobs without a session are held until the job's next report."""
        self._context.counts.delays += len(delays)
        for job_id, delay in delays.items():
            if not self.sessions.send(job_id, pb.Decision(delay=delay)):
                self._held[job_id] = delay

    def drift_ns(self, job: JobRecord) -> int | None:
        """How far a job is ahead of its time shift by the last reports; None if unknown."""
        now_ns = self._context.clock.now_ns()
        group = self._reporting_group(job, now_ns) if job.turn else []
        if job not in group or len(group) < 2:
            return None
        return self._timelines.ahead_ns(job.id, *_targets(group))

    def slowed(self) -> int:
        """The number of jobs whose iterations take longer than their profiles, by more than SLOWED."""
        jobs = self._context.registry.jobs
        return sum(self._longer_by(jobs[each]) > SLOWED for each in self._timelines if each in jobs)

    def slowed_by(self, job: JobRecord) -> str:
        """For a job that takes longer than its profile: the jobs on its links, and how much of its sending coincides.

        By the reported iterations and the profiles: on which links queues are, the service does not see. Empty: it is
        not slowed down, or does not report.
        """
        longer = self._longer_by(job)
        links_of: dict[str, list[str]] = {}
        for link in job.links if longer > SLOWED else ():
            if others := self._beside(job, link):
                links_of.setdefault(", ".join(others), []).append(link)
        found = [f"with {others} on {', '.join(links)}" for others, links in links_of.items()]
        if not found:
            return ""
        return (
            f"iterations take {1 + longer:.2f} times as long as its profile; it sends {' and '.join(found)}"
        )

    def _longer_by(self, job: JobRecord) -> float:
        reports = job.demand is not None and self._reports(job, self._context.clock.now_ns())
        return self._timelines.of(job.id).longer_by(job.iteration_ns) if reports else 0.0

    def _beside(self, job: JobRecord, link: str) -> list[str]:
        """The other jobs of a link that send at the same time, most time first."""
        jobs, now_ns = self._context.registry.jobs, self._context.clock.now_ns()
        shares: dict[str, float] = {}
        own, own_ns = self._timelines.of(job.id).report, self._sends_ns(job)
        for name in self._context.registry.jobs_of.get(link, ()):
            other = self._timelines.of(name).report
            if own and other and name != job.id and self._reports(jobs[name], now_ns):
                shares[name] = overlap(own.began_ns, own_ns, other, self._sends_ns(jobs[name]))
        ordered = sorted(
            (each for each in shares if shares[each] > COINCIDES), key=lambda each: -shares[each]
        )
        return [f"{each} ({100 * shares[each]:.0f} % of the time)" for each in ordered[:MOST_BESIDE]]

    def _sends_ns(self, job: JobRecord) -> int:
        """For how long a job sent in its last iteration: all of it but the silence of its profile."""
        report = self._timelines.of(job.id).report
        phases = job.demand.phases if job.demand else ()
        silent_ns = sum(phase.duration_ns for phase in phases if not phase.bandwidth_bps)
        return max(0, report.duration_ns - silent_ns) if report else 0

    def _job_changed(self, before: JobRecord | None, job: JobRecord) -> None:
        """Forget a job that has given its slots back, and detach its agent."""
        if before is None or not before.placed or job.placed:
            return
        reason = job.reason if job.over else "the job is stopped, and goes on elsewhere"
        self.sessions.detach(job.id, reason)
        self._timelines.drop(job.id)
        self._left.discard(job.id)
        self._held.pop(job.id, None)
        self._processes.pop(job.id, None)
        self._context.unheard.pop(job.id, None)

    def _reporting_group(self, job: JobRecord, now_ns: int) -> list[JobRecord]:
        """The jobs with the same turn as this one, itself included, that report."""
        registry = self._context.registry
        around = registry.traffic_around(job.links)
        names = dict.fromkeys(each for jobs in around.values() for each in jobs)
        jobs = [registry.jobs[name] for name in names]
        return [each for each in jobs if each.turn == job.turn and self._reports(each, now_ns)]

    def _reports(self, job: JobRecord, now_ns: int) -> bool:
        timeline = self._timelines.of(job.id)
        return timeline.report is not None and now_ns - timeline.heard_ns < max(
            SILENT_NS, 3 * job.iteration_ns
        )

    def _lease_over(self, job_id: str) -> None:
        process = self._processes.get(job_id)
        gone = process is not None and is_known_to_be_gone(process)
        if self._settled(self._context.registry.jobs[job_id], job_id in self._left, gone):
            self._left.discard(job_id)
        else:
            self.sessions.lease(job_id)

    def _settled(self, job: JobRecord, orderly: bool, process_gone: bool) -> bool:
        """End a job whose agent is gone, unless its processes may go on; False: its lease begins again.

        An engine that runs the job knows better than a silent agent whether it goes on: the job is left to it, unless
        the service would be the only one to notice that its agent's process is gone.

        Args:
            job: its lease is over.
            orderly: whether its agent closed the stream in an orderly way.
            process_gone: whether the agent's process is known to be gone.
        """
        if not job.placed:
            return True  # it was stopped meanwhile, and waits
        did, lease_s = "left" if orderly else "was gone", self._context.rules.lease_s
        reason = f"its agent {did}, and did not come back within its lease of {lease_s:g} s"
        if not self._lifecycle.has_processes(job):
            if orderly or process_gone:
                self._lifecycle.end(job, pb.ENDED if orderly else pb.FAILED, reason)
                return True
            kept = f"{reason}; its slots are kept, since it may go on: release it if it does not"
            if job.reason != kept:
                self._lifecycle.change(job, reason=kept)
            return False
        stop = process_gone and not (orderly or self._engine_jobs.jobs_survive)
        why = reason if stop else job.reason
        self._lifecycle.change(job, shift_ns=None, turn="", agent=False, reason=why)
        if stop:
            self._context.begin(self._engine_jobs.stop(job.id))
        elif not orderly:
            self._context.unheard[job.id] = f"{reason}; its engine says that it goes on"
            _log.warning("job %s: %s", one_line(job.id), self._context.unheard[job.id])
        return True


def _targets(group: Sequence[JobRecord]) -> tuple[dict[str, int], dict[str, int]]:
    """By job, when in the common turn it should begin to send, and its period.

    Reports have the time at which sending began, so the silence at the start of the iteration is added to the shift.
    """
    sends = {job.id: (job.shift_ns or 0) + (job.demand.silence_ns if job.demand else 0) for job in group}
    return sends, {job.id: job.iteration_ns for job in group}
