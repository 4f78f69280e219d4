"""Traces of jobs with a fixed number of GPUs, whose speeds a table of measurements gives.

The four traces that are shipped come from the paper's public code (gajagajago/deepshare, Apache-2.0): 256 jobs each,
all of which arrive at time 0.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np

from mltcp.core.errors import UsageError, shown
from mltcp.core.quantities import NS_PER_S
from placement.model.table_reader import MOST, Columns, Field
from placement.model.throughput_table import Layout, SensitivityTable
from placement.traces.read import CSV, TraceFile
from placement.traces.recorded_trace import RecordedTrace
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
    """Read a trace from a file, or one of `SHIPPED` by its name; that of a cluster is as `recorded_contention` says.

    Raises:
        UsageError: the file cannot be read, or no job is left without those whose line is wrong, or for which the
            table has no row.
    """
    path = SETS / f"{given}.csv" if given in SHIPPED else Path(given)
    opened = TraceFile.open(path)
    if opened.format != CSV or opened.source is None:
        return recorded_contention(opened.recorded(), table)
    source, sieve = opened.source, JobSieve()
    columns = partial(Columns.of, known=COLUMNS, needed=COLUMNS[:-1])
    jobs = read_jobs(source, columns, lambda fields: _job(fields, table), sieve, lambda job: job.name)
    return ContentionTrace.of(source.name, jobs, sieve.result())


def recorded_contention(trace: RecordedTrace, table: SensitivityTable) -> ContentionTrace:
    """The trace of a cluster, each job with a model of the table that its name decides.

    It has the most GPUs of which the table has a row for the model, up to its own, or else the least; its samples
    take the recorded duration on its fastest layout.
    """

    def job_of(name: str, arrival_ns: int, wanted: int, duration_ns: int) -> ContentionJob:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
        model = table.models[int.from_bytes(digest[:8]) % len(table.models)]
        known = table.gpus(model)
        gpus = max((each for each in known if each <= wanted), default=known[0])
        samples = max(1.0, best_rate(table, model, gpus) * duration_ns / NS_PER_S)
        return ContentionJob(name, arrival_ns, model, gpus, samples)

    jobs = tuple(job_of(job.name, job.arrival_ns, job.gpus, job.duration_ns) for job in trace.jobs)
    return ContentionTrace(trace.name, jobs, places=trace.places, left_out=trace.left_out)


def best_rate(table: SensitivityTable, model: str, gpus: int) -> float:
    """The throughput of a job on its fastest layout, in samples a second.

    Raises:
        UsageError: the table has no row for it.
    """
    return max(table.throughput(Layout(model, gpus, nodes)) for nodes in table.nodes(model, gpus))


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
# The load is the arrival rate times the mean service of a job, 16,800 GPU s (an hour on 14/3 GPUs), over the GPUs. With
# a table that lacks one of these models, all its models with all their demands are equally likely, an hour each.
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

GPUS = 32
_HOUR_S = 3600
_MICROSECONDS, _NS = 10**6, 1000


@dataclass(frozen=True)
class ContentionMix:
    """The parameters of drawn traces.

    Attributes:
        load: None if all jobs arrive at time 0.
        mix: one of `MIXES`.
        jobs: of a trace.
        gpus: of the cluster, for the load.

    Raises:
        UsageError: a value is out of range.
    """

    load: float | None = None
    mix: str = "normal"
    jobs: int = JOBS
    gpus: int = GPUS

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
            UsageError: a negative seed.
        """
        if seed < 0:
            raise UsageError(f"seed: expected 0 or more, got {seed}")
        u, v = (np.random.default_rng([seed, stream]).random(self.jobs) for stream in (0, 1))
        demands, weights = _demands(table), np.array(MIXES[self.mix], float)
        if tuple(demands) != MODELS:
            weights = np.ones(len(demands))
        models = np.searchsorted(np.cumsum(weights / weights.sum()), u, side="right")
        gpu_s = _HOUR_S * sum(sum(each) / len(each) for each in demands.values()) / len(demands)
        names, jobs = tuple(demands), []
        for number, (model, arrival_ns) in enumerate(
            zip(models.tolist(), self._arrivals_ns(seed, gpu_s / self.gpus).tolist(), strict=True)
        ):
            name = names[min(model, len(names) - 1)]
            gpus = demands[name][int(len(demands[name]) * v[number])]
            jobs.append(ContentionJob(str(number), arrival_ns, name, gpus, table.job_samples(name, gpus)))
        when = "at-once" if self.load is None else f"load-{self.load:g}"
        return ContentionTrace(f"{self.mix}-{when}-{seed}", tuple(jobs), seed=seed)

    def part_of(self, trace: ContentionTrace, seed: int, table: SensitivityTable) -> ContentionTrace:
        """So many jobs in a row of a trace, from where the seed says; their arrivals are stretched to the load.

        Raises:
            UsageError: the table has no row for a job.
        """
        first = int(np.random.default_rng([seed, 4]).integers(max(1, len(trace.jobs) - self.jobs + 1)))
        jobs = trace.jobs[first : first + self.jobs]
        begin_ns, stretch = jobs[0].arrival_ns, 0.0
        if self.load is not None:
            gpu_s = math.fsum(job.gpus * job.samples / best_rate(table, job.model, job.gpus) for job in jobs)
            recorded_s = max(1, jobs[-1].arrival_ns - begin_ns) / NS_PER_S
            stretch = gpu_s / self.gpus / self.load / recorded_s
        return ContentionTrace(
            f"{trace.name}-{first}",
            tuple(
                replace(job, arrival_ns=round((job.arrival_ns - begin_ns) * stretch / _NS) * _NS)
                for job in jobs
            ),
            seed=seed,
        )

    def _arrivals_ns(self, seed: int, mean_s: float) -> np.ndarray:
        if self.load is None:
            return np.zeros(self.jobs, np.int64)
        arrivals = np.random.default_rng([seed, 2]).exponential(size=self.jobs).cumsum()
        return np.rint(arrivals * mean_s / self.load * _MICROSECONDS).astype(np.int64) * _NS


def _demands(table: SensitivityTable) -> dict[str, tuple[int, ...]]:
    """The demands of each model: those of the paper if the table has them all, or else all of the table."""
    if all(set(DEMANDS) <= set(table.gpus(model)) for model in MODELS):
        return dict.fromkeys(MODELS, DEMANDS)
    return {model: table.gpus(model) for model in table.models}
