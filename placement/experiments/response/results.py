"""The results of a policy on traces without deadlines: mean response times with their intervals."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from mltcp.core.quantities import S_PER_HOUR
from placement.experiments.statistics import Paired, half_interval, paired
from placement.simulator.rates.response.settings import ResponseOutcome

BATCHES = 20
DROPPED = 2000
"""The first jobs of a trace, in the order of arrival, that means leave out; none of a trace of no more jobs."""

_SLACK_OF_NODES, _SLACK_OF_JOBS = 1, 100


@dataclass(frozen=True)
class TraceResult:
    """The result of a policy on a trace.

    Attributes:
        trace: its name.
        seed: of a trace that was drawn; None if it was read.
        jobs: their number.
        dropped: of the first jobs, that do not count in the means.
        mean_response_h: from arrival to end.
        interval_95_h: half the width of the 95 % confidence interval of that mean, from 20 batch means; None for fewer
            than two jobs a batch.
        to_40_percent_h: the mean time from arrival until 40 % of a job is done.
        stable: whether the jobs present after the last arrival are no more than the nodes and a hundredth of the jobs.
        most_present: the most jobs present at a time.
        left_at_last: the jobs present after the last arrival.
        mean_response_all_h: of all jobs.
    """

    trace: str
    seed: int | None
    jobs: int
    dropped: int
    mean_response_h: float
    interval_95_h: float | None
    to_40_percent_h: float
    stable: bool
    most_present: int
    left_at_last: int
    mean_response_all_h: float

    @classmethod
    def of(cls, trace: str, seed: int | None, nodes: int, outcome: ResponseOutcome) -> Self:
        """The result of an outcome on so many nodes."""
        jobs = len(outcome.arrival_s)
        dropped = DROPPED if jobs > DROPPED else 0
        response_h = (outcome.end_s - outcome.arrival_s) / S_PER_HOUR
        part_h = (outcome.part_s - outcome.arrival_s) / S_PER_HOUR
        return cls(
            trace,
            seed,
            jobs,
            dropped,
            float(response_h[dropped:].mean()),
            half_interval_of_batches(response_h[dropped:]),
            float(part_h[dropped:].mean()),
            outcome.left_at_last <= _SLACK_OF_NODES * nodes + jobs / _SLACK_OF_JOBS,
            outcome.most_present,
            outcome.left_at_last,
            float(response_h.mean()),
        )

    def document(self) -> dict[str, Any]:
        """The entry of `traces` in the JSON document."""
        named = {"trace": self.trace} if self.seed is None else {"seed": self.seed}
        return named | {name: value for name, value in vars(self).items() if name not in ("trace", "seed")}


@dataclass(frozen=True)
class PolicyResult:
    """The results of a policy; means are over traces, each of which counts the same.

    Attributes:
        policy: its name.
        traces: one or more, in the order of the command line.
        chunk: k of JSQ-Chunk, given or found; None for others.
    """

    policy: str
    traces: tuple[TraceResult, ...]
    chunk: int | None = None

    @property
    def mean_response_h(self) -> float:
        """The mean over traces."""
        return statistics.fmean(each.mean_response_h for each in self.traces)

    @property
    def interval_95_h(self) -> float | None:
        """Half the width of its 95 % interval: from the means of the traces, or of one trace its own."""
        if len(self.traces) == 1:
            return self.traces[0].interval_95_h
        return half_interval([each.mean_response_h for each in self.traces])

    @property
    def to_40_percent_h(self) -> float:
        """The mean over traces."""
        return statistics.fmean(each.to_40_percent_h for each in self.traces)

    @property
    def stable(self) -> bool:
        """Whether it is stable on all traces."""
        return all(each.stable for each in self.traces)

    def against(self, first: PolicyResult) -> Paired:
        """The difference from another policy on the same traces, trace by trace."""
        return paired(
            [each.mean_response_h for each in self.traces], [each.mean_response_h for each in first.traces]
        )

    def document(self) -> dict[str, Any]:
        """The entry of `policies` in the JSON document."""
        chunk = {} if self.chunk is None else {"chunk": self.chunk}
        return {
            "policy": self.policy,
            **chunk,
            "mean_response_h": self.mean_response_h,
            "interval_95_h": self.interval_95_h,
            "to_40_percent_h": self.to_40_percent_h,
            "stable": self.stable,
            "traces": [each.document() for each in self.traces],
        }


def half_interval_of_batches(values: np.ndarray) -> float | None:
    """Half the width of the 95 % interval of the mean of a stationary series, by 20 batch means.

    None for fewer than two values a batch. What is left over by whole batches does not count.
    """
    size = len(values) // BATCHES
    if size < 2:
        return None
    return half_interval(values[: size * BATCHES].reshape(BATCHES, size).mean(axis=1).tolist())


def best(results: Sequence[PolicyResult]) -> PolicyResult:
    """The result with the least mean response time; stable ones before others."""
    return min(results, key=lambda result: (not result.stable, result.mean_response_h))
