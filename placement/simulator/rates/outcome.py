"""The outcome of a trace of whole jobs: which deadlines were met, waiting and completion times, and utilization."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import fmean

from placement.simulator.rates.span import Span
from placement.traces.deadlines.trace import DeadlineJob, DeadlineTrace

_NS_PER_S = 10**9


@dataclass(frozen=True)
class JobRecord:
    """A job that has ended.

    Attributes:
        job: as the trace has it.
        spans: the times for which it held GPUs, in order; one or more.
    """

    job: DeadlineJob
    spans: list[Span] = field(default_factory=list)

    @property
    def start_ns(self) -> int:
        """T_start."""
        return self.spans[0].start_ns

    @property
    def end_ns(self) -> int:
        """T_end."""
        return self.spans[-1].end_ns

    @property
    def met(self) -> bool:
        """Whether it met its deadline (Equation 9)."""
        return self.end_ns <= self.job.deadline_ns

    @property
    def restarts(self) -> int:
        """The number of starts after the first."""
        return len(self.spans) - 1

    @property
    def migrations(self) -> int:
        """The restarts that left the number of GPUs as it was."""
        return sum(
            len(before.gpus) == len(after.gpus)
            for before, after in zip(self.spans, self.spans[1:], strict=False)
        )


@dataclass(frozen=True)
class RatesOutcome:
    """The outcome of a trace under a policy.

    Attributes:
        trace: what was run.
        policy: the name of the policy.
        gpus: of the cluster.
        records: of all jobs, in the order of the trace.
    """

    trace: DeadlineTrace
    policy: str
    gpus: int
    records: tuple[JobRecord, ...]

    @property
    def met(self) -> int:
        """N_sati: the number of jobs that met their deadline."""
        return sum(record.met for record in self.records)

    @property
    def guarantee_rate(self) -> float:
        """R_trace = N_sati / M (Equation 13)."""
        return self.met / len(self.records)

    @property
    def mean_wait_s(self) -> float:
        """T_wait: the mean time from arrival to the first start."""
        return fmean(record.start_ns - record.job.arrival_ns for record in self.records) / _NS_PER_S

    @property
    def mean_completion_s(self) -> float:
        """T_comp: the mean time from arrival to end."""
        return fmean(record.end_ns - record.job.arrival_ns for record in self.records) / _NS_PER_S

    @property
    def makespan_s(self) -> float:
        """The time from the beginning of the trace until the last job ended."""
        return self._last_ns / _NS_PER_S

    @property
    def utilization(self) -> float:
        """The share of the GPUs that were given out, until the last job ended."""
        return self.utilization_until(self._last_ns)

    @property
    def utilization_arrivals(self) -> float:
        """The share of the GPUs that were given out, over the time in which jobs arrive."""
        return self.utilization_until(self.trace.arrivals_ns)

    @property
    def restarts(self) -> int:
        """Of all jobs."""
        return sum(record.restarts for record in self.records)

    @property
    def migrations(self) -> int:
        """Of all jobs."""
        return sum(record.migrations for record in self.records)

    def utilization_until(self, until_ns: int) -> float:
        """The share of the GPUs that were given out, from the beginning of the trace up to a time."""
        return float(Fraction(held_ns(self.spans(), until_ns), self.gpus * until_ns))

    def spans(self) -> Iterable[Span]:
        """The spans of all jobs."""
        return (span for record in self.records for span in record.spans)

    @property
    def _last_ns(self) -> int:
        return max(record.end_ns for record in self.records)


def held_ns(spans: Iterable[Span], until_ns: int) -> int:
    """The GPU time given out before a time."""
    return sum(
        len(span.gpus) * (min(span.end_ns, until_ns) - span.start_ns)
        for span in spans
        if span.start_ns < until_ns
    )
