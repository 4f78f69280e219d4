"""The results of `mltcp-placement jobs --workload contention`: of a trace under a policy, and of all traces."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Self

import numpy as np

from placement.simulator.rates.rounds.published_loop import PublishedOutcome
from placement.simulator.rates.rounds.run import RoundsOutcome
from placement.traces.contention import ContentionTrace

MEANS = (
    "mean_jct_s",
    "mean_run_s",
    "p90_jct_s",
    "utilization",
    "makespan_s",
    "restarts",
    "mean_sensitivity",
)
"""The fields of which the mean over traces is reported."""


@dataclass(frozen=True, eq=False)
class Distributions:
    """The values of single jobs and rounds, for pictures.

    Attributes:
        jct_s: of each job, from arrival to end.
        run_s: of each job, the time for which it held GPUs.
        sensitivities: of each job, the mean contention sensitivity over the rounds that it ran.
        rounds_by_gpus: for each number of GPUs from 0 on, the rounds in which so many were given out.
    """

    jct_s: np.ndarray
    run_s: np.ndarray
    sensitivities: np.ndarray
    rounds_by_gpus: np.ndarray

    @classmethod
    def joined(cls, each: Sequence[Distributions]) -> Self:
        """Those of several runs together."""
        return cls(
            np.concatenate([one.jct_s for one in each]),
            np.concatenate([one.run_s for one in each]),
            np.concatenate([one.sensitivities for one in each]),
            np.sum([one.rounds_by_gpus for one in each], axis=0),
        )


@dataclass(frozen=True)
class RoundsResult:
    """The result of a trace under a policy.

    Attributes:
        trace: its name.
        seed: of a trace that was drawn; None if it was read.
        jobs: how many there are.
        mean_jct_s: from arrival to end, queueing included.
        mean_run_s: the time for which a job held GPUs.
        p90_jct_s: the 90th percentile of completion times.
        utilization: GPUs given out, mean over rounds until the last end.
        makespan_s: when the last job ended.
        restarts: starts after a job's first, a job.
        mean_sensitivity: the mean contention sensitivity 1 / r of a job over the rounds that it ran, mean over jobs.
        distributions: of single jobs and rounds; not in the JSON document.
    """

    trace: str
    seed: int | None
    jobs: int
    mean_jct_s: float
    mean_run_s: float
    p90_jct_s: float
    utilization: float
    makespan_s: float
    restarts: float
    mean_sensitivity: float
    distributions: Distributions = field(repr=False, compare=False)

    @classmethod
    def of(cls, outcome: RoundsOutcome) -> Self:
        """The result of an outcome."""
        return cls(
            outcome.trace.name,
            outcome.trace.seed,
            len(outcome.trace.jobs),
            **{name: getattr(outcome, name) for name in MEANS},
            distributions=Distributions(
                outcome.jct_s, outcome.run_s, outcome.sensitivities, outcome.rounds_by_gpus
            ),
        )

    @classmethod
    def of_published(cls, trace: ContentionTrace, outcomes: Sequence[PublishedOutcome]) -> Self:
        """The mean result of runs of the public loop, one a seed of random actions."""
        means = {name: fmean(getattr(outcome, name) for outcome in outcomes) for name in MEANS}
        distributions = Distributions.joined(
            [
                Distributions(
                    *map(np.array, (each.finish_s, each.run_s, each.sensitivities, each.rounds_by_gpus))
                )
                for each in outcomes
            ]
        )
        return cls(trace.name, trace.seed, len(trace.jobs), **means, distributions=distributions)

    def document(self) -> dict[str, Any]:
        """The entry of `traces` in the JSON document."""
        which = "trace" if self.seed is None else "seed"
        return {name: getattr(self, name) for name in (which, "jobs", *MEANS)}


@dataclass(frozen=True)
class RoundsPolicyResult:
    """The results of a policy; means are over traces, each of which counts the same.

    Attributes:
        policy: its name.
        traces: one or more, in the order of the command line.
    """

    policy: str
    traces: tuple[RoundsResult, ...]

    def mean(self, value: Callable[[RoundsResult], float]) -> float:
        """The mean of a value over all traces."""
        return fmean(value(trace) for trace in self.traces)

    @property
    def distributions(self) -> Distributions:
        """Of all traces together."""
        return Distributions.joined([trace.distributions for trace in self.traces])

    def document(self) -> dict[str, Any]:
        """The entry of `policies` in the JSON document."""
        means = {name: self.mean(lambda trace, name=name: getattr(trace, name)) for name in MEANS}  # type: ignore[misc]
        return {"policy": self.policy, **means, "traces": [trace.document() for trace in self.traces]}


def text(
    results: Sequence[RoundsPolicyResult], restart_cost_s: float, left_out: Mapping[str, Any] | None = None
) -> str:
    """The JSON document as a line: the same results give the same bytes.

    Args:
        results: of the policies.
        restart_cost_s: seconds.
        left_out: of traces that were read, what was left out of them.
    """
    found: dict[str, Any] = {
        "workload": "contention",
        "restart_cost_s": restart_cost_s,
        "policies": [result.document() for result in results],
    }
    if left_out is not None:
        found["left_out"] = left_out
    return json.dumps(found, allow_nan=False)
