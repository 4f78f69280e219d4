"""Control by traffic control: each job has an HTB class on every paced interface, whose rate follows the rate law."""

from __future__ import annotations

import logging

from mltcp.core.errors import UsageError
from mltcp.core.user_lines import of_user
from mltcp.daemon.jobs.flows import FlowSettings, FoundFlow
from mltcp.daemon.jobs.job import NO_CONTROL, ControlState, FinishedIteration, Job
from mltcp.daemon.jobs.outside_changes import OutsideChanges
from mltcp.daemon.mechanisms.flow_settings_watch import CONTROL, PACKET_MARK, FlowSettingsWatch, being_set
from mltcp.daemon.mechanisms.pacer import Pacer
from mltcp.ebpf.congestion_controls import available
from mltcp.ebpf.jobs import SocketSettings
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

    def maintain(self) -> None:
        """Adopt connections that carry a job's mark but were not passed, and notice what others have changed."""
        for flow, number in self._pacer.marked():
            job = self._jobs.get(number)
            if job is not None and flow not in job.flows:
                job.flows[flow] = None
                self._pacer.add_flow(number, flow)
                _log.info(
                    "%s: adopts %s:%d, because it carries the job's mark",
                    job,
                    *flow.remote,
                    extra=of_user(job.user),
                )
        for job in self._jobs.values():
            if not being_set(self._jobs.values(), job):
                self._notice_settings(job)
        self._pacer.check()

    def _notice_settings(self, job: Job) -> None:
        flows = list(job.flows)
        self._watch.keep(job, {flow.cookie for flow in flows})
        for flow, options in zip(flows, self._pacer.flow_options(flows), strict=True):
            if options is None:
                continue
            wanted, now = {}, {}
            if self._pacer.mark:
                wanted[PACKET_MARK], now[PACKET_MARK] = f"{self.mark(job):#x}", f"{options.mark:#x}"
            if job.control != NO_CONTROL:
                wanted[CONTROL], now[CONTROL] = job.control, options.control
            self._watch.see(job, flow.cookie, str(flow), wanted, now)

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
