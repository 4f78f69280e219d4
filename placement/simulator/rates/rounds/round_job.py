"""A job of a contention trace under a table, for the scheduler loop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from mltcp.core.demand import Phase
from placement.model.throughput import Workload
from placement.model.throughput_table import TableModel, TableTimes, workload_of
from placement.traces.contention import ContentionJob


@dataclass(frozen=True)
class RoundJob:
    """A job of a trace, under a throughput model of a table; see `ClusterJob`.

    Attributes:
        job: as the trace has it.
        model: the throughput model.
    """

    job: ContentionJob
    model: TableModel

    @property
    def name(self) -> str:
        """Unique in its trace."""
        return self.job.name

    @property
    def arrival_ns(self) -> int:
        """Since the beginning of the trace."""
        return self.job.arrival_ns

    @property
    def deadline_ns(self) -> int | None:
        """None."""
        return None

    @property
    def workers(self) -> int:
        """Its demand."""
        return self.job.gpus

    @property
    def min_workers(self) -> int:
        """Its demand: it never changes."""
        return self.job.gpus

    @property
    def max_workers(self) -> int:
        """Its demand."""
        return self.job.gpus

    @cached_property
    def workload(self) -> Workload:
        """Its model and its samples."""
        return workload_of(self.job.model, self.job.samples)

    @cached_property
    def iterations(self) -> Fraction:
        """Iterations of one sample a worker."""
        return Fraction(self.job.samples) / self.workers

    @cached_property
    def times(self) -> TableTimes:
        """Those of the table."""
        return TableTimes(self.model, self.job.model)

    @property
    def noise_scale(self) -> float:
        """Infinite: the work is a number of samples."""
        return math.inf

    def phases(self, workers: int) -> tuple[Phase, ...]:
        """Not known."""
        return ()
