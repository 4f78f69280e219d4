"""The counters of jobs whose flows no control loop reads, from sock_diag(7)."""

from __future__ import annotations

from mltcp.daemon.jobs.job import Job
from mltcp.pacing.sock_diag import NO_SAMPLE, SockDiag


class FlowCounters:
    """Sums the kernel's counters over the flows of a job."""

    def __init__(self) -> None:
        self._sock_diag = SockDiag()

    def update(self, job: Job) -> None:
        """Add what the counters of a job's flows have grown by, and forget flows that are closed."""
        flows = list(job.flows)
        for flow, now in zip(flows, self._sock_diag.sample(flows), strict=True):
            if now is None:
                del job.flows[flow]
                job.counters.pop(flow, None)
                self._sock_diag.forget(flow)
                continue
            before = job.counters.get(flow, NO_SAMPLE)
            if flow in job.counters:
                job.acked_bytes += now.acked_bytes - before.acked_bytes
                job.retransmits += (now.retransmits - before.retransmits) & 0xFFFFFFFF
                job.marks += (now.delivered_ce - before.delivered_ce) & 0xFFFFFFFF
            job.counters[flow] = now

    def close(self) -> None:
        """Close the netlink socket."""
        self._sock_diag.close()
