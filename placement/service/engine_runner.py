"""The asynchronous interface between the service and the engine that runs its jobs."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from placement.engines.engine import Engine, EngineEvent, EngineJob, HostShare, JobHandle
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.service_address import RESTARTS, TOKEN
from placement.service.protocol.tokens import AcceptedTokens
from placement.service.state.job_record import JobRecord

POLL_S = 0.5

_log = logging.getLogger("mltcp.placement")


class EngineRunner:
    """An engine with a thread that polls it for events.

    Args:
        engine: runs the jobs.
        environment: variables of every job; those of the job itself take precedence.
        tokens: makes the token of each job's agent; None: agents need no token.
    """

    def __init__(
        self, engine: Engine, environment: Mapping[str, str], tokens: AcceptedTokens | None = None
    ) -> None:
        self._engine = engine
        self._environment = environment
        self._tokens = tokens
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def listen(self, known: Sequence[JobHandle], on_event: Callable[[EngineEvent], None]) -> None:
        """Recover the jobs that an earlier service started, and report the events of all jobs from now on.

        Args:
            known: the jobs that had not ended.
            on_event: called in the event loop with each event.
        """
        self._engine.recover(known)
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
        if self._tokens is not None:
            # Otherwise the job would inherit the service's own token, which may be an operator's.
            environment[TOKEN] = self._tokens.token_of_job(job.number)
        environment.update(job.spec.environment)
        launch = f"{job.submitted_ns}-{job.restarts}"
        command, held = tuple(job.spec.command), job.spec.held
        started = EngineJob(job.id, command, len(job.slots), environment, launch, held)
        shares = [HostShare(each.server, tuple(each.slots)) for each in places]
        handle = await asyncio.to_thread(self._engine.start, started, shares)
        return handle.reference

    @property
    def jobs_survive(self) -> bool:
        """Whether jobs go on when the engine is closed."""
        return self._engine.jobs_survive

    async def stop(self, job_id: str, grace_s: float) -> None:
        """Request the end of a job, by SIGTERM and after `grace_s` by SIGKILL; its end is reported as an event.

        Raises:
            MltcpError: the engine does not run the job.
        """
        await asyncio.to_thread(self._engine.stop, job_id, grace_s)

    async def decline(self, reference: str, why: str) -> None:
        """Give a held job back to the workload manager; see :class:`placement.engines.engine.Engine`."""
        await asyncio.to_thread(self._engine.decline, reference, why)

    async def forget(self, handle: JobHandle) -> None:
        """Remove what the engine has kept of a job that is over."""
        await asyncio.to_thread(self._engine.forget, handle)

    def close(self) -> None:
        """Stop polling, and close the engine."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        self._engine.close()

    def _listen(self, loop: asyncio.AbstractEventLoop, on_event: Callable[[EngineEvent], None]) -> None:
        while not self._stopping.is_set():
            try:
                events = self._engine.poll(POLL_S)
            except Exception:  # so that later events arrive nevertheless
                _log.exception("the engine's events were not read")
                self._stopping.wait(POLL_S)
                continue
            for event in events:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(on_event, event)
