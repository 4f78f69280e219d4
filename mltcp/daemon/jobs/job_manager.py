"""What the daemon has of this host, and what it does for a job there: in the kernel, in the trees, in cgroups."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mltcp.control.aggressiveness import Aggressiveness
from mltcp.core.errors import UsageError
from mltcp.daemon.jobs.attachments import Attachments
from mltcp.daemon.jobs.flows import PassedFlow
from mltcp.daemon.jobs.job import KERNEL, NONE, TC, Job, Jobs
from mltcp.daemon.jobs.kernel import KernelJobs
from mltcp.daemon.jobs.paced import MARK, Pacer
from mltcp.pacing.sock_diag import NO_SAMPLE, SocketDiagnosis

_log = logging.getLogger("mltcp.daemon")

Listener = Callable[[Job, dict[str, Any]], None]


@dataclass
class Host:
    """The jobs of this host and what they run on.

    Attributes:
        kernel: the loaded eBPF controls' side; None where none is loaded.
        pacer: None where nothing is paced.
        diagnosis: for the counters of jobs that are not paced.
        default_control: of jobs under the kernel that ask for none.
        aggressiveness: F of jobs that say nothing of it.
        listener: told of every finished iteration.
    """

    kernel: KernelJobs | None
    pacer: Pacer | None
    diagnosis: SocketDiagnosis
    attachments: Attachments
    default_control: str
    aggressiveness: Aggressiveness
    listener: Listener = lambda job, event: None
    jobs: Jobs = field(default_factory=Jobs)
    _counted_s: float = field(default_factory=time.monotonic)

    def takes_jobs(self, control: str) -> bool:
        """Whether this is an eBPF control that is loaded."""
        return self.kernel is not None and self.kernel.takes(control)

    # -- a job's life ------------------------------------------------------------------------------------------------

    def begin(self, job: Job) -> None:
        """A new job."""
        if job.how == TC and self.pacer is not None:
            self.pacer.add_job(job.number, job.aggressiveness, job.total_bytes, round(job.gap_s * 1e9))
        self.jobs.add(job)
        by = {KERNEL: f"under {job.control}", TC: "paced", NONE: "only watched"}[job.how]
        _log.info("%s begins, %s, because a process has registered it", job, by)

    def end(self, job: Job, why: str) -> None:
        """A job is over, or runs on without us."""
        self.attachments.end(job)
        if job.how == TC and self.pacer is not None:
            self.pacer.remove_job(job.number)
        if job.kernel_number is not None and self.kernel is not None:
            self.kernel.leave(job.kernel_number)
        self.jobs.remove(job)
        _log.info("%s ends after %d iterations: %s", job, job.times.count, why)

    def change(self, job: Job, aggressiveness: Aggressiveness) -> None:
        """Give a job another F."""
        job.aggressiveness = aggressiveness
        if job.how == TC and self.pacer is not None:
            self.pacer.change(job.number, aggressiveness)
        if job.kernel_number is not None and self.kernel is not None:
            self.kernel.change(job.kernel_number, aggressiveness)

    def take(self, job: Job, flow: PassedFlow) -> None:
        """Make a passed connection one of a job's.

        Raises:
            UsageError: it cannot be.
        """
        if job.how == TC and self.pacer is not None:
            if not flow.here:
                raise UsageError("its network namespace is not that of the paced interfaces")
            if job.control != NONE:
                flow.set_control(job.control)
            flow.set_class(MARK | job.number)
            self.pacer.add_flow(job.number, flow.key)
        elif job.how == KERNEL and self.kernel is not None:
            self.kernel.tag(flow, self.kernel_number(job, flow), job.control)
        elif job.control != NONE:
            flow.set_control(job.control)
        job.seen_controls.add(flow.control)

    def kernel_number(self, job: Job, flow: PassedFlow | None = None) -> int:
        """The job's entry in the kernel: made when it is first needed, or taken over with its first flow."""
        if self.kernel is None:
            raise UsageError("no eBPF congestion control is loaded")
        if job.kernel_number is None and flow is not None:
            job.kernel_number = self.kernel.inherit(flow, job.name)
        if job.kernel_number is None:
            job.kernel_number = self.kernel.enter(
                job.name, job.aggressiveness, job.total_bytes, round(job.gap_s * 1e9)
            )
        return job.kernel_number

    # -- time --------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """One control interval."""
        if self.pacer is None:
            return
        gone = self.pacer.tick()
        for job in self.jobs if gone else ():
            for flow in gone:
                job.flows.pop(flow, None)
        for job in self.jobs:
            if job.how == TC:
                paced = self.pacer.job(job.number)
                for record in paced.finished:
                    self._finished(job, record.iteration, record.start_ns, record.bytes)
                paced.finished.clear()

    def look(self) -> None:
        """Ten times a second: the iterations that the kernel has seen finish."""
        if self.kernel is None:
            return
        by_number = {job.kernel_number: job for job in self.jobs if job.kernel_number is not None}
        for record in self.kernel.records():
            job = by_number.get(record.job)
            if job is not None:
                self._finished(job, record.iteration, record.start_ns, record.bytes)

    def count(self) -> None:
        """Once a second: the counters of all jobs, and connections that carry a job's mark but were never passed."""
        now_s = time.monotonic()
        elapsed_s, self._counted_s = max(1e-3, now_s - self._counted_s), now_s
        if self.pacer is not None:
            self._adopt_marked(self.pacer)
            self.pacer.check()
        for job in self.jobs:
            before = job.acked_bytes
            if job.how == TC and self.pacer is not None:
                paced = self.pacer.job(job.number)
                job.acked_bytes, job.retransmits, job.marks = (
                    paced.acked_bytes, paced.retransmits, paced.marks,
                )  # fmt: skip
            else:
                self._read_counters(job)
            job.bytes_per_s = (job.acked_bytes - before) / elapsed_s
        self.attachments.tidy()

    def _adopt_marked(self, pacer: Pacer) -> None:
        for flow, number in pacer.marked():
            job = self.jobs.by_number(number)
            if job is not None and job.how == TC and flow not in job.flows:
                job.flows[flow] = None
                pacer.add_flow(number, flow)
                _log.info("%s: takes %s:%d, because it carries the job's mark", job, *flow.remote)

    def _read_counters(self, job: Job) -> None:
        flows = list(job.flows)
        for flow, now in zip(flows, self.diagnosis.sample(flows), strict=True):
            if now is None:
                del job.flows[flow]
                job.counters.pop(flow, None)
                self.diagnosis.forget(flow)
                continue
            before = job.counters.get(flow, NO_SAMPLE)
            if flow in job.counters:
                job.acked_bytes += now.acked_bytes - before.acked_bytes
                job.retransmits += (now.retransmits - before.retransmits) & 0xFFFFFFFF
                job.marks += (now.delivered_ce - before.delivered_ce) & 0xFFFFFFFF
            job.counters[flow] = now

    def _finished(self, job: Job, number: int, start_ns: int, sent_bytes: int) -> None:
        duration_s = job.times.seen(number, start_ns)
        if duration_s is not None:
            # What has a duration is the one before: it lasted until this one began.
            self.tell(job, max(0, number - 1), duration_s, sent_bytes)

    def tell(self, job: Job, number: int, duration_s: float, sent_bytes: int) -> None:
        """Let subscribers know of a finished iteration."""
        self.listener(job, {"number": number, "duration_s": round(duration_s, 6), "sent_bytes": sent_bytes})
