"""The jobs that the service's engine runs: started when placed, stopped when released, and moved by stop and resume."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from mltcp.core.errors import MltcpError
from mltcp.core.one_line import one_line
from placement.engines.engine import (
    Engine,
    EngineError,
    EngineEvent,
    EngineJob,
    EngineUnreachableError,
    HostShare,
    JobEvent,
    JobFailed,
    JobFinished,
    JobHandle,
    JobSeen,
    JobStarted,
    JobStopped,
    SlotTakenError,
)
from placement.service.checkpoints import share_done
from placement.service.context import ServiceContext
from placement.service.job_classes import ClassRules, launch_class
from placement.service.lifecycle import JobLifecycle, JobStage
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import ErrorCode, RequestError
from placement.service.protocol.connection import RESTARTS, TOKEN
from placement.service.protocol.security import AcceptedTokens
from placement.service.state.job_record import JobRecord, wrong_state
from placement.service.state.store import StoreUnwritableError

POLL_S = 0.5
_FINISHED = "finished"

_log = logging.getLogger("mltcp.placement")


class EngineRunner:
    """An engine with a thread that polls it for events.

    Attributes:
        engine: runs the jobs; its calls may take long, so they are made in threads.

    Args:
        engine: runs the jobs.
        environment: variables of every job; those of the job itself take precedence.
        tokens: makes the token of each job's agent; None: agents need no token.
        classes: the variables of traffic classes; None: jobs get none.
    """

    def __init__(
        self,
        engine: Engine,
        environment: Mapping[str, str],
        tokens: AcceptedTokens | None = None,
        classes: ClassRules | None = None,
    ) -> None:
        self.engine = engine
        self._environment = environment
        self._tokens = tokens
        self._classes = classes
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def listen(self, known: Sequence[JobHandle], on_event: Callable[[EngineEvent], None]) -> None:
        """Recover the jobs that an earlier service started, and report the events of all jobs from now on.

        Args:
            known: the jobs that had not ended.
            on_event: called in the event loop with each event.
        """
        self.engine.recover(known)
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=self._listen, args=(loop, on_event), name="engine", daemon=True
        )
        self._thread.start()

    async def start(self, job: JobRecord, places: Sequence[pb.ServerSlots]) -> str:
        """Start a job, and return the engine's reference to it.

        Raises:
            MltcpError: the engine failed to start it.
        """
        environment = {**self._environment, "MLTCP_JOB": job.id, RESTARTS: str(job.restarts)}
        if self._classes is not None and job.traffic_class is not None:
            environment |= self._classes.variables(job.traffic_class)
        if self._tokens is not None:
            # Otherwise the job would inherit the service's own token, which may be an operator's.
            environment[TOKEN] = self._tokens.token_of_job(job.number)
        environment.update(job.spec.environment)
        launch = f"{job.submitted_ns}-{job.restarts}"
        command, held = tuple(job.spec.command), job.spec.held
        started = EngineJob(job.id, command, len(job.slots), environment, launch, held)
        shares = [HostShare(each.server, tuple(each.slots)) for each in places]
        handle = await asyncio.to_thread(self.engine.start, started, shares)
        return handle.reference

    def close(self) -> None:
        """Stop polling, and close the engine."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        self.engine.close()

    def _listen(self, loop: asyncio.AbstractEventLoop, on_event: Callable[[EngineEvent], None]) -> None:
        while not self._stopping.is_set():
            try:
                events = self.engine.poll(POLL_S)
            except Exception:  # so that later events arrive nevertheless
                _log.exception("the engine's events were not read")
                self._stopping.wait(POLL_S)
                continue
            for event in events:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(on_event, event)


ENGINE_STOPPED = "the service was stopped"
ENGINE_GONE = "the engine that ran it is gone"

LAUNCH_S = 10.0
"""For how long a launch is tried again that fails by what may pass: a slot that is not free yet, or the system."""

_LAUNCH_AGAIN_S = 0.5

_CHECKPOINT_S = 10.0

_CLOSE_S = 15.0
"""How long the end of stopped jobs is awaited after the grace period, when the service is closed."""


class EngineJobs:
    """The jobs of the service on its engine.

    Args:
        context: the service's state.
        lifecycle: changes the jobs.
        engine: runs the jobs; None: jobs are placed only.
    """

    def __init__(self, context: ServiceContext, lifecycle: JobLifecycle, engine: EngineRunner | None) -> None:
        self._context, self._registry, self._lifecycle = context, context.registry, lifecycle
        self._runner = engine
        self._none_stops = asyncio.Event()
        lifecycle.subscribe(self._job_changed)

    def start(self, on_other: Callable[[EngineEvent], None]) -> None:
        """Take over the jobs of an earlier service, and launch those that it had placed only.

        Args:
            on_other: called with each event that is not about a job that the engine runs.
        """
        if self._runner is None:
            return
        jobs = [job for job in self._registry.unended.values() if job.placed]
        known = [JobHandle(job.id, job.engine) for job in jobs if job.engine]
        self._runner.listen(
            known, lambda event: self._on_event(event) if isinstance(event, JobEvent) else on_other(event)
        )
        for job in jobs:
            stage = self._lifecycle.stage(job)
            if not job.engine:
                self._launch_if_due(job)
            # What an earlier service was asked to stop may not have been told so.
            elif stage in (JobStage.STOPPING, JobStage.RELEASING):
                self._context.begin(self.stop(job.id))

    def _job_changed(self, before: JobRecord | None, job: JobRecord) -> None:
        if job.placed and before is not None and not before.placed:
            self._launch_if_due(job)
        if before is not None and before.state == pb.STOPPING and not self._any_stops():
            self._none_stops.set()

    def _launch_if_due(self, job: JobRecord) -> None:
        if self._lifecycle.has_processes(job):
            self._context.begin(self._launch(job))

    @property
    def _engine(self) -> Engine:
        assert self._runner is not None, "only the engine's jobs are launched, stopped and released"
        return self._runner.engine

    @property
    def jobs_survive(self) -> bool:
        """Whether jobs go on without the service, so that their engine is the one to say that they have ended."""
        return self._engine.jobs_survive

    async def release(self, job: JobRecord, reason: str) -> None:
        """Stop a job that has processes, and end it when they have ended.

        Raises:
            MltcpError: the engine does not run it.
        """
        self._lifecycle.change(job, state=pb.PLACED, reason=reason)
        with suppress(StoreUnwritableError):  # what a job writes may be what the disk is full of
            await self._context.store.committed()
        if job.engine:  # else its launch stops it
            await asyncio.to_thread(self._engine.stop, job.id, self._context.rules.grace_s)

    async def requeue(self, job: JobRecord, reason: str) -> None:
        """Stop a job at a step boundary, so that it goes on with the slots that it is given next.

        Raises:
            RequestError: it cannot be resumed, is being stopped already, or has not been started.
        """
        if self._runner is None:
            raise RequestError(
                ErrorCode.STATE,
                "job_id",
                f"expected a job that an engine runs, got {job.id!r} without an engine",
            )
        if not job.spec.elastic:
            raise RequestError(
                ErrorCode.STATE,
                "job_id",
                f"expected a job that was submitted as elastic, got {job.id!r}, which cannot be resumed",
            )
        if not self._runs(job):
            raise wrong_state("job_id", job, "PLACED and started, and not being stopped")
        # What a job does while it writes its checkpoint is no progress.
        counts = bool(job.spec.model) or job.speed is not None
        done = int(self._context.done(job)) if counts else job.done
        self._lifecycle.change(job, state=pb.STOPPING, reason=reason, done=done)
        await self._context.store.durable()
        await self.stop(job.id)

    async def stop(self, job_id: str) -> None:
        """Stop a job whose record says why."""
        with suppress(MltcpError):  # it has ended by itself; the event is on its way
            await asyncio.to_thread(self._engine.stop, job_id, self._context.rules.grace_s)

    async def decline(self, reference: str, why: str) -> None:
        """Give a held job back to the workload manager."""
        await asyncio.to_thread(self._engine.decline, reference, why)

    async def forget(self, jobs: Sequence[JobRecord]) -> None:
        """Remove what the engine has kept of jobs that are forgotten, such as their logs."""
        for job in jobs:
            if job.engine and self._runner is not None:
                try:
                    await asyncio.to_thread(self._engine.forget, JobHandle(job.id, job.engine))
                except Exception:  # of one job; the others are forgotten nevertheless
                    _log.exception("job %s: its logs were not removed", one_line(job.id))

    async def close(self) -> None:
        """Stop the jobs that can be resumed, within their grace period, and close the engine.

        The next service finds them QUEUED. Where jobs survive the engine, all go on, and the next service follows them.
        """
        if self._runner is None:
            return
        if not self.jobs_survive:
            for job in list(self._registry.unended.values()):
                if job.spec.elastic and self._runs(job):
                    with suppress(MltcpError, TimeoutError):
                        async with asyncio.timeout(_CLOSE_S):
                            await self.requeue(job, ENGINE_STOPPED)
            self._none_stops.clear()
            if self._any_stops():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._context.rules.grace_s + _CLOSE_S):
                        await self._none_stops.wait()
        await asyncio.to_thread(self._runner.close)

    async def _launch(self, job: JobRecord) -> None:
        try:
            job = self._classed(job)
            await self._context.store.durable()
            if self._registry.jobs[job.id].reason:
                raise EngineError(f"job {job.id} was released before it was started")
            reference = await self._start(job)
        except Exception as error:
            if not isinstance(error, (MltcpError, OSError)):
                _log.exception("job %s: its launch failed", one_line(job.id))
            found = self._registry.jobs.get(job.id)
            if found is not None and not found.over:
                state, why = (pb.ENDED, found.reason) if found.reason else (pb.FAILED, _text(error))
                self._lifecycle.end(found, pb.ENDED if found.spec.held else state, why)
                if found.spec.held:  # it has not failed: it is still the workload manager's
                    with suppress(MltcpError):
                        await self.decline(found.spec.held, why)
            return
        now = self._registry.jobs.get(job.id)
        if now is None or now.number != job.number or now.restarts != job.restarts:
            return  # it has ended meanwhile, and was queued again or forgotten
        self._lifecycle.change(now, engine=reference)
        if now.over or now.reason:  # it was released while it was being started
            await self.stop(job.id)

    def _classed(self, job: JobRecord) -> JobRecord:
        """The job with its traffic class, if jobs get any; one that was given to Slurm has an environment already."""
        rules, now = self._context.rules.classes, self._registry.jobs.get(job.id)
        if now is None or rules is None or now.spec.held:
            return job
        if now.number != job.number or now.restarts != job.restarts or not now.placed:
            return job
        chosen = now.traffic_class
        if chosen is None or chosen > rules.highest:
            chosen = launch_class(self._registry, now, rules, self._context.done)
        return self._lifecycle.change(now, traffic_class=chosen)

    async def _start(self, job: JobRecord) -> str:
        """Start a job, again if it fails by what may pass, and for as long as the engine gets no answer.

        Raises:
            MltcpError, OSError: it does not start.
        """
        assert self._runner is not None
        until_s = time.monotonic() + LAUNCH_S
        while True:
            try:
                return await self._runner.start(job, self._registry.places(job))
            except (SlotTakenError, EngineUnreachableError, OSError) as error:
                now = self._registry.jobs[job.id]
                waits = isinstance(error, EngineUnreachableError) or time.monotonic() <= until_s
                if now.over or now.reason or not waits:
                    raise
                _log.warning(
                    "job %s: %s; its launch is tried again", one_line(job.id), one_line(_text(error))
                )
            await asyncio.sleep(_LAUNCH_AGAIN_S)

    def _on_event(self, event: JobEvent) -> None:
        job = self._registry.jobs.get(event.job_id)
        if isinstance(event, JobStarted) or job is None or not job.placed:
            return
        if isinstance(event, JobSeen):
            self._context.seen[job.id] = event.text
            return
        self._context.seen.pop(job.id, None)
        if self._goes_on(job, event):
            if job.spec.checkpoints:
                self._context.begin(self._requeued_at_checkpoint(job.id, event))
            else:
                self._requeued(job, event, int(self._context.done(job)))
        elif isinstance(event, JobFailed):
            self._lifecycle.end(job, pb.FAILED, event.why)
        elif isinstance(event, JobFinished) and job.state == pb.STOPPING:
            self._lifecycle.end(job, pb.ENDED, _FINISHED)  # before it could be stopped
        else:
            why = event.why if isinstance(event, JobStopped) else ""
            self._lifecycle.end(job, pb.ENDED, job.reason or why or _FINISHED)

    def _goes_on(self, job: JobRecord, event: JobEvent) -> bool:
        """Whether a job whose processes have ended is to be started again."""
        lost = isinstance(event, JobFailed) and event.lost
        again = isinstance(event, JobFailed) and event.again
        if job.state == pb.STOPPING:
            return lost or isinstance(event, JobStopped)
        return lost and (job.spec.elastic or again) and not job.reason

    async def _requeued_at_checkpoint(self, job_id: str, event: JobEvent) -> None:
        """Queue a job whose processes have ended, with what its newest checkpoint has."""
        job = self._registry.jobs[job_id]
        done, why = int(self._context.done(job)), ""
        try:
            async with asyncio.timeout(_CHECKPOINT_S):
                share = await asyncio.to_thread(share_done, Path(job.spec.checkpoints))
            done = min(int(share * job.spec.iterations), job.spec.iterations - 1)
        except TimeoutError:
            why = f"{job.spec.checkpoints}: not read within {_CHECKPOINT_S:g} s"
        except Exception as error:  # it goes on all the same
            why = str(error)
        if why:
            _log.warning("job %s: its progress is estimated: %s", one_line(job_id), one_line(why))
        now = self._registry.jobs.get(job_id)
        if now is None or not now.placed:
            return
        if self._goes_on(now, event):
            self._requeued(now, event, done)
        else:  # it was released meanwhile
            self._lifecycle.end(now, pb.ENDED, now.reason)

    def _requeued(self, job: JobRecord, event: JobEvent, done: int) -> None:
        reason = job.reason or (event.why if isinstance(event, JobFailed) and event.again else ENGINE_GONE)
        if not job.spec.elastic:
            reason += "; it starts again from its beginning"
            done = 0
        elif not (isinstance(event, JobStopped) and event.orderly):
            reason += "; it did not stop by itself, and goes on from its last checkpoint"
        _log.info("job %s: %s", one_line(job.id), one_line(reason))
        self._lifecycle.requeue(job, reason, done)

    def _runs(self, job: JobRecord) -> bool:
        """Whether a job has been started, and is not being stopped."""
        return bool(job.engine) and self._lifecycle.stage(job) is JobStage.RUNNING

    def _any_stops(self) -> bool:
        return any(job.state == pb.STOPPING for job in self._registry.unended.values())


def _text(error: Exception) -> str:
    """An error in a line; one of the system with its text only, without its number."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
