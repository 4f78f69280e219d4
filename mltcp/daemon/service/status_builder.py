"""Builds the daemon's status document, in full for root and reduced for other users."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from types import MappingProxyType

from mltcp.core.errors import MltcpError
from mltcp.daemon.client.protocol import VERSION
from mltcp.daemon.client.status import EVERYBODY, DaemonStatus, InterfaceStatus, JobStatus
from mltcp.daemon.jobs.contention import LinkContention
from mltcp.daemon.jobs.job import NO_CONTROL, Job, Peer, may_see
from mltcp.daemon.jobs.job_table import JobTable
from mltcp.daemon.mechanisms.outside_changes import OutsideChanges
from mltcp.daemon.mechanisms.tc import TcMechanism

FRESH_S = 0.2
"""A status younger than this is not built again, however many clients ask."""

CPU_WINDOW_S = 10.0


class StatusBuilder:
    """Builds the status of the daemon and its jobs.

    Args:
        jobs: of this host.
        pacing: of paced jobs; None where no interface is paced.
        law: the rate law's name.
        interval_s: the control interval.
        controls: the eBPF congestion controls that are loaded.
        connections: counts the connections to the daemon's socket.
        kernel_jobs: counts the entries of jobs in the kernel, and the jobs that found no space there.
        refused_controls: the controls that could not be loaded, with the reasons.
        changes: those that other programs have made.
        contention: of jobs on the same links.
    """

    def __init__(
        self,
        jobs: JobTable,
        pacing: TcMechanism | None,
        law: str,
        interval_s: float,
        controls: tuple[str, ...],
        connections: Callable[[], int],
        kernel_jobs: Callable[[], tuple[int, int]] = lambda: (0, 0),
        refused_controls: Mapping[str, str] = MappingProxyType({}),
        changes: OutsideChanges | None = None,
        contention: LinkContention | None = None,
    ) -> None:
        self._jobs = jobs
        self._pacing = pacing
        self._law = law
        self._interval_s = interval_s
        self._controls = controls
        self._connections = connections
        self._kernel_jobs = kernel_jobs
        self._refused_controls = dict(refused_controls)
        self._changes = changes or OutsideChanges()
        self._contention = contention or LinkContention(jobs)
        self._began_s = time.monotonic()
        self._measured_s = self._began_s
        self._cpu_before_s = time.process_time()
        self._control_cpu = self._daemon_cpu = 0.0
        self._latest: DaemonStatus | None = None
        self._latest_s = 0.0

    def all(self) -> DaemonStatus:
        """The status as root sees it; at most FRESH_S old."""
        now_s = time.monotonic()
        if self._latest is None or now_s - self._latest_s > FRESH_S:
            self._measure_cpu(now_s)
            self._latest, self._latest_s = self._build(now_s), now_s
        return self._latest

    def latest(self) -> DaemonStatus:
        """The status that was built last, for other threads, which must not read the jobs."""
        if self._latest is None:
            raise MltcpError("no status has been built yet")
        return self._latest

    def seen_by(self, peer: Peer) -> DaemonStatus:
        """The status as a peer may see it: its own jobs in detail, those of other users without."""
        everything = self.all()
        seen = (each if may_see(each, peer) else _without_detail(each) for each in everything.jobs)
        changes = (
            each for each in everything.outside_changes if peer.is_root or each.uid in (EVERYBODY, peer.uid)
        )
        return replace(everything, jobs=tuple(seen), outside_changes=tuple(changes))

    def _measure_cpu(self, now_s: float) -> None:
        waited_s = now_s - self._measured_s
        if waited_s < (CPU_WINDOW_S if self._measured_s > self._began_s else 1.0):
            return
        cpu_s, wall_s = time.process_time(), max(1e-3, now_s - self._measured_s)
        self._daemon_cpu = (cpu_s - self._cpu_before_s) / wall_s
        self._cpu_before_s, self._measured_s = cpu_s, now_s
        if self._pacing is not None:
            self._control_cpu = self._pacing.take_cost().share

    def _build(self, now_s: float) -> DaemonStatus:
        pacing = self._pacing
        kernel_jobs, refused_jobs = self._kernel_jobs()
        interfaces = () if pacing is None else tuple(InterfaceStatus(*each) for each in pacing.states())
        return DaemonStatus(
            pid=os.getpid(),
            version=VERSION,
            uptime_s=round(now_s - self._began_s, 3),
            pacing="off" if pacing is None else "tc",
            law="" if pacing is None else self._law,
            interval_s=self._interval_s,
            control_cpu=round(self._control_cpu, 5),
            daemon_cpu=round(self._daemon_cpu, 5),
            connections=self._connections(),
            controls=self._controls,
            interfaces=interfaces,
            jobs=tuple(self.of_job(job) for job in self._jobs),
            kernel_jobs=kernel_jobs,
            refused_jobs=refused_jobs,
            refused_controls=self._refused_controls,
            outside_changes=self._changes.last(),
            changes_noticed=self._changes.count,
        )

    def of_job(self, job: Job) -> JobStatus:
        """The status of one job, in detail."""
        times = job.times
        return JobStatus(
            number=job.number,
            user=job.user,
            ranks=len(job.members),
            flows=job.mechanism.flow_count(job),
            how=job.mechanism.name,
            job=job.name,
            instance=job.instance,
            uid=job.uid,
            control=job.control if job.control != NO_CONTROL else ",".join(sorted(job.seen_controls)),
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
            left_alone=job.left_alone,
            label=job.label,
            loss=self._contention.loss(job),
            aside=bool(job.aside),
            aside_why=job.aside,
            **asdict(job.mechanism.state(job)),
        )


def _without_detail(status: JobStatus) -> JobStatus:
    """The part of a job's status that every user may see: that it exists, and whose it is."""
    return JobStatus(status.number, status.user, status.ranks, status.flows, status.how, detail=False)
