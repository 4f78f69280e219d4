"""The outcome of a trace of jobs with demand phases: times of iterations and jobs, marked bits, and decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class IteratedJobOutcome:
    """The outcome of a job.

    Attributes:
        name: of the job.
        model: of its network; empty if that is not known.
        iteration_ns: of each iteration it ended.
        slowdown: of each of these, the same over what it takes alone with as many workers.
        marked_bits: of each of these, what it sent over links while more was asked of them than they have.
        completion_ns: from its arrival to its end.
        moved: how often it was moved.
        delayed: how often it was delayed, by a time shift or because it had drifted.
    """

    name: str
    model: str
    iteration_ns: np.ndarray
    slowdown: np.ndarray
    marked_bits: np.ndarray
    completion_ns: float
    moved: int
    delayed: int

    def document(self) -> dict[str, Any]:
        """The job as a JSON document."""
        return {
            "name": self.name,
            "model": self.model,
            "iterations": len(self.iteration_ns),
            "iteration_s": _spread(self.iteration_ns / 1e9),
            "slowdown": _spread(self.slowdown),
            "marked_bits": float(self.marked_bits.mean()),
            "completion_s": self.completion_ns / 1e9,
            "moved": self.moved,
            "delayed": self.delayed,
        }


@dataclass(frozen=True)
class TraceOutcome:
    """The outcome of a trace.

    Attributes:
        policy: the name of the policy.
        jobs: in the order of the trace.
        decision_ns: of each decision, how long it took.
        scores: of each decision of Cassini under which links are shared, the score of what it chose.
    """

    policy: str
    jobs: tuple[IteratedJobOutcome, ...]
    decision_ns: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()

    @property
    def mean_s(self) -> float:
        """The mean time of all iterations of all jobs."""
        return float(joined([job.iteration_ns for job in self.jobs]).mean()) / 1e9

    @property
    def p99_s(self) -> float:
        """The 99th percentile of the times of all iterations of all jobs."""
        return _percentile(joined([job.iteration_ns for job in self.jobs]), 99) / 1e9

    def document(self) -> dict[str, Any]:
        """The outcome as a JSON document; means and percentiles are over all iterations of all jobs."""
        return {
            "policy": self.policy,
            "iteration_s": _spread(joined([job.iteration_ns for job in self.jobs]) / 1e9),
            "slowdown": _spread(joined([job.slowdown for job in self.jobs])),
            "marked_bits": float(joined([job.marked_bits for job in self.jobs]).mean()),
            "completion_s": {"mean": float(np.mean([job.completion_ns for job in self.jobs])) / 1e9},
            "moved": sum(job.moved for job in self.jobs),
            "delayed": sum(job.delayed for job in self.jobs),
            "decisions": len(self.decision_ns),
            "decision_ms": {
                "mean": float(np.mean(self.decision_ns)) / 1e6 if self.decision_ns else 0.0,
                "max": max(self.decision_ns, default=0) / 1e6,
            },
            "score": float(np.mean(self.scores)) if self.scores else None,
            "jobs": [job.document() for job in self.jobs],
        }


def joined(values: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate arrays; without any, an empty one."""
    return np.concatenate(values) if values else np.zeros(0)


def _spread(values: np.ndarray) -> dict[str, float]:
    return {"mean": float(values.mean()), "p50": _percentile(values, 50), "p99": _percentile(values, 99)}


def _percentile(values: np.ndarray, percent: float) -> float:
    return float(np.percentile(values, percent))
