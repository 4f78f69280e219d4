"""Jobs that an engine runs: started when they are placed, stopped when they are released, watched in between."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence

from placement.engines.engine import Engine, EngineEvent, EngineJob, HostShare, JobHandle
from placement.service.protocol import placement_pb2 as pb
from placement.service.state.job_record import JobRecord

POLL_S = 0.5


class EngineRunner:
    """An engine with a thread that listens to it.

    Args:
        engine: to run jobs with.
        environment: that every job gets, unless it has such a variable itself.
    """

    def __init__(self, engine: Engine, environment: Mapping[str, str]) -> None:
        self._engine = engine
        self._environment = environment
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def listen(self, known: Sequence[JobHandle], on_event: Callable[[EngineEvent], None]) -> None:
        """Take up the jobs that an earlier service started, and tell what happens to all of them from now on.

        Args:
            known: those that had no end yet.
            on_event: called in the event loop.
        """
        self._engine.recover(known)
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=self._listen, args=(loop, on_event), name="engine", daemon=True
        )
        self._thread.start()

    async def start(self, job: JobRecord, places: Sequence[pb.ServerSlots]) -> str:
        """Start a job; what it is to be found by again.

        Raises:
            MltcpError: the engine cannot.
        """
        environment = {**self._environment, "MLTCP_JOB": job.id, **job.spec.environment}
        started = EngineJob(job.id, tuple(job.spec.command), job.count, environment)
        shares = [HostShare(each.server, tuple(each.slots)) for each in places]
        handle = await asyncio.to_thread(self._engine.start, started, shares)
        return handle.reference

    async def stop(self, job_id: str) -> None:
        """Have a job end; the event follows.

        Raises:
            MltcpError: the engine cannot.
        """
        await asyncio.to_thread(self._engine.stop, job_id)

    def close(self) -> None:
        """Stop listening, and end the engine."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        self._engine.close()

    def _listen(self, loop: asyncio.AbstractEventLoop, on_event: Callable[[EngineEvent], None]) -> None:
        while not self._stopping.is_set():
            for event in self._engine.poll(POLL_S):
                if not loop.is_closed():
                    loop.call_soon_threadsafe(on_event, event)
