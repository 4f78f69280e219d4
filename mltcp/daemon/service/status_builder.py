"""What is said of the daemon and its jobs, and to whom."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

from mltcp.core.errors import MltcpError
from mltcp.daemon.client.protocol import VERSION
from mltcp.daemon.client.status import DaemonStatus, InterfaceStatus, JobStatus
from mltcp.daemon.jobs.job import KERNEL, NONE, TC, Job, may_see
from mltcp.daemon.jobs.job_manager import Host
from mltcp.daemon.service.server import Peer

FRESH_S = 0.2
"""A status is made anew only so often, however many ask."""

COST_OVER_S = 10.0


class Reading:
    """Makes the daemon's status.

    Args:
        host: of which it speaks.
        law: the rate law's name.
        interval_s: the control interval.
        controls: the eBPF controls that are loaded.
        connections: how many there are.
    """

    def __init__(
        self,
        host: Host,
        law: str,
        interval_s: float,
        controls: tuple[str, ...],
        connections: Callable[[], int],
    ) -> None:
        self._host = host
        self._law = law
        self._interval_s = interval_s
        self._controls = controls
        self._connections = connections
        self._began_s = time.monotonic()
        self._costed_s = self._began_s
        self._cpu_before_s = time.process_time()
        self._control_cpu = self._daemon_cpu = 0.0
        self._made: DaemonStatus | None = None
        self._made_s = 0.0

    def all(self) -> DaemonStatus:
        """Everything, as root sees it; at most FRESH_S old."""
        now_s = time.monotonic()
        if self._made is None or now_s - self._made_s > FRESH_S:
            self._measure(now_s)
            self._made, self._made_s = self._make(now_s), now_s
        return self._made

    def latest(self) -> DaemonStatus:
        """What was made last: for other threads, which must not look into the jobs."""
        made = self._made
        if made is None:
            raise MltcpError("nothing has been read yet")
        return made

    def seen_by(self, peer: Peer) -> DaemonStatus:
        """What a peer may know."""
        everything = self.all()
        seen = (each if may_see(each, peer) else _of_a_stranger(each) for each in everything.jobs)
        return replace(everything, jobs=tuple(seen))

    def _measure(self, now_s: float) -> None:
        waited_s = now_s - self._costed_s
        if waited_s < (COST_OVER_S if self._costed_s > self._began_s else 1.0):
            return
        cpu_s, wall_s = time.process_time(), max(1e-3, now_s - self._costed_s)
        self._daemon_cpu = (cpu_s - self._cpu_before_s) / wall_s
        self._cpu_before_s, self._costed_s = cpu_s, now_s
        if self._host.pacer is not None:
            self._control_cpu = self._host.pacer.cost().share

    def _make(self, now_s: float) -> DaemonStatus:
        pacer = self._host.pacer
        interfaces = () if pacer is None else tuple(InterfaceStatus(*each) for each in pacer.states())
        return DaemonStatus(
            pid=os.getpid(),
            version=VERSION,
            uptime_s=round(now_s - self._began_s, 3),
            pacing="off" if pacer is None else "tc",
            law="" if pacer is None else self._law,
            interval_s=self._interval_s,
            control_cpu=round(self._control_cpu, 5),
            daemon_cpu=round(self._daemon_cpu, 5),
            connections=self._connections(),
            controls=self._controls,
            interfaces=interfaces,
            jobs=tuple(self.of_job(job) for job in self._host.jobs),
        )

    def of_job(self, job: Job) -> JobStatus:
        """One job, in detail."""
        times = job.times
        base = JobStatus(
            number=job.number,
            user=job.user,
            ranks=len(job.members),
            flows=len(job.flows),
            how=job.how,
            job=job.name,
            instance=job.instance,
            uid=job.uid,
            control=job.control if job.control != NONE else ",".join(sorted(job.seen_controls)),
            function=job.aggressiveness.shape.label,
            slope=job.aggressiveness.slope,
            intercept=job.aggressiveness.intercept,
            iterations=times.count,
            iteration_s=times.last_s,
            typical_iteration_s=times.typical_s,
            best_iteration_s=times.best_s,
            slowdown=times.slowdown,
            bytes_per_s=job.bytes_per_s,
            retransmits=job.retransmits,
            marks=job.marks,
            total_bytes=job.total_bytes,
            gap_s=job.gap_s,
        )
        if job.how == TC and self._host.pacer is not None:
            return self._paced(job, base)
        if job.how == KERNEL and job.kernel_number is not None:
            return self._in_kernel(job, base)
        return base

    def _paced(self, job: Job, base: JobStatus) -> JobStatus:
        assert self._host.pacer is not None
        paced = self._host.pacer.job(job.number)
        return replace(
            base,
            factor=round(paced.factor, 4),
            bytes_ratio=round(paced.bytes_ratio, 4),
            rate_bps=round(paced.law.current_bps),
            total_bytes=paced.tracker.total_bytes,
            gap_s=paced.tracker.gap_ns / 1e9,
        )

    def _in_kernel(self, job: Job, base: JobStatus) -> JobStatus:
        entry = None
        if self._host.kernel is not None and job.kernel_number is not None:
            entry = self._host.kernel.job(job.kernel_number)
        if entry is None:
            return base
        tracker = entry.tracker
        known = tracker.recognised
        return replace(
            base,
            factor=round(entry.aggressiveness(tracker.bytes_ratio), 4) if known else 1.0,
            bytes_ratio=round(tracker.bytes_ratio, 4) if known else 0.0,
            total_bytes=tracker.total_bytes,
            gap_s=tracker.gap_ns / 1e9,
        )


def _of_a_stranger(status: JobStatus) -> JobStatus:
    """That there is a job, and whose, is no secret; what it does is."""
    return JobStatus(status.number, status.user, status.ranks, status.flows, status.how, detail=False)
