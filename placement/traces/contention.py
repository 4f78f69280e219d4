"""Traces of jobs with a fixed number of GPUs, whose speeds a table of measurements gives.

The four traces that are shipped come from the paper's public code (gajagajago/deepshare, Apache-2.0): 256 jobs each,
all of which arrive at time 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np

from mltcp.core.errors import UsageError, shown
from mltcp.core.quantities import NS_PER_S
from placement.model.table_reader import MOST, Columns, Field, Source
from placement.model.throughput_table import SensitivityTable
from placement.traces.trace import JobSieve, Trace, read_jobs

SETS = Path(__file__).parent / "sets"
"""The folder of the traces that are shipped."""

SHIPPED = ("simulate_trace0", "train_jobset0_episode0", "train_jobset0_episode1", "train_jobset1_episode0")
"""Their names."""

COLUMNS = ("job_id", "arrival_s", "model", "gpus", "total_samples")
"""The last one is optional: without it a job has an hour's worth of samples."""


@dataclass(frozen=True)
class ContentionJob:
    """A training run that always has the same number of GPUs.

    Attributes:
        name: unique in its trace.
        arrival_ns: since the beginning of the trace.
        model: of the table.
        gpus: g, its demand.
        samples: S, in all.

    Raises:
        UsageError: a value is out of range.
    """

    name: str
    arrival_ns: int
    model: str
    gpus: int
    samples: float

    def __post_init__(self) -> None:
        if not 0 <= self.arrival_ns <= MOST:
            raise UsageError(f"job {self.name!r}: arrival_ns: expected 0 to {MOST}, got {self.arrival_ns}")
        if self.gpus < 1:
            raise UsageError(f"job {self.name!r}: gpus: expected 1 or more, got {self.gpus}")
        if not (self.samples >= 1 and math.isfinite(self.samples)):
            raise UsageError(f"job {self.name!r}: total_samples: expected 1 or more, got {self.samples}")


@dataclass(frozen=True)
class ContentionTrace(Trace[ContentionJob]):
    """Jobs with a fixed number of GPUs."""

    def check_rows(self, table: SensitivityTable) -> None:
        """Refuse a job of which the table has no row.

        Raises:
            UsageError: there is one.
        """
        for index, job in enumerate(self.jobs):
            try:
                table.nodes(job.model, job.gpus)
            except UsageError as error:
                raise UsageError(f"{self.place(index)}: {error}") from None


def read_trace(given: str, table: SensitivityTable) -> ContentionTrace:
    """Read a trace from a file, or one of `SHIPPED` by its name.

    Raises:
        UsageError: the file cannot be read, or no job is left without those whose line is wrong, or for which the
            table has no row.
    """
    path = SETS / f"{given}.csv" if given in SHIPPED else Path(given)
    source = Source.load(path)
    sieve = JobSieve()
    columns = partial(Columns.of, known=COLUMNS, needed=COLUMNS[:-1])
    jobs = read_jobs(source, columns, lambda fields: _job(fields, table), sieve, lambda job: job.name)
    return ContentionTrace.of(source.name, jobs, sieve.result())


def _job(fields: Mapping[str, Field], table: SensitivityTable) -> ContentionJob:
    name, arrival_ns = fields["job_id"].word(), fields["arrival_s"].units(NS_PER_S, "ns")
    model, gpus = fields["model"].word(), fields["gpus"].whole(1)
    try:
        samples = table.job_samples(model, gpus)
    except UsageError as error:
        raise UsageError(f"{fields['model'].place}: {error}") from None
    if "total_samples" in fields:
        samples = fields["total_samples"].real("a number of 1 or more")
        if samples < 1:
            raise fields["total_samples"].error(f"{samples:g} is too small", "a number of 1 or more")
    return ContentionJob(name, arrival_ns, model, gpus, samples)


# -- drawn traces: 256 jobs of the shipped table's models and demands, at once or with Poisson arrivals ----------------
# The load is the arrival rate times the mean service of a job, 16,800 GPU s (an hour on 14/3 GPUs), over 32 GPUs.
# Models, demands and arrivals come from three streams of random numbers, so that traces that differ in one share the
# others.

MODELS = ("MobileNetV3", "GraphSage", "FSDP", "Transformer-XL", "DLRM", "MoE")
"""In the order in which weights are cumulated."""

MIXES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "normal": (1, 1, 1, 1, 1, 1),
        "heavy": (1, 1, 4, 1, 1, 4),
        "medium": (1, 1, 1, 4, 4, 1),
        "low": (4, 4, 1, 1, 1, 1),
    }
)
"""The weights of the models in the paper's four mixes."""

DEMANDS = (2, 4, 8)
JOBS = 256

_MEAN_SERVICE_S = 16_800 / 32
_MICROSECONDS, _NS = 10**6, 1000


@dataclass(frozen=True)
class ContentionMix:
    """The parameters of drawn traces.

    Attributes:
        load: None if all jobs arrive at time 0.
        mix: one of `MIXES`.
        jobs: of a trace.

    Raises:
        UsageError: a value is out of range.
    """

    load: float | None = None
    mix: str = "normal"
    jobs: int = JOBS

    def __post_init__(self) -> None:
        if self.load is not None and not 0.001 <= self.load <= 1000:
            raise UsageError(f"load: expected 0.001 to 1000, got {self.load}")
        if self.mix not in MIXES:
            raise UsageError(f"mix: expected {', '.join(MIXES)}, got {shown(self.mix)}")
        if not 1 <= self.jobs <= 100_000:
            raise UsageError(f"jobs: expected 1 to 100000, got {self.jobs}")

    def trace(self, seed: int, table: SensitivityTable) -> ContentionTrace:
        """Draw the trace of a seed, 0 or more; job i is named after its position.

        Raises:
            UsageError: a negative seed, or the table has no row for a job.
        """
        models, demands, arrivals_ns = self.draw(seed)
        jobs = []
        for number, (model, gpus, arrival_ns) in enumerate(
            zip(models.tolist(), demands.tolist(), arrivals_ns.tolist(), strict=True)
        ):
            samples = table.job_samples(MODELS[model], gpus)
            jobs.append(ContentionJob(str(number), arrival_ns, MODELS[model], gpus, samples))
        when = "at-once" if self.load is None else f"load-{self.load:g}"
        return ContentionTrace(f"{self.mix}-{when}-{seed}", tuple(jobs), seed=seed)

    def draw(self, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The numbers of the models in `MODELS`, the GPUs and the arrivals (ns) of the jobs of a seed, 0 or more.

        Raises:
            UsageError: a negative seed.
        """
        if seed < 0:
            raise UsageError(f"seed: expected 0 or more, got {seed}")
        u, v = (np.random.default_rng([seed, stream]).random(self.jobs) for stream in (0, 1))
        weights = np.array(MIXES[self.mix], float)
        models = np.searchsorted(np.cumsum(weights / weights.sum()), u, side="right")
        demands = np.array(DEMANDS)[(len(DEMANDS) * v).astype(int)]
        return np.minimum(models, len(MODELS) - 1), demands, self._arrivals_ns(seed)

    def _arrivals_ns(self, seed: int) -> np.ndarray:
        if self.load is None:
            return np.zeros(self.jobs, np.int64)
        arrivals = np.random.default_rng([seed, 2]).exponential(size=self.jobs).cumsum()
        return np.rint(arrivals * _MEAN_SERVICE_S / self.load * _MICROSECONDS).astype(np.int64) * _NS
