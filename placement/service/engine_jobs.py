"""The jobs that the service's engine runs: started when placed, stopped when released, and moved by stop and resume."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace

from mltcp.core.errors import MltcpError
from placement.engines.engine import EngineEvent, JobFailed, JobHandle, JobStarted, JobStopped
from placement.service.context import ServiceContext
from placement.service.engine_runner import EngineRunner
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.request_error import ErrorCode, RequestError
from placement.service.state.job_progress import done_iterations
from placement.service.state.job_record import JobRecord, wrong_state

ENGINE_STOPPED = "the service was stopped"
ENGINE_GONE = "the engine that ran it is gone"

_CLOSE_S = 15.0
"""How long the end of stopped jobs is awaited after the grace period, when the service is closed."""

_log = logging.getLogger("mltcp.placement")


@dataclass(frozen=True)
class JobReactions:
    """The actions of the service when the state of a job on the engine has changed.

    Attributes:
        begin: starts a task.
        ended: ends a job, with its final state and the reason.
        requeued: a job has been stopped and waits for other slots; its former record.
        launched: a job has been started.
    """

    begin: Callable[[Coroutine[None, None, None]], None]
    ended: Callable[[JobRecord, int, str], None]
    requeued: Callable[[JobRecord], None]
    launched: Callable[[], None]


class EngineJobs:
    """The states of jobs on an engine.

    A job that is to go on elsewhere is STOPPING from the request until its processes have ended, and then QUEUED; both
    states are durable before anything is done about them. A job that can be resumed (`elastic`) is also queued again
    when the engine ended instead of the job: it goes on from its last checkpoint.

    Args:
        context: the service's state.
        engine: runs the jobs.
        reactions: called when a job's state changes.
    """

    def __init__(self, context: ServiceContext, engine: EngineRunner, reactions: JobReactions) -> None:
        self._context, self._engine, self._reactions = context, engine, reactions
        self._registry = context.registry
        self._all_gone = asyncio.Event()

    def start(self) -> None:
        """Take over the jobs of an earlier service, and launch those that it had placed only."""
        jobs = [job for job in self._registry.jobs.values() if job.placed]
        self._engine.listen([JobHandle(job.id, job.engine) for job in jobs if job.engine], self._on_event)
        for job in jobs:
            self.placed(job)

    def placed(self, job: JobRecord) -> None:
        """Launch a job that has been placed, if it has a command and does not run."""
        if job.spec.command and not job.engine:
            self._reactions.begin(self._launch(job))

    async def release(self, job: JobRecord, reason: str) -> None:
        """Stop a job that runs, and end it when its processes have ended.

        Raises:
            MltcpError: the engine does not run it.
        """
        self._change(replace(job, state=pb.PLACED, reason=reason))
        await self._context.store.committed()
        await self._engine.stop(job.id, self._context.rules.grace_s)

    async def requeue(self, job: JobRecord, reason: str) -> None:
        """Stop a job at a step boundary, so that it goes on with the slots that it is given next.

        Raises:
            RequestError: it cannot be resumed, is being stopped already, or has not been started.
        """
        if not job.spec.elastic:
            raise RequestError(
                ErrorCode.STATE,
                "job_id",
                f"expected a job that was submitted as elastic, got {job.id!r}, which cannot be resumed",
            )
        if job.state != pb.PLACED or not job.engine or job.reason:
            raise wrong_state("job_id", job, "PLACED and started, and not being stopped")
        self._change(replace(job, state=pb.STOPPING, reason=reason))
        await self._context.store.committed()
        with suppress(MltcpError):  # it has ended by itself; the event is on its way
            await self._engine.stop(job.id, self._context.rules.grace_s)

    async def stop(self, job_id: str) -> None:
        """Stop a job whose record says why."""
        with suppress(MltcpError):  # it has ended by itself; the event is on its way
            await self._engine.stop(job_id, self._context.rules.grace_s)

    async def close(self) -> None:
        """Stop the jobs that can be resumed, within their grace period, and close the engine.

        The next service finds them QUEUED.
        """
        running = [job for job in self._registry.jobs.values() if self._can_resume(job)]
        for job in running:
            with suppress(MltcpError):
                await self.requeue(job, ENGINE_STOPPED)
        self._all_gone.clear()
        if self._stopping():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), self._context.rules.grace_s + _CLOSE_S)
        await asyncio.to_thread(self._engine.close)

    async def _launch(self, job: JobRecord) -> None:
        await self._context.store.committed()
        try:
            reference = await self._engine.start(job, self._registry.places(job))
        except MltcpError as error:
            self._reactions.ended(self._registry.jobs[job.id], pb.FAILED, str(error))
            return
        if self._registry.jobs[job.id].over:
            await self.stop(job.id)  # it was released while it was being started
            return
        self._change(replace(self._registry.jobs[job.id], engine=reference))
        self._reactions.launched()

    def _on_event(self, event: EngineEvent) -> None:
        job = self._registry.jobs.get(event.job_id)
        if isinstance(event, JobStarted) or job is None or not job.placed:
            return
        if self._goes_on(job, event):
            self._requeued(job, event)
        elif isinstance(event, JobFailed):
            self._reactions.ended(job, pb.FAILED, event.why)
        else:
            self._reactions.ended(job, pb.ENDED, job.reason or "finished")

    def _goes_on(self, job: JobRecord, event: EngineEvent) -> bool:
        """Whether a job whose processes have ended is to be started again."""
        lost = isinstance(event, JobFailed) and event.lost
        if job.state == pb.STOPPING:
            return lost or isinstance(event, JobStopped)
        return lost and job.spec.elastic and not job.reason

    def _requeued(self, job: JobRecord, event: EngineEvent) -> None:
        reason = job.reason or ENGINE_GONE
        if not (isinstance(event, JobStopped) and event.orderly):
            reason += "; it did not stop by itself, and goes on from its last checkpoint"
        queued = self._registry.requeue(job, reason, done_iterations(job, self._context.clock.now_ns()))
        self._context.decisions.pop(job.number, None)
        self._context.save([queued])
        _log.info("job %s: %s", job.id, reason)
        self._reactions.requeued(job)
        if not self._stopping():
            self._all_gone.set()

    def _can_resume(self, job: JobRecord) -> bool:
        return job.state == pb.PLACED and bool(job.engine) and job.spec.elastic and not job.reason

    def _stopping(self) -> bool:
        return any(job.state == pb.STOPPING for job in self._registry.jobs.values())

    def _change(self, job: JobRecord) -> None:
        self._registry.update(job)
        self._context.save([job])
