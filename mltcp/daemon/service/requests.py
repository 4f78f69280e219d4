"""Handles the requests of the daemon's protocol."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mltcp.control.aggressiveness import Aggressiveness, Shape
from mltcp.core.errors import UsageError, shown
from mltcp.daemon.client.protocol import Fields
from mltcp.daemon.jobs.flows import PassedFlow, passed_flow
from mltcp.daemon.jobs.job import Job, may_see
from mltcp.daemon.jobs.job_manager import DEFAULT_CONTROL, JobManager
from mltcp.daemon.jobs.peer import Peer
from mltcp.daemon.service.server import Connection, DaemonServer
from mltcp.daemon.service.status_builder import StatusBuilder

_log = logging.getLogger("mltcp.daemon")

Reply = Mapping[str, Any]

JOBS_PER_PACKET = 48
MAX_FLOWS_PER_JOB = 8192
_LARGEST_TOTAL_BYTES = 1 << 47
_LONGEST_S = 3600.0


class RequestHandler:
    """Handles every request of the protocol.

    Args:
        manager: of the jobs.
        status: of the daemon and its jobs.
    """

    def __init__(self, manager: JobManager, status: StatusBuilder) -> None:
        self._manager = manager
        self._status = status
        self._requests: dict[str, Callable[[Connection, Fields, Sequence[int]], Iterable[Reply]]] = {
            "register": self._register,
            "flows": self._flows,
            "iteration": self._iteration,
            "progress": self._progress,
            "status": self._send_status,
            "change": self._change,
            "stop": self._stop,
            "subscribe": self._subscribe,
        }

    def handle(self, connection: Connection, fields: Fields, descriptors: Sequence[int]) -> Iterable[Reply]:
        """The replies to a request. Raises MltcpError if it cannot be carried out."""
        name = fields.get("request")
        handle = self._requests.get(name) if isinstance(name, str) else None
        if handle is None:
            raise UsageError(f"request: expected one of {', '.join(self._requests)}, got {shown(name)}")
        if descriptors and name != "flows":
            raise UsageError(f"{name}: expected no descriptors, got {len(descriptors)}")
        return handle(connection, fields, descriptors)

    def left(self, connection: Connection) -> None:
        """Remove a closed connection from its job, and end the job if it was the last."""
        self._manager.attachments.leave(connection)
        job = self._manager.jobs.leave(connection)
        if job is None:
            return
        for flow in [flow for flow, holder in job.flows.items() if holder is connection]:
            job.flows[flow] = None
        if not job.members:
            self._manager.end(job, "its last process has left")

    # -- jobs --------------------------------------------------------------------------------------------------------

    def _register(self, connection: Connection, fields: Fields, _: Sequence[int]) -> Iterable[Reply]:
        peer, jobs = connection.peer, self._manager.jobs
        if jobs.member_of(connection) is not None:
            raise UsageError("this connection has already registered a job")
        name, instance = fields.job_name("job"), fields.text("instance", "", 64)
        rank, attach = fields.whole("rank", 0, 1 << 24, 0), fields.flag("attach")
        job = jobs.find(peer.uid, name, instance)
        if job is None:
            job = self._new_job(peer, name, instance, fields)
            self._manager.begin(job)
        jobs.join(job, connection, rank)
        try:
            if attach:
                self._manager.attachments.attach(connection, job)
        except Exception:
            jobs.leave(connection)
            if not job.members:
                self._manager.end(job, "its process could not be attached")
            raise
        mechanism = job.mechanism
        return [
            {
                "number": job.number,
                "how": mechanism.name,
                "control": job.control,
                "mark": mechanism.mark(job),
            }
        ]

    def _new_job(self, peer: Peer, name: str, instance: str, fields: Fields) -> Job:
        mechanism, control = self._manager.choose(fields.text("control", DEFAULT_CONTROL, 15))
        total_bytes = fields.whole("total_bytes", 0, _LARGEST_TOTAL_BYTES, 0)
        return Job(
            number=self._manager.jobs.free_number(peer),
            name=name,
            instance=instance,
            uid=peer.uid,
            user=peer.user,
            mechanism=mechanism,
            control=control,
            aggressiveness=_aggressiveness(fields, self._manager.aggressiveness),
            total_bytes=total_bytes,
            gap_s=fields.number("gap_s", 0, _LONGEST_S, 0),
            ranks=fields.whole("ranks", 1, 1 << 24, 1),
        )

    def _change(self, connection: Connection, fields: Fields, _: Sequence[int]) -> Iterable[Reply]:
        job = self._manager.jobs.owned(fields.whole("number", 0, 1 << 31), connection.peer)
        self._manager.change(job, _aggressiveness(fields, job.aggressiveness))
        _log.info("%s: F is %s now, asked for by %s", job, _law_text(job.aggressiveness), connection.peer)
        return [{}]

    def _stop(self, connection: Connection, fields: Fields, _: Sequence[int]) -> Iterable[Reply]:
        job = self._manager.jobs.owned(fields.whole("number", 0, 1 << 31), connection.peer)
        self._manager.end(job, f"{connection.peer} asked for it")
        return [{}]

    # -- flows -------------------------------------------------------------------------------------------------------

    def _flows(self, connection: Connection, _: Fields, descriptors: Sequence[int]) -> Iterable[Reply]:
        job = self._manager.jobs.of(connection)
        if not descriptors:
            raise UsageError("flows: expected descriptors of TCP connections, got none")
        refused = []
        for position, descriptor in enumerate(descriptors):
            try:
                self._add_flow(job, connection, passed_flow(descriptor))
            except UsageError as error:
                refused.append({"position": position, "why": str(error)})
        if refused:
            _log.warning(
                "%s: %d descriptors of %s refused: %s", job, len(refused), connection.peer, refused[0]["why"]
            )
        return [{"accepted": len(descriptors) - len(refused), "refused": refused}]

    def _add_flow(self, job: Job, connection: Connection, flow: PassedFlow) -> None:
        if flow.key not in job.flows and len(job.flows) >= MAX_FLOWS_PER_JOB:
            raise UsageError(f"job {job.name} already has {MAX_FLOWS_PER_JOB} flows, the limit")
        self._manager.add_flow(job, flow)
        job.flows[flow.key] = connection

    # -- iterations --------------------------------------------------------------------------------------------------

    def _iteration(self, connection: Connection, fields: Fields, _: Sequence[int]) -> Iterable[Reply]:
        job = self._manager.jobs.of(connection)
        number = fields.whole("number", 0, 1 << 48)
        duration_s = fields.number("duration_s", 0, 86400 * 30)
        sent_bytes = fields.whole("sent_bytes", 0, _LARGEST_TOTAL_BYTES, 0)
        job.times.report(number, duration_s)
        self._manager.report(job, number, duration_s, sent_bytes)
        return [{}]

    def _progress(self, connection: Connection, _: Fields, __: Sequence[int]) -> Iterable[Reply]:
        status = self._status.of_job(self._manager.jobs.of(connection))
        names = ("iterations", "bytes_ratio", "factor", "total_bytes", "gap_s", "iteration_s", "rate_bps")
        return [{name: getattr(status, name) for name in names}]

    # -- watching ----------------------------------------------------------------------------------------------------

    def _send_status(self, connection: Connection, _: Fields, __: Sequence[int]) -> Iterable[Reply]:
        document = self._status.seen_by(connection.peer).document()
        jobs = document["jobs"]
        pages = [jobs[at : at + JOBS_PER_PACKET] for at in range(0, len(jobs), JOBS_PER_PACKET)] or [[]]
        return [{"status": {**document, "jobs": page}, "more": page is not pages[-1]} for page in pages]

    def _subscribe(self, connection: Connection, _: Fields, __: Sequence[int]) -> Iterable[Reply]:
        connection.subscribed = True
        return [{}]


def send_event(server: DaemonServer, job: Job, event: Mapping[str, Any]) -> None:
    """Send a finished iteration of a job to the subscribers that may see the job."""
    for connection in server.subscribers():
        if may_see(job, connection.peer):
            connection.send({"event": "iteration", "job": job.number, "name": job.name, **event})


def _aggressiveness(fields: Fields, former: Aggressiveness) -> Aggressiveness:
    shape = Shape.from_name(fields.text("function", former.shape.label, 32))
    # The constants of one shape mean nothing in another.
    base = former if shape is former.shape else Aggressiveness.of_shape(shape)
    return Aggressiveness(
        shape,
        fields.number("slope", 0, 64, base.slope),
        fields.number("intercept", 0, 64, base.intercept),
    )


def _law_text(law: Aggressiveness) -> str:
    return f"{law.shape.label} {law.slope:g}, {law.intercept:g}"
