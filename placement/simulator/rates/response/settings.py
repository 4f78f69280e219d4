"""A run of training jobs without deadlines: the cluster and the load on it, and the outcome."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mltcp.core.errors import UsageError
from mltcp.core.quantities import NS_PER_S
from placement.model.throughput import ThroughputModel, Workload
from placement.traces.async_sgd import AsyncTrace

NODES = 100
"""The cluster of the paper's simulations: so many nodes of one GPU."""

MOST_NODES = 10_000
HIGHEST_LOAD = 100.0
SHARE = 0.4
"""The share of a job whose completion Figure 14 is about."""


@dataclass(frozen=True)
class ResponseSettings:
    """The cluster and its load.

    Attributes:
        model: the throughput model.
        nodes: W.
        load: x = lambda E[S(1)] / W.
        share: q, of the time until so much of a job is done.

    Raises:
        UsageError: a value is out of range.
    """

    model: ThroughputModel
    nodes: int = NODES
    load: float = 0.6
    share: float = SHARE

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MOST_NODES:
            raise UsageError(f"nodes: expected 1 to {MOST_NODES}, got {self.nodes}")
        if not 0 < self.load <= HIGHEST_LOAD:
            raise UsageError(f"load: expected more than 0 up to {HIGHEST_LOAD:g}, got {self.load:g}")
        if not 0 < self.share < 1:
            raise UsageError(f"share: expected more than 0 and less than 1, got {self.share:g}")

    def speeds(self, workload: Workload) -> tuple[float, ...]:
        """X(w) in mini-batches a second on w = 0 to all nodes."""
        return speeds_of_model(self.model, workload, self.nodes)  # type: ignore[arg-type]  # models are values

    def rate(self, trace: AsyncTrace) -> float:
        """lambda in jobs a second: the load over E[S(1)], the mean over the models of the trace's set."""
        alone_s = [
            model.epochs * model.samples / model.batch / self.speeds(model)[1] for model in trace.models
        ]
        return self.load * self.nodes / (sum(alone_s) / len(alone_s))


@lru_cache(maxsize=256)
def speeds_of_model(model: ThroughputModel, workload: Workload, nodes: int) -> tuple[float, ...]:
    """X(w) in mini-batches a second on w = 0 to `nodes` nodes of one GPU."""
    rates = [
        model.samples_per_ns(workload, tuple((node, 1) for node in range(width)))
        for width in range(1, nodes + 1)
    ]
    return (0.0, *(float(rate / workload.batch) * NS_PER_S for rate in rates))


@dataclass(frozen=True, eq=False)
class ResponseOutcome:
    """The times of the jobs of a trace.

    Attributes:
        arrival_s: of each job.
        end_s: of each job.
        part_s: when the share that was asked about was done.
        most_present: the most jobs at a time.
        left_at_last: the jobs present after the last arrival.
        job_seconds: the integral over time of the jobs present.
    """

    arrival_s: np.ndarray
    end_s: np.ndarray
    part_s: np.ndarray
    most_present: int
    left_at_last: int
    job_seconds: float
