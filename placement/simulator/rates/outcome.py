"""The outcome of a trace of whole jobs: which deadlines were met, waiting and completion times, and utilization."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import numpy as np

from mltcp.core.errors import MltcpError, shown
from mltcp.core.quantities import NS_PER_S
from placement.model.cluster import Cluster
from placement.traces.deadlines import DeadlineTrace


@dataclass(frozen=True)
class Span:
    """The time for which a job held GPUs, from a start to its stop or end.

    Attributes:
        job: its name.
        gpus: their numbers in the cluster.
        start_ns: when it got them.
        end_ns: when it gave them back.
        hold_ns: the cost of the restart, at the beginning.
    """

    job: str
    gpus: tuple[int, ...]
    start_ns: int
    end_ns: int
    hold_ns: int = 0


# -- outcomes ----------------------------------------------------------------------------------------------------------

_LATEST_NS = (1 << 63) - 1


@dataclass(frozen=True, eq=False)
class SpanTable:
    """The spans of all jobs as columns of whole numbers, by job and then by time.

    Attributes:
        job: the position of the job in the trace.
        gpus: N.
        start_ns: when the job got the GPUs.
        end_ns: when it gave them back.
        hold_ns: the cost of the restart at the beginning.
        placed: a row a span, the number of GPUs on each node.
    """

    job: np.ndarray
    gpus: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    hold_ns: np.ndarray
    placed: np.ndarray

    @classmethod
    def of(cls, spans: Sequence[Span], trace: DeadlineTrace, cluster: Cluster) -> Self:
        """The table of these spans.

        Raises:
            MltcpError: a time does not fit into 64 bits.
        """
        if (latest_ns := max((span.end_ns for span in spans), default=0)) > _LATEST_NS:
            raise MltcpError(f"{trace.name}: end_ns: expected up to {_LATEST_NS}, got {shown(latest_ns)}")
        numbers = {job.name: number for number, job in enumerate(trace.jobs)}
        ordered = sorted(spans, key=lambda span: (numbers[span.job], span.start_ns))
        placed = np.zeros((len(ordered), len(cluster.servers)), np.int64)
        for row, span in enumerate(ordered):
            for gpu in span.gpus:
                placed[row, cluster.gpus[gpu][0]] += 1
        job, gpus, start, end, hold = (
            np.array(column, np.int64)
            for column in (
                [numbers[span.job] for span in ordered],
                [len(span.gpus) for span in ordered],
                [span.start_ns for span in ordered],
                [span.end_ns for span in ordered],
                [span.hold_ns for span in ordered],
            )
        )
        return cls(job, gpus, start, end, hold, placed)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SpanTable):
            return NotImplemented
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in vars(self))

    def held_ns(self, until_ns: int) -> int:
        """The GPU time given out before a time."""
        spans = zip(self.gpus.tolist(), self.start_ns.tolist(), self.end_ns.tolist(), strict=True)
        return sum(
            gpus * (min(end_ns, until_ns) - start_ns)
            for gpus, start_ns, end_ns in spans
            if start_ns < until_ns
        )


@dataclass(frozen=True)
class RatesOutcome:
    """The outcome of a trace under a policy.

    Attributes:
        trace: what was run.
        policy: the name of the policy.
        gpus: of the cluster.
        table: the spans of all jobs; every job has one or more.
        spans: the same with the numbers of the GPUs; empty from a compiled run.
    """

    trace: DeadlineTrace
    policy: str
    gpus: int
    table: SpanTable
    spans: tuple[Span, ...] = field(default=(), repr=False, compare=False)

    @classmethod
    def of(cls, trace: DeadlineTrace, policy: str, cluster: Cluster, spans: Sequence[Span]) -> Self:
        """The outcome of a run with these spans.

        Raises:
            MltcpError: a time does not fit into 64 bits.
        """
        return cls(trace, policy, len(cluster.gpus), SpanTable.of(spans, trace, cluster), tuple(spans))

    @cached_property
    def start_ns(self) -> list[int]:
        """T_start of every job."""
        return self.table.start_ns[self._first].tolist()

    @cached_property
    def end_ns(self) -> list[int]:
        """T_end of every job."""
        return self.table.end_ns[np.append(self._first[1:], len(self.table.job)) - 1].tolist()

    @property
    def met(self) -> int:
        """N_sati: the number of jobs with T_end <= T_dl (Equation 9)."""
        pairs = zip(self.end_ns, self.trace.jobs, strict=True)
        return sum(end_ns <= job.deadline_ns for end_ns, job in pairs)

    @property
    def guarantee_rate(self) -> float:
        """R_trace = N_sati / M (Equation 13)."""
        return self.met / len(self.trace.jobs)

    @property
    def mean_wait_s(self) -> float:
        """T_wait: the mean time from arrival to the first start."""
        return self._mean_after_arrival_s(self.start_ns)

    @property
    def mean_completion_s(self) -> float:
        """T_comp: the mean time from arrival to end."""
        return self._mean_after_arrival_s(self.end_ns)

    @property
    def makespan_s(self) -> float:
        """The time from the beginning of the trace until the last job ended."""
        return max(self.end_ns) / NS_PER_S

    @property
    def utilization(self) -> float:
        """The share of the GPUs that were given out, until the last job ended."""
        return self.utilization_until(max(self.end_ns))

    @property
    def utilization_arrivals(self) -> float:
        """The share of the GPUs that were given out, over the time in which jobs arrive."""
        return self.utilization_until(self.trace.arrivals_ns)

    @property
    def restarts(self) -> int:
        """Starts after a job's first, of all jobs."""
        return len(self.table.job) - len(self.trace.jobs)

    @property
    def migrations(self) -> int:
        """The restarts that left the number of GPUs as it was."""
        job, gpus = self.table.job, self.table.gpus
        return int(np.count_nonzero((job[1:] == job[:-1]) & (gpus[1:] == gpus[:-1])))

    def utilization_until(self, until_ns: int) -> float:
        """The share of the GPUs that were given out, from the beginning of the trace up to a time."""
        return self.table.held_ns(until_ns) / (self.gpus * until_ns)

    @cached_property
    def _first(self) -> np.ndarray:
        """The row of each job's first span."""
        return np.searchsorted(self.table.job, np.arange(len(self.trace.jobs)))

    def _mean_after_arrival_s(self, times_ns: Sequence[int]) -> float:
        arrivals_ns = sum(job.arrival_ns for job in self.trace.jobs)
        return (sum(times_ns) - arrivals_ns) / len(times_ns) / NS_PER_S


# -- numbers of GPUs for a run that counted only those of each node ----------------------------------------------------


def numbered_spans(outcome: RatesOutcome) -> tuple[Span, ...]:
    """The spans of an outcome with the numbers of their GPUs, those of the run if it has any.

    Otherwise each span gets the lowest free numbers of its nodes; those of one moment are taken in the order of the
    jobs, after all GPUs that are given back at that moment.
    """
    if outcome.spans:
        return outcome.spans
    table, nodes = outcome.table, outcome.table.placed.shape[1]
    per_node = outcome.gpus // nodes
    free = [list(range(node * per_node, (node + 1) * per_node)) for node in range(nodes)]
    ends: list[tuple[int, tuple[int, ...]]] = []
    spans = []
    starts = zip(table.start_ns.tolist(), table.job.tolist(), range(len(table.job)), strict=True)
    for start_ns, job, row in sorted(starts):
        while ends and ends[0][0] <= start_ns:
            for gpu in heapq.heappop(ends)[1]:
                heapq.heappush(free[gpu // per_node], gpu)
        counts = enumerate(table.placed[row].tolist())
        gpus = tuple(heapq.heappop(free[node]) for node, count in counts for _ in range(count))
        end_ns = int(table.end_ns[row])
        heapq.heappush(ends, (end_ns, gpus))
        spans.append(Span(outcome.trace.jobs[job].name, gpus, start_ns, end_ns, int(table.hold_ns[row])))
    return tuple(spans)
