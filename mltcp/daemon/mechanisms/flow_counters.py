"""The counters of jobs whose flows no control loop reads, from sock_diag(7)."""

from __future__ import annotations

from collections.abc import Iterator

from mltcp.daemon.jobs.job import PAUSE_FLOWS, Job
from mltcp.pacing.sock_diag import NO_SAMPLE, FlowKey, Sample, SockDiag


class FlowCounters:
    """Sums the kernel's counters over the flows of a job."""

    def __init__(self) -> None:
        self._sock_diag = SockDiag()

    def update(self, job: Job) -> Iterator[None]:
        """Add what the counters of a job's flows have grown by, and forget flows that are closed."""
        flows = list(job.flows)
        for at in range(0, len(flows), PAUSE_FLOWS):
            part = flows[at : at + PAUSE_FLOWS]
            for flow, now in zip(part, self._sock_diag.sample(part), strict=True):
                self._take(job, flow, now)
            yield

    def _take(self, job: Job, flow: FlowKey, now: Sample | None) -> None:
        if now is None:
            job.flows.pop(flow, None)
            job.counters.pop(flow, None)
            self._sock_diag.forget(flow)
            return
        before = job.counters.get(flow, NO_SAMPLE)
        if flow in job.counters:
            job.acked_bytes += now.acked_bytes - before.acked_bytes
            job.retransmits += (now.retransmits - before.retransmits) & 0xFFFFFFFF
            job.marks += (now.delivered_ce - before.delivered_ce) & 0xFFFFFFFF
        job.counters[flow] = now

    def close(self) -> None:
        """Close the netlink socket."""
        self._sock_diag.close()
