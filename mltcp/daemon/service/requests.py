"""Handles the requests of the daemon's protocol."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from mltcp.control.aggressiveness import Aggressiveness, Shape
from mltcp.core.errors import MltcpError, UsageError, shown
from mltcp.core.policy_names import control_name
from mltcp.core.user_lines import of_user
from mltcp.daemon.client.protocol import DeniedError, Fields
from mltcp.daemon.descriptors.workers import PassedFlows
from mltcp.daemon.jobs.flows import FlowSettings, FoundFlow, RefusedFlow
from mltcp.daemon.jobs.job import NO_CONTROL, Job, Peer, may_see
from mltcp.daemon.jobs.job_manager import DEFAULT_CONTROL, JobManager
from mltcp.daemon.jobs.registered_cgroups import LeftCgroup, RegisteredCgroup
from mltcp.daemon.service.server import Connection, DaemonServer, Reply
from mltcp.daemon.service.status_builder import StatusBuilder
from mltcp.pacing.sock_diag import FlowKey

_log = logging.getLogger("mltcp.daemon")

JOBS_PER_PACKET = 48
MAX_FLOWS_PER_JOB = 8192
_LARGEST_TOTAL_BYTES = 1 << 47
_LONGEST_S = 3600.0
_LONGEST_CGROUP = 4096
_ATTACH_FIELDS = (
    *("job", "instance", "label", "uid", "cgroup", "control", "function", "slope", "intercept"),
    *("total_bytes", "gap_s", "ranks"),
)


class RequestHandler:
    """Handles every request of the protocol.

    Args:
        manager: of the jobs.
        status: of the daemon and its jobs.
    """

    def __init__(self, manager: JobManager, status: StatusBuilder) -> None:
        self._manager = manager
        self._status = status
        self._requests: dict[str, Callable[[Connection, Fields], Iterable[Reply]]] = {
            "register": self._register,
            "attach": self._attach,
            "detach": self._detach,
            "flows": self._no_flows,
            "iteration": self._iteration,
            "progress": self._progress,
            "status": self._send_status,
            "change": self._change,
            "stop": self._stop,
            "subscribe": self._subscribe,
        }

    def handle(self, connection: Connection, fields: Fields) -> Iterable[Reply]:
        """The replies to a request without descriptors. Raises MltcpError if it cannot be carried out."""
        return self._handler_of(fields)(connection, fields)

    async def handle_passed(
        self, connection: Connection, fields: Fields, passed: PassedFlows
    ) -> Iterable[Reply]:
        """The replies to a request with descriptors. Raises MltcpError if it cannot be carried out."""
        if self._handler_of(fields) != self._no_flows:
            raise UsageError(f"{fields['request']}: expected no descriptors, got {passed.count}")
        return await self._flows(connection, passed)

    def _handler_of(self, fields: Fields) -> Callable[[Connection, Fields], Iterable[Reply]]:
        name = fields.get("request")
        handle = self._requests.get(name) if isinstance(name, str) else None
        if handle is None:
            raise UsageError(f"request: expected one of {', '.join(self._requests)}, got {shown(name)}")
        return handle

    def left(self, connection: Connection) -> None:
        """Remove a closed connection from its job, and end the job if it was the last."""
        self._manager.attachments.leave(connection)
        job = self._manager.jobs.leave(connection)
        if job is None:
            return
        if not job.members:
            self._manager.end(job, "its last process has left")

    # -- jobs --------------------------------------------------------------------------------------------------------

    def _register(self, connection: Connection, fields: Fields) -> Iterable[Reply]:
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
        return [_registered(job)]

    def _attach(self, connection: Connection, fields: Fields) -> Iterable[Reply]:
        peer = connection.peer
        if not peer.is_root:
            raise DeniedError("attach: only root may register a cgroup; `mltcp run` needs no privilege")
        owner = Peer(peer.pid, fields.whole("uid", 0, (1 << 32) - 2, peer.uid), peer.gid)
        return [_registered(self._attached(owner, peer, fields))]

    def attach_again(self, left: LeftCgroup) -> None:
        """Make a registration of a former daemon again, unless its cgroup has ended. Raises MltcpError."""
        fields = Fields(left.request)
        daemon = Peer(os.getpid(), os.getuid(), os.getgid())
        owner = Peer(os.getpid(), fields.whole("uid", 0, (1 << 32) - 2, 0), 0)
        if RegisteredCgroup.present(daemon, fields.text("cgroup", most=_LONGEST_CGROUP)).inode == left.inode:
            self._attached(owner, daemon, fields, left)

    def _attached(self, owner: Peer, asker: Peer, fields: Fields, left: LeftCgroup | None = None) -> Job:
        """Register a cgroup for a job, which is begun if it is the first; again is the same."""
        jobs, name, instance = self._manager.jobs, fields.job_name("job"), fields.text("instance", "", 64)
        cgroup = RegisteredCgroup.present(asker, fields.text("cgroup", most=_LONGEST_CGROUP))
        former = self._former_job(cgroup)
        job = jobs.find(owner.uid, name, instance)
        if former is not None and former is job:
            return job
        if former is not None:
            raise UsageError(f"cgroup: expected one without a job, got {cgroup.name}, which is of {former}")
        if job is None:
            job = self._new_job(owner, name, instance, fields)
            job.former_entry = 0 if left is None else left.entry
            self._manager.begin(job)
        jobs.join(job, cgroup, 0)
        try:
            has_begun = left is not None and left.has_begun
            self._manager.cgroups.attach(cgroup, job, _remembered(fields), has_begun)
        except Exception:
            self._manager.release(cgroup, "its cgroup could not be attached")
            raise
        return job

    def _former_job(self, cgroup: RegisteredCgroup) -> Job | None:
        """The job that a cgroup is registered for. An earlier one of the same name is released."""
        known = self._manager.cgroups.named(cgroup.name)
        if known is not None and known.inode != cgroup.inode:
            self._manager.release(known, f"cgroup {known.name} is gone")
            return None
        return None if known is None else self._manager.cgroups.job_of(known)

    def _detach(self, connection: Connection, fields: Fields) -> Iterable[Reply]:
        name = fields.text("cgroup", most=_LONGEST_CGROUP)
        cgroup = self._manager.cgroups.named(name)
        job = None if cgroup is None else self._manager.cgroups.job_of(cgroup)
        if cgroup is None or job is None or not may_see(job, connection.peer):
            raise DeniedError(f"{connection.peer.user} has no job with cgroup {shown(name)}")
        self._manager.release(cgroup, f"{connection.peer} has detached its last cgroup")
        return [{}]

    def _new_job(self, peer: Peer, name: str, instance: str, fields: Fields) -> Job:
        asked = control_name(fields.text("control", DEFAULT_CONTROL, 15))
        mechanism, control = self._manager.choose(asked)
        if asked not in (DEFAULT_CONTROL, NO_CONTROL):
            self._manager.limits.check_control(peer, asked)
        total_bytes = fields.whole("total_bytes", 0, _LARGEST_TOTAL_BYTES, 0)
        return Job(
            number=self._manager.jobs.free_number(peer),
            name=name,
            instance=instance,
            uid=peer.uid,
            user=peer.user,
            mechanism=mechanism,
            control=control,
            aggressiveness=self._function(peer, fields, self._manager.aggressiveness),
            total_bytes=total_bytes,
            gap_s=fields.number("gap_s", 0, _LONGEST_S, 0),
            ranks=fields.whole("ranks", 1, 1 << 24, 1),
            label=fields.text("label", "", 64),
        )

    def _function(self, peer: Peer, fields: Fields, former: Aggressiveness) -> Aggressiveness:
        function = _aggressiveness(fields, former)
        if function != former:
            self._manager.limits.check_function(peer, function, self._manager.aggressiveness)
        return function

    def _change(self, connection: Connection, fields: Fields) -> Iterable[Reply]:
        job = self._manager.jobs.owned(fields.whole("number", 0, 1 << 31), connection.peer)
        self._manager.change(job, self._function(connection.peer, fields, job.aggressiveness))
        peer = connection.peer
        _log.info(
            "%s: F is %s now, asked for by %s",
            job,
            _law_text(job.aggressiveness),
            peer,
            extra=of_user(peer.user),
        )
        return [{}]

    def _stop(self, connection: Connection, fields: Fields) -> Iterable[Reply]:
        job = self._manager.jobs.owned(fields.whole("number", 0, 1 << 31), connection.peer)
        self._manager.end(job, f"{connection.peer} asked for it")
        return [{}]

    # -- flows -------------------------------------------------------------------------------------------------------

    def _no_flows(self, connection: Connection, _: Fields) -> Iterable[Reply]:
        self._manager.jobs.of(connection)
        raise UsageError("flows: expected descriptors of TCP connections, got none")

    async def _flows(self, connection: Connection, passed: PassedFlows) -> Iterable[Reply]:
        job = self._manager.jobs.of(connection)
        refused = list(passed.refused)
        wanted: dict[int, tuple[FoundFlow, FlowSettings]] = {}
        new: set[FlowKey] = set()
        for flow in passed.found:
            try:
                if flow.key not in job.flows:
                    new.add(flow.key)
                if len(new) + len(job.flows) > MAX_FLOWS_PER_JOB and flow.key in new:
                    raise UsageError(f"job {job.name} already has {MAX_FLOWS_PER_JOB} flows, the limit")
                wanted[flow.position] = flow, job.mechanism.flow_settings(job, flow)
            except MltcpError as error:
                refused.append(RefusedFlow(flow.position, str(error)))
        job.setting += 1
        try:
            refused += await passed.set([settings for _, settings in wanted.values()])
        finally:
            job.setting -= 1
        if self._manager.jobs.member_of(connection) is not job:
            raise UsageError(f"job {job.name} has ended")
        for position in wanted.keys() - {each.position for each in refused}:
            self._add_flow(job, *wanted[position])
        if refused:
            peer = connection.peer
            _log.warning(
                "%s: %d descriptors of %s refused: %s",
                job,
                len(refused),
                peer,
                refused[0].why,
                extra=of_user(peer.user),
            )
        refused.sort(key=lambda each: each.position)
        return [{"accepted": passed.count - len(refused), "refused": [asdict(each) for each in refused]}]

    def _add_flow(self, job: Job, flow: FoundFlow, settings: FlowSettings) -> None:
        job.mechanism.add_flow(job, flow)
        job.seen_controls.add(settings.control or flow.control)
        job.flows[flow.key] = None

    # -- iterations --------------------------------------------------------------------------------------------------

    def _iteration(self, connection: Connection, fields: Fields) -> Iterable[Reply]:
        job = self._manager.jobs.of(connection)
        number = fields.whole("number", 0, 1 << 48)
        duration_s = fields.number("duration_s", 0, 86400 * 30)
        sent_bytes = fields.whole("sent_bytes", 0, _LARGEST_TOTAL_BYTES, 0)
        job.times.report(number, duration_s)
        self._manager.report(job, number, duration_s, sent_bytes)
        return [{}]

    def _progress(self, connection: Connection, _: Fields) -> Iterable[Reply]:
        status = self._status.of_job(self._manager.jobs.of(connection))
        names = ("iterations", "bytes_ratio", "factor", "total_bytes", "gap_s", "iteration_s", "rate_bps")
        return [{name: getattr(status, name) for name in names}]

    # -- watching ----------------------------------------------------------------------------------------------------

    def _send_status(self, connection: Connection, _: Fields) -> Iterable[Reply]:
        document = self._status.seen_by(connection.peer).document()
        jobs = document["jobs"]
        pages = [jobs[at : at + JOBS_PER_PACKET] for at in range(0, len(jobs), JOBS_PER_PACKET)] or [[]]
        return [{"status": {**document, "jobs": page}, "more": page is not pages[-1]} for page in pages]

    def _subscribe(self, connection: Connection, _: Fields) -> Iterable[Reply]:
        connection.subscribed = True
        return [{}]


def send_event(server: DaemonServer, job: Job, event: Mapping[str, Any]) -> None:
    """Send a finished iteration of a job to the subscribers that may see the job."""
    for connection in server.subscribers():
        if may_see(job, connection.peer):
            connection.send({"event": "iteration", "job": job.number, "name": job.name, **event})


def _registered(job: Job) -> Reply:
    """The reply to a registration."""
    mechanism = job.mechanism
    return {
        "number": job.number,
        "how": mechanism.name,
        "control": job.control,
        "mark": mechanism.mark(job),
    }


def _remembered(fields: Fields) -> dict[str, Any]:
    """The fields of an `attach` that make the same registration again."""
    return {name: fields[name] for name in _ATTACH_FIELDS if name in fields}


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
