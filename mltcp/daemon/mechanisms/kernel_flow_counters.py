"""The counters of jobs under the eBPF congestion controls, whose flows the kernel knows in all network namespaces."""

from __future__ import annotations

from collections.abc import Iterable

from mltcp.daemon.jobs.job import Job
from mltcp.ebpf.layout import FlowCounts


class KernelFlowCounters:
    """Sums what the kernel counts over the flows of one job: those that were passed, and those of its cgroup."""

    def __init__(self) -> None:
        self._open: dict[int, FlowCounts] = {}

    def update(self, job: Job, now: Iterable[FlowCounts]) -> None:
        """Add what the counts have grown by, and forget flows that are closed.

        A flow of the job's cgroup is the job's from its beginning on, one that was passed from when it was passed on.
        """
        passed = {flow.cookie: flow for flow in job.flows}
        seen = {each.cookie: each for each in now}
        for cookie, each in seen.items():
            before = self._open.get(
                cookie, each if cookie in passed else FlowCounts(cookie, each.job, 0, 0, 0)
            )
            job.acked_bytes += each.acked - before.acked
            job.retransmits += (each.retransmits - before.retransmits) & 0xFFFFFFFF
            job.marks += (each.marks - before.marks) & 0xFFFFFFFF
        for cookie, flow in passed.items():
            if cookie not in seen:
                del job.flows[flow]
        self._open = seen

    def flow_count(self, job: Job) -> int:
        """The number of open flows; of those that were passed since the last update, too."""
        return len(self._open.keys() | {flow.cookie for flow in job.flows})
