"""Streams to the agents of jobs, and the leases of jobs whose stream has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from placement.service.protocol import placement_pb2 as pb


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
