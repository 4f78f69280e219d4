"""Counters of flows: those of the kernel through sock_diag, and those of the eBPF controls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mltcp.control.link_use import SendReading
from mltcp.daemon.jobs.job import PAUSE_FLOWS, Job
from mltcp.ebpf.layout import FlowCounts
from mltcp.pacing.sock_diag import NO_SAMPLE, FlowKey, Sample, SockDiag


class KernelFlowCounters:
    """Sums what the kernel counts over the flows of one job: those that were passed, and those of its cgroup."""

    def __init__(self) -> None:
        self._open: dict[int, FlowCounts] = {}
        self._passed: dict[int, FlowKey] = {}
        self._new: set[int] = set()

    def passed(self, flow: FlowKey) -> None:
        """Take a flow that was passed."""
        self._passed[flow.cookie] = flow
        self._new.add(flow.cookie)

    def before_reading(self) -> frozenset[int]:
        """To be called before the counts are read: the flows, by cookie, that are among them unless they are closed."""
        return frozenset(self._passed)

    def update(self, job: Job, now: Sequence[FlowCounts], expected: frozenset[int]) -> Iterator[None]:
        """Add what the counts have grown by, and forget those of the `expected` flows that are closed.

        A flow of the job's cgroup is the job's from its beginning on, one that was passed from when it was passed on.
        """
        seen = {}
        for number, each in enumerate(now):
            cookie = each.cookie
            before = self._open.get(cookie)
            if before is None:
                before = each if cookie in self._passed else FlowCounts(cookie, each.job, 0, 0, 0)
            job.acked_bytes += each.acked - before.acked
            job.retransmits += (each.retransmits - before.retransmits) & 0xFFFFFFFF
            job.marks += (each.marks - before.marks) & 0xFFFFFFFF
            seen[cookie] = each
            if number % PAUSE_FLOWS == PAUSE_FLOWS - 1:
                yield
        for cookie in expected - seen.keys():
            flow = self._passed.pop(cookie, None)
            if flow is not None:
                job.flows.pop(flow, None)
        self._new -= expected
        self._new -= seen.keys()
        self._open = seen

    def flow_count(self) -> int:
        """The number of open flows; of those that were passed since the last update, too."""
        return len(self._open) + sum(cookie not in self._open for cookie in self._new)


# -- counters of the kernel and of controls -----------------------------------------------------


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

    def reading(self, flows: Sequence[FlowKey]) -> SendReading:
        """Whether one of these flows has data in flight, and the acknowledged bytes of all."""
        found = [sample for sample in self._sock_diag.sample(flows) if sample is not None]
        return SendReading(any(each.unacked > 0 for each in found), sum(each.acked_bytes for each in found))

    def close(self) -> None:
        """Close the netlink socket."""
        self._sock_diag.close()
