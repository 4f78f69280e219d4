"""A job of a trace with the throughput model under which it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Protocol

from mltcp.core.demand import Phase
from placement.model.throughput import ThroughputModel, Workload, spread
from placement.simulator.executor import ClusterJob
from placement.traces.deadlines import DeadlineJob


@dataclass(frozen=True)
class ModelTimes:
    """Iteration times in an otherwise idle cluster, by a throughput model. Here a rack is a node.

    Attributes:
        model: gives the speeds.
        workload: of the job.
        per_node: GPUs of a node.
    """

    model: ThroughputModel
    workload: Workload
    per_node: int
    _known: dict[tuple[int, bool], int | Fraction] = field(default_factory=dict, compare=False, repr=False)

    def iteration_ns(self, workers: int, one_node: bool) -> float:
        """See `IterationTimes`; exact: a whole number or a `Fraction`."""
        key = workers, one_node
        known = self._known.get(key)
        if known is None:
            rate = self.model.samples_per_ns(self.workload, spread(workers, self.per_node, one_node))
            exact = workers * self.workload.batch / rate
            known = self._known[key] = exact.numerator if exact.denominator == 1 else exact
        return known  # type: ignore[return-value]  # a Fraction where a float would round


class RatedJob(ClusterJob, Protocol):
    """A job whose speed a throughput model gives; `RateJob` and `RoundJob` are such."""

    @property
    def workload(self) -> Workload:
        """Its model, and how much of it is trained."""
        ...


@dataclass(frozen=True)
class RateJob:
    """A job of a trace on one cluster, under one throughput model.

    Attributes:
        job: as the trace has it.
        times: its iteration times.
        most: the GPUs of the cluster.
    """

    job: DeadlineJob
    times: ModelTimes
    most: int

    @property
    def name(self) -> str:
        """Unique in its trace."""
        return self.job.name

    @property
    def workload(self) -> Workload:
        """Its model, and how much of it is trained."""
        return self.job.workload

    @property
    def arrival_ns(self) -> int:
        """T_arr."""
        return self.job.arrival_ns

    @property
    def deadline_ns(self) -> int | None:
        """T_dl."""
        return self.job.deadline_ns

    @property
    def workers(self) -> int:
        """The number of GPUs that it asks for."""
        return self.job.gpus

    @property
    def min_workers(self) -> int:
        """One GPU: the batch of a GPU is constant, so any number will do."""
        return 1

    @property
    def max_workers(self) -> int:
        """All GPUs of the cluster."""
        return self.most

    @cached_property
    def iterations(self) -> Fraction:
        """The steps with `workers` workers: N_epoch * N_step, which is not rounded (Equation 3)."""
        workload = self.job.workload
        return Fraction(workload.total_samples, workload.batch * self.workers)

    @property
    def noise_scale(self) -> float:
        """Infinite: the work is a number of samples, whatever the size of the batch."""
        return math.inf

    def phases(self, workers: int) -> tuple[Phase, ...]:
        """Not known."""
        return ()
