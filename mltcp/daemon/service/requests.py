"""What peers may ask for, and what is done about it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mltcp.control.aggressiveness import Aggressiveness, Shape
from mltcp.core.errors import NotAvailableError, UsageError
from mltcp.daemon.client.protocol import Fields
from mltcp.daemon.jobs.flows import PassedFlow, passed_flow
from mltcp.daemon.jobs.job import KERNEL, MOST_FLOWS_PER_JOB, NONE, TC, Job, may_see
from mltcp.daemon.jobs.job_manager import Host
from mltcp.daemon.jobs.paced import MARK
from mltcp.daemon.service.server import Connection, Peer, Server
from mltcp.daemon.service.status_builder import Reading
from mltcp.ebpf.congestion_controls import CONTROLS, available

_log = logging.getLogger("mltcp.daemon")

Reply = Mapping[str, Any]

JOBS_PER_PACKET = 48
_DEFAULT, _NONE = "default", "none"
_LARGEST_TOTAL_BYTES = 1 << 47
_LONGEST_S = 3600.0


class Requests:
    """Handles every request of the protocol.

    Args:
        host: what the daemon has of this host.
        reading: what is said of jobs.
    """

    def __init__(self, host: Host, reading: Reading) -> None:
        self._host = host
        self._reading = reading
        self._requests: dict[str, Callable[[Connection, Fields, Sequence[int]], Iterable[Reply]]] = {
            "register": self._register,
            "flows": self._flows,
            "iteration": self._iteration,
            "progress": self._progress,
            "status": self._status,
            "change": self._change,
            "stop": self._stop,
            "subscribe": self._subscribe,
        }

    def handle(self, connection: Connection, fields: Fields, descriptors: Sequence[int]) -> Iterable[Reply]:
        """The replies to a request. Raises MltcpError for what is wrong with it."""
        name = fields.get("request")
        handle = self._requests.get(name) if isinstance(name, str) else None
        if handle is None:
            raise UsageError(f"unknown request: {', '.join(self._requests)} are allowed")
        if descriptors and name != "flows":
            raise UsageError(f"{name}: no descriptors are allowed with it")
        return handle(connection, fields, descriptors)

    def left(self, connection: Connection) -> None:
        """A connection is gone: its job is over with its last one."""
        self._host.attachments.leave(connection)
        job = self._host.jobs.leave(connection)
        if job is None:
            return
        for flow in [flow for flow, holder in job.flows.items() if holder is connection]:
            job.flows[flow] = None
        if not job.members:
            self._host.end(job, "its last process has left")

    # -- jobs --------------------------------------------------------------------------------------------------------

    def _register(self, connection: Connection, fields: Fields, _: Sequence[int]) -> Iterable[Reply]:
        peer, jobs = connection.peer, self._host.jobs
        if jobs.member_of(connection) is not None:
            raise UsageError("this connection has registered a job already: one is allowed")
        name, instance = fields.job_name("job"), fields.text("instance", "", 64)
        rank, attach = fields.whole("rank", 0, 1 << 24, 0), fields.flag("attach")
        job = jobs.find(peer.uid, name, instance)
        if job is None:
            job = self._new_job(peer, name, instance, fields)
            self._host.begin(job)
        jobs.join(job, connection, rank)
        try:
            if attach:
                self._host.attachments.attach(connection, job)
        except Exception:
            jobs.leave(connection)
            if not job.members:
                self._host.end(job, "its process could not be attached")
            raise
        mark = MARK | job.number if job.how == TC else 0
        return [{"number": job.number, "how": job.how, "control": job.control, "mark": mark}]

    def _new_job(self, peer: Peer, name: str, instance: str, fields: Fields) -> Job:
        how, control = self._how(fields.text("control", _DEFAULT, 15))
        total_bytes = fields.whole("total_bytes", 0, _LARGEST_TOTAL_BYTES, 0)
        return Job(
            number=self._host.jobs.free_number(peer),
            name=name,
            instance=instance,
            uid=peer.uid,
            user=peer.user,
            how=how,
            control=control,
            aggressiveness=_aggressiveness(fields, self._host.aggressiveness),
            total_bytes=total_bytes,
            gap_s=fields.number("gap_s", 0, _LONGEST_S, 0),
            ranks=fields.whole("ranks", 1, 1 << 24, 1),
        )

    def _how(self, asked: str) -> tuple[str, str]:
        """What is to control a job that asks for this control: one thing, never two."""
        host = self._host
        if asked == _DEFAULT:
            if host.pacer is not None:
                return TC, NONE
            return (KERNEL, host.default_control) if host.kernel is not None else (NONE, NONE)
        if asked == _NONE or (asked in available() and not host.takes_jobs(asked)):
            return (NONE if host.pacer is None else TC), (NONE if asked == _NONE else asked)
        if not host.takes_jobs(asked):
            known = asked in CONTROLS
            allowed = ", ".join(dict.fromkeys([_DEFAULT, _NONE, *available()]))
            error = NotAvailableError if known else UsageError
            what = "is not loaded on this host" if known else "is no congestion control"
            raise error(f"{asked!r} {what}: {allowed} are allowed")
        return KERNEL, asked

    def _change(self, connection: Connection, fields: Fields, _: Sequence[int]) -> Iterable[Reply]:
        job = self._host.jobs.owned(fields.whole("number", 0, 1 << 31), connection.peer)
        self._host.change(job, _aggressiveness(fields, job.aggressiveness))
        _log.info("%s: F is %s now, asked for by %s", job, _shown(job.aggressiveness), connection.peer)
        return [{}]

    def _stop(self, connection: Connection, fields: Fields, _: Sequence[int]) -> Iterable[Reply]:
        job = self._host.jobs.owned(fields.whole("number", 0, 1 << 31), connection.peer)
        self._host.end(job, f"{connection.peer} asked for it")
        return [{}]

    # -- flows -------------------------------------------------------------------------------------------------------

    def _flows(self, connection: Connection, _: Fields, descriptors: Sequence[int]) -> Iterable[Reply]:
        job = self._host.jobs.of(connection)
        if not descriptors:
            raise UsageError("flows: descriptors of TCP connections have to come with it, and none did")
        refused = []
        for position, descriptor in enumerate(descriptors):
            try:
                self._take(job, connection, passed_flow(descriptor))
            except UsageError as error:
                refused.append({"position": position, "why": str(error)})
        if refused:
            _log.warning(
                "%s: %d descriptors of %s refused: %s", job, len(refused), connection.peer, refused[0]["why"]
            )
        return [{"accepted": len(descriptors) - len(refused), "refused": refused}]

    def _take(self, job: Job, connection: Connection, flow: PassedFlow) -> None:
        if flow.key not in job.flows and len(job.flows) >= MOST_FLOWS_PER_JOB:
            raise UsageError(f"job {job.name} has {MOST_FLOWS_PER_JOB} flows, which is the most")
        self._host.take(job, flow)
        job.flows[flow.key] = connection

    # -- iterations --------------------------------------------------------------------------------------------------

    def _iteration(self, connection: Connection, fields: Fields, _: Sequence[int]) -> Iterable[Reply]:
        job = self._host.jobs.of(connection)
        number = fields.whole("number", 0, 1 << 48)
        duration_s = fields.number("duration_s", 0, 86400 * 30)
        sent_bytes = fields.whole("sent_bytes", 0, _LARGEST_TOTAL_BYTES, 0)
        job.times.report(number, duration_s)
        self._host.tell(job, number, duration_s, sent_bytes)
        return [{}]

    def _progress(self, connection: Connection, _: Fields, __: Sequence[int]) -> Iterable[Reply]:
        status = self._reading.of_job(self._host.jobs.of(connection))
        names = ("iterations", "bytes_ratio", "factor", "total_bytes", "gap_s", "iteration_s", "rate_bps")
        return [{name: getattr(status, name) for name in names}]

    # -- watching ----------------------------------------------------------------------------------------------------

    def _status(self, connection: Connection, _: Fields, __: Sequence[int]) -> Iterable[Reply]:
        document = self._reading.seen_by(connection.peer).document()
        jobs = document["jobs"]
        pages = [jobs[at : at + JOBS_PER_PACKET] for at in range(0, len(jobs), JOBS_PER_PACKET)] or [[]]
        return [{"status": {**document, "jobs": page}, "more": page is not pages[-1]} for page in pages]

    def _subscribe(self, connection: Connection, _: Fields, __: Sequence[int]) -> Iterable[Reply]:
        connection.subscribed = True
        return [{}]


def tell(server: Server, job: Job, event: Mapping[str, Any]) -> None:
    """Send a finished iteration of a job to those who subscribed and may know of it."""
    for connection in server.subscribers():
        if may_see(job, connection.peer):
            connection.send({"event": "iteration", "job": job.number, "name": job.name, **event})


def _aggressiveness(fields: Fields, former: Aggressiveness) -> Aggressiveness:
    return Aggressiveness(
        Shape.from_name(fields.text("function", former.shape.label, 32)),
        fields.number("slope", 0, 64, former.slope),
        fields.number("intercept", 0, 64, former.intercept),
    )


def _shown(law: Aggressiveness) -> str:
    return f"{law.shape.label} {law.slope:g}, {law.intercept:g}"
