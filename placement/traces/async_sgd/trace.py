"""A trace of training jobs whose arrivals are stretched to a load."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from mltcp.core.errors import UsageError
from mltcp.core.quantities import NS_PER_S
from placement.model.table_reader import MOST
from placement.model.throughput import Workload
from placement.traces.async_sgd.models import EPOCHS_VARIANCE
from placement.traces.deadlines.trace import DeadlineJob, DeadlineTrace
from placement.traces.left_out import LeftOut

MOST_JOBS = 1_000_000

_PARTS = 1000
"""Into which samples are divided where their number must be whole, because epochs need not be."""


@dataclass(frozen=True, eq=False)
class AsyncTrace:
    """Jobs in the order of their arrival, as arrays.

    Attributes:
        name: for reports.
        models: of which the jobs are; their epochs are means.
        arrival_units: when each job arrives, in mean times between arrivals.
        model: the position of its model in `models`.
        epochs: of the job; need not be whole.
        seed: of a trace that was drawn; None if it was read.
        left_out: the lines of its file that make no job.
    """

    name: str
    models: tuple[Workload, ...]
    arrival_units: np.ndarray
    model: np.ndarray
    epochs: np.ndarray
    seed: int | None = field(default=None)
    left_out: LeftOut = field(default=LeftOut(), repr=False)

    def __len__(self) -> int:
        return len(self.epochs)

    def batches(self) -> np.ndarray:
        """J: the size of each job in mini-batches."""
        a_epoch = np.array([model.samples / model.batch for model in self.models])
        return np.asarray(self.epochs * a_epoch[self.model])

    def whole_jobs(self, rate: float) -> DeadlineTrace:
        """The same jobs for executors that run a few jobs in exact numbers; their deadlines are beyond all times.

        Args:
            rate: lambda, jobs a second.

        Raises:
            UsageError: the trace is longer than 31 years.
        """
        jobs = []
        for number, (units, index, epochs) in enumerate(
            zip(self.arrival_units.tolist(), self.model.tolist(), self.epochs.tolist(), strict=True)
        ):
            model = self.models[index]
            samples = max(1, round(Fraction(epochs) * model.samples * _PARTS))
            workload = Workload(
                model.name, model.parameters, model.batch * _PARTS, model.compute_ns, samples, 1
            )
            jobs.append(DeadlineJob(str(number), round(units / rate * NS_PER_S), workload, MOST))
        return DeadlineTrace(self.name, tuple(jobs), max(jobs[-1].arrival_ns, 1), self.seed)


def draw_trace(models: tuple[Workload, ...], jobs: int, seed: int) -> AsyncTrace:
    """Draw a trace: Poisson arrivals, models equally likely, epochs normal.

    Raises:
        UsageError: the number of jobs is out of range, the seed is negative, or a job has no work.
    """
    if not 1 <= jobs <= MOST_JOBS:
        raise UsageError(f"jobs: expected 1 to {MOST_JOBS}, got {jobs}")
    if seed < 0:
        raise UsageError(f"seed: expected 0 or more, got {seed}")
    draw = np.random.Generator(np.random.PCG64(seed))
    arrival_units = np.cumsum(draw.exponential(size=jobs))
    model = draw.integers(0, len(models), size=jobs)
    means = np.array([model.epochs for model in models], np.float64)
    epochs = means[model] + math.sqrt(EPOCHS_VARIANCE) * draw.standard_normal(jobs)
    if epochs.min() <= 0:
        raise UsageError(f"seed {seed}: epochs: expected more than 0, got {epochs.min():g}")
    return AsyncTrace(f"seed {seed}", models, arrival_units, model, epochs, seed)
