"""Control by traffic control: each job has an HTB class on every paced interface, whose rate follows the rate law."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from mltcp.core.errors import UsageError
from mltcp.core.user_lines import of_user
from mltcp.daemon.jobs.flows import FlowSettings, FoundFlow
from mltcp.daemon.jobs.job import NO_CONTROL, PAUSE_FLOWS, ControlState, FinishedIteration, Job
from mltcp.daemon.jobs.outside_changes import OutsideChanges
from mltcp.daemon.mechanisms.flow_settings_watch import (
    CONTROL,
    PACKET_MARK,
    FlowSettingsWatch,
    Settings,
    being_set,
)
from mltcp.daemon.mechanisms.pacer import Pacer
from mltcp.ebpf.congestion_controls import available
from mltcp.ebpf.jobs import SocketSettings
from mltcp.pacing.sock_diag import FlowKey, FlowOptions
from mltcp.pacing.tc.qdiscs import HANDLE

_log = logging.getLogger("mltcp.daemon")


class TcMechanism:
    """Paced jobs. The congestion control of their flows only keeps the class full."""

    name = "tc"
    default_control = NO_CONTROL

    def __init__(self, pacer: Pacer, interval_s: float, changes: OutsideChanges) -> None:
        self.poll_period_s: float | None = interval_s
        self._pacer = pacer
        self._watch = FlowSettingsWatch(changes)
        self._jobs: dict[int, Job] = {}

    def accepts(self, control: str) -> bool:
        """Whether this is a congestion control of the kernel, or none in particular."""
        return control == NO_CONTROL or control in available()

    def describe(self, job: Job) -> str:
        """The control of a job in words."""
        return "paced"

    def add_job(self, job: Job) -> None:
        """Add a class for the job on every interface."""
        self._pacer.add_job(job.number, job.aggressiveness, job.total_bytes, job.gap_ns)
        self._jobs[job.number] = job

    def remove_job(self, job: Job) -> None:
        """Remove the job's classes, once its last packets have passed."""
        self._jobs.pop(job.number, None)
        self._watch.forget(job)
        self._pacer.remove_job(job.number)

    def change_job(self, job: Job) -> None:
        """Give the job another F."""
        self._pacer.change(job.number, job.aggressiveness)

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
        self._pacer.add_flow(job.number, flow.key)

    def socket_settings(self, job: Job) -> SocketSettings:
        """The job's class, and the congestion control if the job asks for one."""
        control = "" if job.control == NO_CONTROL else job.control
        return SocketSettings(0, control, self._priority(job), self.mark(job))

    def _priority(self, job: Job) -> int:
        return HANDLE | job.number if self._pacer.uses_priority else 0

    def mark(self, job: Job) -> int:
        """The mark that selects the job's class, beside the priority; 0: none."""
        return self._pacer.mark | job.number if self._pacer.mark else 0

    def poll(self) -> list[tuple[Job, FinishedIteration]]:
        """Run a control interval; the iterations recognised from acknowledged bytes."""
        gone = self._pacer.tick()
        finished = []
        for job in self._jobs.values():
            for flow in gone:
                job.flows.pop(flow, None)
            records = self._pacer.job(job.number).finished
            finished += [
                (job, FinishedIteration(each.iteration, each.start_ns, each.bytes)) for each in records
            ]
            records.clear()
        return finished

    def maintain(self) -> Iterator[None]:
        """Adopt connections that carry a job's mark but were not passed, and notice what others have changed."""
        seen: dict[int, FlowOptions] = {}
        for part in self._pacer.marked():
            for flow, options in part:
                job = self._jobs.get(self._pacer.number_of(options.mark))
                if job is not None and flow not in job.flows:
                    self._adopt(job, flow)
                seen[flow.cookie] = options
            yield
        for job in list(self._jobs.values()):
            yield from self._notice_settings(job, seen)
        self._pacer.check()

    def _adopt(self, job: Job, flow: FlowKey) -> None:
        job.flows[flow] = None
        self._pacer.add_flow(job.number, flow)
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
            for flow, options in zip(differing, self._pacer.flow_options(differing), strict=True):
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
        if self._pacer.mark:
            wanted[PACKET_MARK], now[PACKET_MARK] = f"{self.mark(job):#x}", f"{options.mark:#x}"
        if job.control != NO_CONTROL:
            wanted[CONTROL], now[CONTROL] = job.control, options.control
        return wanted, now

    def update_counters(self, job: Job) -> None:
        """Take the sums of the control loop."""
        paced = self._pacer.job(job.number)
        job.acked_bytes, job.retransmits, job.marks = paced.acked_bytes, paced.retransmits, paced.marks

    def flow_count(self, job: Job) -> int:
        """The number of connections that were passed or carry the job's mark."""
        return len(job.flows)

    def state(self, job: Job) -> ControlState:
        """The state of the control loop."""
        paced = self._pacer.job(job.number)
        return ControlState(
            factor=round(paced.factor, 4),
            bytes_ratio=round(paced.bytes_ratio, 4),
            rate_bps=round(paced.law.current_bps),
            total_bytes=paced.tracker.total_bytes,
            gap_s=paced.tracker.gap_ns / 1e9,
        )

    def close(self) -> None:
        """Set all classes to line rate; the journal removes them."""
        self._pacer.close()
