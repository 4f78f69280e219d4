"""The counters of jobs under the eBPF congestion controls, whose flows the kernel knows in all network namespaces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mltcp.daemon.jobs.job import PAUSE_FLOWS, Job
from mltcp.ebpf.layout import FlowCounts
from mltcp.pacing.sock_diag import FlowKey


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
