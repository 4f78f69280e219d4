"""Control by traffic control: each job has a class on every paced interface, whose rate follows the rate law."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from mltcp.control.iteration import IterationTracker
from mltcp.control.link_use import SendReading
from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.user_lines import of_user
from mltcp.daemon.jobs.flows import FlowSettings, FoundFlow
from mltcp.daemon.jobs.job import NO_CONTROL, PAUSE_FLOWS, ControlState, FinishedIteration, Job
from mltcp.daemon.mechanisms.outside_changes import (
    CONTROL,
    PACKET_MARK,
    FlowSettingsWatch,
    OutsideChanges,
    Settings,
    being_set,
)
from mltcp.ebpf.congestion_controls import available
from mltcp.ebpf.jobs import SocketSettings
from mltcp.pacing.controller import PacingController
from mltcp.pacing.pacing_choice import PacedQdisc
from mltcp.pacing.sock_diag import FlowKey, FlowOptions, SockDiag
from mltcp.pacing.tc.events import TcEvent, TcEvents
from mltcp.pacing.tc.htb_qdisc import ABSENT, LEFT_ALONE, MARK_MASK, PACED
from mltcp.pacing.tc.qdiscs import HANDLE, ROOT

_log = logging.getLogger("mltcp.daemon")

DRAIN_S = 1.0
"""The time that a class stays, at line rate, after its job has ended, for the job's last packets."""

UNKNOWN = "unknown"
"""The state of an interface whose classes could not be changed, until it has been checked."""


@dataclass(frozen=True)
class Cost:
    """The processor time of the control loop, and the time in which it was spent."""

    cpu_s: float
    wall_s: float

    @property
    def share(self) -> float:
        """The share of one core."""
        return self.cpu_s / self.wall_s if self.wall_s > 0 else 0.0


class TcMechanism:
    """Paced jobs. The congestion control of their flows only keeps the class full.

    Args:
        qdiscs: one for each interface, installed or not (an interface may appear later).
        controller: the control loop.
        sock_diag: the source of the loop's samples and of the connections that carry a mark.
        events: the changes of traffic control by other programs, since before the qdiscs were installed.
        changes: where they are reported.
        mark: of jobs' packets, with a job's number in the lower half; 0: they have none.
        interval_s: of control.
    """

    name = "tc"
    default_control = NO_CONTROL

    def __init__(
        self,
        qdiscs: Iterable[PacedQdisc],
        controller: PacingController,
        sock_diag: SockDiag,
        events: TcEvents,
        changes: OutsideChanges,
        mark: int = HANDLE,
        interval_s: float | None = None,
    ) -> None:
        self.poll_period_s = interval_s
        self._mark = mark
        self._watch = FlowSettingsWatch(changes)
        self._jobs: dict[int, Job] = {}
        self._events = events
        self._changes = changes
        self._qdiscs = {qdisc.interface: qdisc for qdisc in qdiscs}
        self._states = {qdisc.interface: qdisc.state() for qdisc in self._qdiscs.values()}
        self._controller = controller
        self._sock_diag = sock_diag
        self._retiring: dict[int, float] = {}
        self._unremoved: dict[int, set[str]] = {}
        self._cpu_s = 0.0
        self._since_s = time.monotonic()
        # Those that a killed daemon left.
        for number in {number for qdisc in self._paced() for number in qdisc.classes()}:
            self._retire(number, 5 * DRAIN_S)

    def accepts(self, control: str) -> bool:
        """Whether this is a congestion control of the kernel, or none in particular."""
        return control == NO_CONTROL or control in available()

    def describe(self, job: Job) -> str:
        """The control of a job in words."""
        return "paced"

    # -- jobs and flows ----------------------------------------------------------------------------------------------

    def add_job(self, job: Job) -> None:
        """Give a job a class on every interface, at the rate of the law from now on.

        Raises:
            MltcpError: a class cannot be added; none is left on other interfaces.
        """
        self._retiring.pop(job.number, None)
        self._unremoved.pop(job.number, None)
        try:
            for qdisc in self._paced():
                qdisc.add_class(job.number, qdisc.line_rate_bps)
        except MltcpError:
            self._retire(job.number, 0.0)
            self._remove_retired()
            raise
        tracker = IterationTracker(job.total_bytes, job.gap_ns)
        self._controller.add_job(job.number, job.aggressiveness, tracker)
        self._jobs[job.number] = job

    def remove_job(self, job: Job) -> None:
        """End the pacing of a job: its class passes the last packets at line rate and is removed after DRAIN_S."""
        self._jobs.pop(job.number, None)
        self._watch.forget(job)
        self._controller.remove_job(job.number)
        self._retire(job.number, DRAIN_S)
        self._apply({job.number: 1.0})

    def change_job(self, job: Job) -> None:
        """Give the job another F."""
        self._controller.change(job.number, job.law)

    def flow_settings(self, job: Job, flow: FoundFlow) -> FlowSettings:
        """The class of the job, and the congestion control if the job asks for one."""
        if not flow.here:
            raise UsageError("its network namespace is not that of the paced interfaces")
        return FlowSettings(
            flow.position,
            "" if job.control == NO_CONTROL else job.control,
            priority=self._priority(job),
            mark=self.mark(job),
        )

    def add_flow(self, job: Job, flow: FoundFlow) -> None:
        """Count the connection, whose packets go through the job's class, towards the job's rate."""
        self._controller.add_flows(job.number, [flow.key])

    def socket_settings(self, job: Job) -> SocketSettings:
        """The job's class, and the congestion control if the job asks for one."""
        control = "" if job.control == NO_CONTROL else job.control
        return SocketSettings(0, control, self._priority(job), self.mark(job))

    def _priority(self, job: Job) -> int:
        # fq would take priorities for its own bands.
        by_priority = any(qdisc.uses_priority for qdisc in self._qdiscs.values())
        return HANDLE | job.number if by_priority else 0

    def mark(self, job: Job) -> int:
        """The mark that selects the job's class, beside the priority; 0: none."""
        return self._mark | job.number if self._mark else 0

    def carried(self) -> set[int]:
        """The numbers that TCP sockets of this network namespace carry as mark or priority, or that classes still have.

        Raises:
            MltcpError: the sockets cannot be listed.
        """
        found = set(self._retiring)
        for mark, priority in self._sock_diag.classified(self._mark, MARK_MASK):
            if self._mark and mark & MARK_MASK == self._mark:
                found.add(mark & ~MARK_MASK)
            if priority & MARK_MASK == HANDLE:
                found.add(priority & ~MARK_MASK)
        return found

    def update_counters(self, job: Job) -> None:
        """Take the sums of the control loop."""
        paced = self._controller.jobs[job.number]
        job.acked_bytes, job.retransmits, job.marks = paced.acked_bytes, paced.retransmits, paced.marks

    def flow_count(self, job: Job) -> int:
        """The number of connections that were passed or carry the job's mark."""
        return len(job.flows)

    def state(self, job: Job) -> ControlState:
        """The state of the control loop."""
        paced = self._controller.jobs[job.number]
        return ControlState(
            factor=round(paced.factor, 4),
            bytes_ratio=round(paced.bytes_ratio, 4),
            rate_bps=round(paced.law.current_bps),
            total_bytes=paced.tracker.total_bytes,
            gap_s=paced.tracker.gap_ns / 1e9,
        )

    def reading(self, job: Job) -> SendReading:
        """As of when its flows were last read."""
        paced = self._controller.jobs[job.number]
        in_flight = any(sample is not None and sample.unacked > 0 for sample in paced.flows.values())
        return SendReading(in_flight, paced.acked_bytes)

    # -- time --------------------------------------------------------------------------------------------------------

    def poll(self) -> list[tuple[Job, FinishedIteration]]:
        """Run a control interval; the iterations recognised from acknowledged bytes."""
        gone = self._tick()
        finished = []
        for job in self._jobs.values():
            for flow in gone:
                job.flows.pop(flow, None)
            records = self._controller.jobs[job.number].finished
            finished += [
                (job, FinishedIteration(each.iteration, each.start_ns, each.bytes, each.total_bytes))
                for each in records
            ]
            records.clear()
        return finished

    def _tick(self) -> list[FlowKey]:
        """Run one control interval; returns the flows that are closed."""
        began_s = time.thread_time()
        changed, gone = self._controller.tick(time.monotonic_ns())
        if changed:
            self._apply(changed)
        for qdisc in self._paced():
            self._change(qdisc, qdisc.rebalance)
        self._cpu_s += time.thread_time() - began_s
        return gone

    def _apply(self, shares: Mapping[int, float]) -> None:
        # First, so that no change of others is undone by ours.
        self._notice_changes()
        for qdisc in self._paced():
            rates = {number: share * qdisc.line_rate_bps for number, share in shares.items()}
            self._change(qdisc, partial(qdisc.change_rates, rates))

    def _change(self, qdisc: PacedQdisc, act: Callable[[], None]) -> None:
        try:
            act()
        except MltcpError as error:
            # The next check finds out what has become of the interface, and repairs what it can.
            _log.warning("%s: rates not changed: %s", qdisc.interface, error)
            self._states[qdisc.interface] = UNKNOWN

    def take_cost(self) -> Cost:
        """The cost of the control loop since the last call."""
        now_s = time.monotonic()
        cost = Cost(self._cpu_s, now_s - self._since_s)
        self._cpu_s, self._since_s = 0.0, now_s
        return cost

    def maintain(self) -> Iterator[None]:
        """Adopt connections that carry a job's mark but were not passed, and notice what others have changed."""
        seen: dict[int, FlowOptions] = {}
        for part in self._sock_diag.marked(self._mark, MARK_MASK) if self._mark else ():
            for flow, options in part:
                job = self._jobs.get(options.mark & ~MARK_MASK)
                if job is not None and flow not in job.flows:
                    self._adopt(job, flow)
                seen[flow.cookie] = options
            yield
        for job in list(self._jobs.values()):
            yield from self._notice_settings(job, seen)
        self.check()

    def _adopt(self, job: Job, flow: FlowKey) -> None:
        job.flows[flow] = None
        self._controller.add_flows(job.number, [flow])
        _log.info(
            "%s: adopts %s:%d, because it carries the job's mark",
            job,
            *flow.remote,
            extra=of_user(job.user),
        )

    def _notice_settings(self, job: Job, seen: Mapping[int, FlowOptions]) -> Iterator[None]:
        """Notice the flows whose settings are not those that they were last seen with.

        What was `seen` may be older than the settings that the job has given them since: what differs is read again.
        """
        flows = list(job.flows)
        self._watch.keep(job, {flow.cookie for flow in flows})
        for at in range(0, len(flows), PAUSE_FLOWS):
            if self._jobs.get(job.number) is not job or being_set(self._jobs.values(), job):
                return
            differing = [flow for flow in flows[at : at + PAUSE_FLOWS] if self._differs(job, flow, seen)]
            for flow, options in zip(differing, self._sock_diag.options(differing), strict=True):
                if options is not None:
                    wanted, now = self._settings(job, options)
                    self._watch.see(job, flow.cookie, str(flow), wanted, now)
            yield

    def _differs(self, job: Job, flow: FlowKey, seen: Mapping[int, FlowOptions]) -> bool:
        options = seen.get(flow.cookie)
        if options is None:
            return True
        wanted, now = self._settings(job, options)
        return now != self._watch.changed(job).get(flow.cookie, wanted)

    def _settings(self, job: Job, options: FlowOptions) -> tuple[Settings, Settings]:
        """The settings that a flow of the job should have, and those that it has."""
        wanted, now = {}, {}
        if self._mark:
            wanted[PACKET_MARK], now[PACKET_MARK] = f"{self.mark(job):#x}", f"{options.mark:#x}"
        if job.control != NO_CONTROL:
            wanted[CONTROL], now[CONTROL] = job.control, options.control
        return wanted, now

    # -- interfaces --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Once a second: check every interface, and remove the classes of jobs that ended more than DRAIN_S ago."""
        self._notice_changes()
        for qdisc in self._qdiscs.values():
            self._check(qdisc)
        self._remove_retired()

    def _retire(self, number: int, after_s: float) -> None:
        self._retiring[number] = time.monotonic() + after_s
        self._unremoved[number] = set(self._qdiscs)

    def _remove_retired(self) -> None:
        """Remove the classes of jobs whose time to drain is over, where that has not been done yet."""
        now_s = time.monotonic()
        for number in [number for number, until_s in self._retiring.items() if until_s <= now_s]:
            self._unremoved[number] = {
                name for name in self._unremoved[number] if not self._is_removed(self._qdiscs[name], number)
            }
            if not self._unremoved[number]:
                del self._retiring[number], self._unremoved[number]

    def _is_removed(self, qdisc: PacedQdisc, number: int) -> bool:
        """Remove a class; whether there is none now. That of an interface in an unknown state is removed later."""
        state = self._states[qdisc.interface]
        if state != PACED:
            return state != UNKNOWN
        try:
            qdisc.remove_class(number)
        except MltcpError as error:
            _log.warning("%s: a class was not removed: %s", qdisc.interface, error)
            self._states[qdisc.interface] = UNKNOWN
            return False
        return True

    def _notice_changes(self) -> None:
        """Notice what other programs have changed of the qdiscs since the last call."""
        events = self._events.read()
        if events is None:
            self._changes.notice(
                "changes of traffic control may have gone unnoticed: there were too many at once"
            )
            return
        for event in events:
            for qdisc in self._paced():
                if qdisc.index == event.index:
                    self._changed(qdisc, event)

    def _changed(self, qdisc: PacedQdisc, event: TcEvent) -> None:
        is_root = event.kind == "qdisc" and event.parent == ROOT
        if is_root:
            self._check(qdisc, event.by)
        elif qdisc.owns(event.handle) or qdisc.owns(event.parent):
            what = f"the {event.kind} {self._name_of(event)} was {'removed' if event.removed else 'set'}"
            if event.kind == "class":
                qdisc.left_alone.add(event.handle & 0xFFFF)
            self._changes.notice(f"{qdisc.interface}: {what} by {event.by}, and is left alone")

    def _name_of(self, event: TcEvent) -> str:
        """The handle of what was changed, and whose it is; that of a qdisc is its class."""
        handle = event.handle if event.kind == "class" else event.parent
        minor = handle & 0xFFFF
        return f"{handle >> 16:x}:{minor:x}" + (f" of job {minor}" if minor in self._controller.jobs else "")

    def _check(self, qdisc: PacedQdisc, by: str = "another program") -> None:
        before = self._states[qdisc.interface]
        try:
            now = qdisc.state()
        except MltcpError as error:
            if before != UNKNOWN:
                _log.warning("%s: its state is unknown: %s", qdisc.interface, error)
            now = UNKNOWN
        self._states[qdisc.interface] = now
        if now == ABSENT:
            if before == PACED:
                _log.warning("%s: the interface or %s is gone: jobs are unpaced", qdisc.interface, qdisc.what)
            self._try_to_install(qdisc, quiet=before == ABSENT)
        elif now == LEFT_ALONE and before != now:
            what = f"{qdisc.what} was removed or replaced by {by}, and jobs are not paced there"
            self._changes.notice(f"{qdisc.interface}: {what}: it is left alone")
        elif before == UNKNOWN and now == PACED:
            self._change(qdisc, partial(self._fill, qdisc))

    def _try_to_install(self, qdisc: PacedQdisc, quiet: bool) -> None:
        try:
            qdisc.install()
            self._fill(qdisc)
            self._states[qdisc.interface] = qdisc.state()
        except MltcpError as error:
            if not quiet:
                _log.warning("%s: not paced: %s", qdisc.interface, error)
            return
        _log.info(
            "%s: installed %s, with classes of %d jobs, because the interface is there again",
            qdisc.interface,
            qdisc.what,
            len(self._controller.jobs),
        )

    def _fill(self, qdisc: PacedQdisc) -> None:
        """Add the classes that a qdisc lacks, and set all of them to the rates in force."""
        for number, share in self._controller.rates().items():
            if number not in qdisc.left_alone:
                qdisc.add_class(number, share * qdisc.line_rate_bps)

    def states(self) -> list[tuple[str, str, int]]:
        """Each interface's name, state and line rate."""
        return [(name, self._states[name], qdisc.line_rate_bps) for name, qdisc in self._qdiscs.items()]

    def close(self) -> None:
        """Let queued packets pass at line rate; the journal restores the qdiscs."""
        self._apply(dict.fromkeys(self._controller.jobs, 1.0))
        time.sleep(0.05)
        self._events.close()
        self._sock_diag.close()

    def _paced(self) -> list[PacedQdisc]:
        return [qdisc for qdisc in self._qdiscs.values() if self._states[qdisc.interface] == PACED]
