"""Traces of jobs with a fixed number of GPUs, whose speeds a table of measurements gives.

The four traces that are shipped come from the paper's public code (gajagajago/deepshare, Apache-2.0): 256 jobs each,
all of which arrive at time 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mltcp.core.errors import UsageError
from mltcp.core.quantities import NS_PER_S
from placement.model.table_reader import MOST, Columns, Field, Source, fault
from placement.model.throughput_table import SensitivityTable
from placement.traces.left_out import JobSieve, LeftOut

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
class ContentionTrace:
    """Jobs in the order of their arrival, which decides between equals.

    Attributes:
        name: for reports.
        jobs: one or more.
        seed: of a trace that was drawn; None if it was read.
        places: of each job, "file:line" where it was read, for messages; empty if it was not read.
        left_out: the lines of its file that make no job.

    Raises:
        UsageError: no jobs, or another order.
    """

    name: str
    jobs: tuple[ContentionJob, ...]
    seed: int | None = None
    places: tuple[str, ...] = field(default=(), compare=False, repr=False)
    left_out: LeftOut = field(default=LeftOut(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.jobs:
            raise UsageError(f"{self.name}: jobs: expected one or more, got none")
        arrivals = [job.arrival_ns for job in self.jobs]
        if arrivals != sorted(arrivals):
            raise UsageError(f"{self.name}: jobs: expected in the order of their arrival")

    def place(self, index: int) -> str:
        """The place where the job of this index was read; the trace's name if it was not read."""
        return self.places[index] if self.places else self.name

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
    records = source.records()
    header = next(records)
    columns = Columns.of(header, COLUMNS)
    columns.need(COLUMNS[:-1], ", ".join(COLUMNS))
    sieve = JobSieve()
    found: list[tuple[ContentionJob, str]] = []
    for record in records:
        with sieve.faults():
            job = _job(columns.fields(record), record.place, table)
            if sieve.is_new(job.name):
                found.append((job, record.place))
    sieve.check_some_left(len(found))
    if not found:
        raise fault(header.place, "file", "no jobs follow the names of the columns", "1 or more")
    found.sort(key=lambda each: each[0].arrival_ns)
    return ContentionTrace(
        source.name,
        tuple(job for job, _ in found),
        None,
        tuple(place for _, place in found),
        sieve.result(),
    )


def _job(fields: Mapping[str, Field], place: str, table: SensitivityTable) -> ContentionJob:
    name, arrival_ns = fields["job_id"].word(), fields["arrival_s"].units(NS_PER_S, "ns")
    model, gpus = fields["model"].word(), fields["gpus"].whole(1)
    try:
        samples = table.job_samples(model, gpus)
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from None
    if "total_samples" in fields:
        samples = float(fields["total_samples"].number("a number of 1 or more"))
        if samples < 1:
            raise fields["total_samples"].error(f"{samples:g} is too small", "a number of 1 or more")
    return ContentionJob(name, arrival_ns, model, gpus, samples)
