"""The results of `mltcp-placement jobs`: of a trace under a policy, and of a policy over all traces."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import fmean
from typing import Any, Self

from placement.simulator.rates.outcome import RatesOutcome


@dataclass(frozen=True)
class TraceResult:
    """The result of a trace under a policy.

    Attributes:
        trace: its name.
        seed: of a trace that was drawn; None if it was read.
        jobs: M.
        met: the jobs that met their deadlines.
        mean_wait_s: T_wait, from arrival to first start.
        mean_completion_s: T_comp, from arrival to end.
        makespan_s: until the last job ended.
        migrations: restarts that left the number of GPUs as it was.
        restarts: starts after a job's first, of all jobs.
        utilization_arrivals: the share of the GPUs given out, over the time in which jobs arrive.
        utilization: the same until the last job ended.
    """

    trace: str
    seed: int | None
    jobs: int
    met: int
    mean_wait_s: float
    mean_completion_s: float
    makespan_s: float
    migrations: int
    restarts: int
    utilization_arrivals: float
    utilization: float

    @classmethod
    def of(cls, outcome: RatesOutcome) -> Self:
        """The result of an outcome."""
        return cls(
            outcome.trace.name,
            outcome.trace.seed,
            len(outcome.trace.jobs),
            outcome.met,
            outcome.mean_wait_s,
            outcome.mean_completion_s,
            outcome.makespan_s,
            outcome.migrations,
            outcome.restarts,
            outcome.utilization_arrivals,
            outcome.utilization,
        )

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """Read what `asdict` gives; ValueError if it is anything else."""
        if not isinstance(document, dict) or set(document) != {each.name for each in fields(cls)}:
            raise ValueError("not the result of a trace")
        return cls(**document)

    @property
    def guarantee_rate(self) -> float:
        """R_trace = N_sati / M (Equation 13)."""
        return self.met / self.jobs

    def document(self) -> dict[str, Any]:
        """The entry of `traces` in the JSON document."""
        named = asdict(self)
        if self.seed is None:
            del named["seed"]
        else:
            del named["trace"]
        return named


@dataclass(frozen=True)
class PolicyResult:
    """The results of a policy; means are over traces, each of which counts the same.

    Attributes:
        policy: its name.
        traces: one or more, in the order of the command line.
    """

    policy: str
    traces: tuple[TraceResult, ...]

    @property
    def guarantee_rate(self) -> float:
        """The mean of R_trace."""
        return self.mean(lambda trace: trace.guarantee_rate)

    def mean(self, value: Callable[[TraceResult], float]) -> float:
        """The mean of a value over all traces."""
        return fmean(value(trace) for trace in self.traces)

    def means(self) -> dict[str, float]:
        """The means over all traces."""
        return {
            "guarantee_rate": self.guarantee_rate,
            "mean_wait_s": self.mean(lambda trace: trace.mean_wait_s),
            "mean_completion_s": self.mean(lambda trace: trace.mean_completion_s),
            "utilization_arrivals": self.mean(lambda trace: trace.utilization_arrivals),
            "utilization": self.mean(lambda trace: trace.utilization),
        }

    def document(self) -> dict[str, Any]:
        """The entry of `policies` in the JSON document."""
        traces = [trace.document() for trace in self.traces]
        return {"policy": self.policy, **self.means(), "traces": traces}


def document(workload: str, results: Sequence[PolicyResult]) -> dict[str, Any]:
    """The JSON document of `mltcp-placement jobs --json`."""
    return {"workload": workload, "policies": [result.document() for result in results]}


def text(workload: str, results: Sequence[PolicyResult]) -> str:
    """The document as a line of JSON: the same results give the same bytes."""
    return json.dumps(document(workload, results), allow_nan=False)
