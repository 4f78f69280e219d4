"""Traces of asynchronous training jobs of a few models, without deadlines: the workload of the HELL paper."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np

from mltcp.core.errors import UsageError, shown
from mltcp.core.quantities import BYTES_PER_PARAMETER, NS_PER_S
from placement.model.table_reader import MOST, Columns, Field, Source, fault
from placement.model.throughput import Workload
from placement.traces.deadlines import DeadlineJob, DeadlineTrace
from placement.traces.trace import JobSieve, LeftOut, read_jobs

# -- the models of Table III -------------------------------------------------------------------------------------------
# A worker has an NVIDIA Grid K520 of 1229 GFLOPS, and a mini-batch 1,024 examples. Source: Lin, Paolieri, Chou and
# Golubchik, "A model-based approach to streamlining distributed training for asynchronous SGD", MASCOTS 2018.

BATCH = 1024
GFLOPS = 1229

_MB = 10**6


def _model(name: str, examples: int, megabytes: int, tflop_per_batch: float, epochs: int) -> Workload:
    compute_ns = round(tflop_per_batch * 1000 / GFLOPS * 10**9)
    return Workload(name, megabytes * _MB // BYTES_PER_PARAMETER, BATCH, compute_ns, examples, epochs)


NIN = _model("NiN", 50_000, 30, 6.7, 200)
GOOGLENET = _model("GoogLeNet", 1_200_000, 54, 9.7, 200)
ALEXNET = _model("AlexNet", 1_200_000, 249, 7.0, 90)
VGG19 = _model("VGG19", 1_200_000, 575, 120.0, 74)

SETS: Mapping[str, tuple[Workload, ...]] = MappingProxyType(
    {"four": (NIN, GOOGLENET, ALEXNET, VGG19), "two": (ALEXNET, VGG19), "one": (ALEXNET,)}
)
"""The sets of models by name; every model of a set is equally likely."""

EPOCHS_VARIANCE = 2.0
"""The epochs of a job are normal with the mean of its model and this variance."""


# -- traces whose arrivals are stretched to a load ---------------------------------------------------------------------

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
        return DeadlineTrace(self.name, tuple(jobs), seed=self.seed)


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


# -- tables ------------------------------------------------------------------------------------------------------------
# Columns, in any order:
#     arrival_units: when the job arrives, in mean times between arrivals; the load turns them into seconds.
#     model: the name of one of the models of the set.
#     epochs: how many it trains, more than 0; need not be whole.

COLUMNS = ("arrival_units", "model", "epochs")

_MOST_UNITS = 10**9
_MOST_EPOCHS = 10**6


def read_trace(path: Path, models: tuple[Workload, ...]) -> AsyncTrace:
    """Read a trace; its jobs are put in the order of their arrival.

    Raises:
        UsageError: "file:line: field: reason; expected what": a column is missing, unknown or there twice; or no job
            is left without those whose line has too few or too many fields, a number that is none or out of range, or
            a model that is not in the set.
    """
    source = Source.load(path)
    numbers = {model.name: number for number, model in enumerate(models)}
    sieve = JobSieve()
    columns = partial(Columns.of, known=COLUMNS, needed=COLUMNS)
    rows = [row for row, _ in read_jobs(source, columns, lambda fields: _job(fields, numbers), sieve)]
    if len(rows) > MOST_JOBS:
        raise fault(source.place(1), "file", f"{len(rows)} jobs follow", f"1 to {MOST_JOBS}")
    rows.sort(key=lambda row: row[0])
    arrivals, model, epochs = zip(*rows, strict=True)
    return AsyncTrace(
        source.name,
        models,
        np.array(arrivals),
        np.array(model, np.int64),
        np.array(epochs),
        left_out=sieve.result(),
    )


def _job(fields: Mapping[str, Field], numbers: Mapping[str, int]) -> tuple[float, int, float]:
    arrival = _within(fields["arrival_units"], 0, _MOST_UNITS, "0")
    epochs = _within(fields["epochs"], 1e-6, _MOST_EPOCHS, "more than 0")
    model = fields["model"].word()
    if model not in numbers:
        raise fields["model"].error(f"{shown(model)} is not in the set of models", ", ".join(numbers))
    return arrival, numbers[model], epochs


def _within(field: Field, lowest: float, highest: int, least: str) -> float:
    expected = f"a number, {least} to {highest}"
    value = field.real(expected)
    if not lowest <= value <= highest:
        raise field.error(f"{shown(field.text.strip())} is out of range", expected)
    return value
