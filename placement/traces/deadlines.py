"""Traces of whole jobs with deadlines: training runs that a scheduler may give any number of GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np

from mltcp.core.errors import UsageError, shown
from mltcp.core.quantities import BYTES_PER_PARAMETER, NS_PER_HOUR, NS_PER_S
from placement.model.job import Job
from placement.model.table_reader import MOST, Columns, Field, Record, Source, fault, read_rows
from placement.model.throughput import Workload
from placement.traces.job_trace import JobTrace, trained
from placement.traces.read import CSV, TraceFile
from placement.traces.trace import JobSieve, Trace, read_jobs

HIGHEST_ALPHA = 1000


@dataclass(frozen=True)
class DeadlineJob:
    """A training run with a deadline.

    Attributes:
        name: unique in its trace.
        arrival_ns: T_arr, since the beginning of the trace.
        workload: what it trains.
        deadline_ns: T_dl, on the same clock.
        alpha: its priority, if the deadline was made from one: 0.5 is urgent (Equation 6).
        gpus: the number that it asks for, which matters to schedulers that do not choose one.

    Raises:
        UsageError: the deadline is not after the arrival, or another value is out of range.
    """

    name: str
    arrival_ns: int
    workload: Workload
    deadline_ns: int
    alpha: Fraction | None = None
    gpus: int = 1

    def __post_init__(self) -> None:
        for name, value, least in (("arrival_ns", self.arrival_ns, 0), ("gpus", self.gpus, 1)):
            if not least <= value <= MOST:
                raise UsageError(f"job {self.name!r}: {name}: expected {least} to {MOST}, got {shown(value)}")
        if not self.arrival_ns < self.deadline_ns <= MOST:
            raise UsageError(
                f"job {self.name!r}: deadline_ns: expected more than its arrival_ns {self.arrival_ns} "
                f"up to {MOST}, got {shown(self.deadline_ns)}"
            )

    @classmethod
    def with_priority(
        cls, name: str, arrival_ns: int, workload: Workload, alpha: Fraction, gpus: int = 1
    ) -> DeadlineJob:
        """The job whose deadline follows from its priority: T_dl = T_arr + alpha * T_run(1) (Equations 6 and 7).

        Raises:
            UsageError: alpha is out of range, or as the class.
        """
        if not 0 < alpha <= HIGHEST_ALPHA:
            raise UsageError(f"job {name!r}: alpha: expected more than 0 up to {HIGHEST_ALPHA}, got {alpha}")
        expected_ns = math.floor(alpha * workload.alone_ns)
        return cls(name, arrival_ns, workload, arrival_ns + expected_ns, alpha, gpus)


@dataclass(frozen=True)
class DeadlineTrace(Trace[DeadlineJob]):
    """Jobs with deadlines.

    Attributes:
        arrivals_ns: the time in which jobs arrive, for the utilization over it; by default until the last has.
    """

    arrivals_ns: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.arrivals_ns:
            object.__setattr__(self, "arrivals_ns", max(self.jobs[-1].arrival_ns, 1))
        if self.arrivals_ns < 1:
            raise UsageError(f"{self.name}: arrivals_ns: expected 1 or more, got {self.arrivals_ns}")


# -- tables ------------------------------------------------------------------------------------------------------------
# Columns, in any order:
#     job_id: a name, different in each line.
#     arrival_s: when the job arrives.
#     workload: the name of one of the workloads.
#     alpha or deadline_s: its priority, from which its deadline follows, or its deadline, on the clock of arrival_s.
#     gpus: optional, the number of GPUs that it asks for (1 without), for schedulers that do not choose one.
#
# Numbers are decimal and exact: times to the ns.

_NEEDED = ("job_id", "arrival_s", "workload")
_DUE = ("alpha", "deadline_s")
COLUMNS = (*_NEEDED, *_DUE, "gpus")
"""All columns; one of alpha and deadline_s is needed, not both."""

WORKLOAD_COLUMNS = ("workload", "parameters", "batch", "compute_s", "samples", "epochs")
"""Those of a table of workloads."""

_LONGEST_HEADER = 1000


def parse(source: Source, workloads: Sequence[Workload]) -> DeadlineTrace:
    """Read a trace; its jobs are put in the order of their arrival.

    A job is left out, and counted in the trace's `left_out`, whose line has too few or too many fields, or a field that
    is empty, no number or out of range; whose workload is unknown; whose job_id is there before; or whose deadline is
    not after its arrival.

    Raises:
        UsageError: "file:line: field: reason; expected what": a column is missing, unknown or there twice; or no job
            is left.
    """
    known = {workload.name: workload for workload in workloads}
    sieve = JobSieve()
    jobs = read_jobs(source, _columns, lambda fields: _table_job(fields, known), sieve, lambda job: job.name)
    return DeadlineTrace.of(source.name, jobs, sieve.result())


def is_table(path: Path) -> bool:
    """Whether a file begins with the columns of such a table; False if it cannot be read."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            columns = {name.strip() for name in file.readline(_LONGEST_HEADER).split(",")}
    except (OSError, ValueError):
        return False
    return columns.issuperset(_NEEDED)


def _table_job(fields: Mapping[str, Field], known: Mapping[str, Workload]) -> DeadlineJob:
    name, arrival_ns = fields["job_id"].word(), fields["arrival_s"].units(NS_PER_S, "ns")
    workload_name = fields["workload"].word()
    if workload_name not in known:
        raise fields["workload"].error(f"{shown(workload_name)} is unknown", ", ".join(known))
    workload = known[workload_name]
    gpus = fields["gpus"].whole(1) if "gpus" in fields else 1
    if "alpha" in fields:
        expected = f"a number above 0 up to {HIGHEST_ALPHA}"
        alpha = fields["alpha"].number(expected)
        if not 0 < alpha <= HIGHEST_ALPHA:
            raise fields["alpha"].error(f"{shown(fields['alpha'].text.strip())} is out of range", expected)
        try:
            return DeadlineJob.with_priority(name, arrival_ns, workload, alpha, gpus)
        except UsageError as error:
            raise fields["alpha"].error(str(error), "a deadline after the arrival") from None
    deadline_ns = fields["deadline_s"].units(NS_PER_S, "ns")
    if deadline_ns <= arrival_ns:
        given = fields["deadline_s"].text.strip()
        raise fields["deadline_s"].error(
            f"{shown(given)} is in the past", f"more than its arrival_s, {fields['arrival_s'].text.strip()}"
        )
    return DeadlineJob(name, arrival_ns, workload, deadline_ns, None, gpus)


def read_workloads(path: Path) -> tuple[Workload, ...]:
    """The workloads of a table with the columns of `WORKLOAD_COLUMNS`: compute_s is the time of a step on one GPU.

    Raises:
        UsageError: "file:line: field: reason; expected what": a value is out of range, a name there twice, or there is
            no row.
    """
    found: dict[str, Workload] = {}
    for row in read_rows(path, WORKLOAD_COLUMNS):
        name = row["workload"].word()
        if name in found:
            raise row["workload"].error(f"{shown(name)} is there twice", "each workload once")
        parameters, batch, samples, epochs = (
            row[each].whole(1) for each in ("parameters", "batch", "samples", "epochs")
        )
        compute_ns = row["compute_s"].units(NS_PER_S, "ns", 1)
        found[name] = Workload(name, parameters, batch, compute_ns, samples, epochs)
    if not found:
        raise UsageError(f"{path}: expected a workload or more, got none")
    return tuple(found.values())


def _columns(header: Record) -> Columns:
    columns = Columns.of(header, COLUMNS)
    columns.need(_NEEDED, ", ".join((*_NEEDED, " or ".join(_DUE))))
    if len(set(columns.names).intersection(_DUE)) != 1:
        reason = "both are there" if set(_DUE) <= set(columns.names) else "both are missing"
        raise fault(header.place, " and ".join(_DUE), reason, "one of them")
    return columns


# -- the workloads and drawn traces of the DRS evaluation --------------------------------------------------------------
# Ten training runs of published networks, two of them "fat" (many parameters for little computation), on an RTX 2080
# Ti. Jobs arrive by a Poisson process; each draws a workload and a priority. Arrivals, workloads and priorities come
# from three streams of random numbers, so that experiments that vary one of them share the others.
#
# Sources: parameters are torchvision's counts for 1,000 classes (TSN and TSM: a ResNet-50 with 101 classes); times of
# a step are published measurements on, or scaled to, an RTX 2080 Ti; CIFAR-100 has 50,000 training images and UCF-101
# (split 1) 9,537 videos; the epochs give a mean run time of 4.29 h on one GPU. The paper's own table of workloads is
# lost.

WORKLOADS = (
    Workload("AlexNet", 61_100_840, 16, 15_000_000, 50_000, 40),
    Workload("VGG-16", 138_357_544, 16, 90_800_000, 50_000, 40),
    Workload("ResNet-18", 11_689_512, 16, 20_100_000, 50_000, 40),
    Workload("ResNet-50", 25_557_032, 16, 59_700_000, 50_000, 40),
    Workload("ResNet-152", 60_192_808, 16, 142_500_000, 50_000, 40),
    Workload("DenseNet-161", 28_681_000, 16, 148_400_000, 50_000, 40),
    Workload("TSN", 23_715_000, 32, 333_500_000, 9_537, 60),
    Workload("TSM", 23_715_000, 8, 345_000_000, 9_537, 60),
    Workload("SlowOnly", 31_840_000, 8, 345_000_000, 9_537, 60),
    Workload("R(2+1)D", 63_600_000, 8, 552_000_000, 9_537, 60),
)
FAT = 2
"""The first so many workloads are the fat ones."""

URGENT, NORMAL, RELAXED = Fraction(1, 2), Fraction(1), Fraction(3, 2)
"""The paper's three priorities."""

_MOST_JOBS = 1_000_000
_MOST_HOURS = 250_000
"""So that all times are within the 10^18 ns of a trace."""


@dataclass(frozen=True)
class DrsMix:
    """The parameters of a drawn trace; the defaults are the paper's.

    Attributes:
        rate: lambda, jobs an hour.
        hours: for which jobs arrive.
        fat: the share of jobs that train a fat network.
        urgent: the share of jobs with priority 0.5; of the others a third have 1 and the rest 1.5.

    Raises:
        UsageError: a value is out of range.
    """

    rate: float = 4.0
    hours: float = 24.0
    fat: float = 0.2
    urgent: float = 0.1

    def __post_init__(self) -> None:
        for name, most in (("rate", _MOST_JOBS), ("hours", _MOST_HOURS)):
            if not 0 < getattr(self, name) <= most:
                raise UsageError(f"{name}: expected more than 0 up to {most}, got {getattr(self, name)}")
        if self.rate * self.hours > _MOST_JOBS:
            raise UsageError(
                f"rate: expected up to {_MOST_JOBS} jobs in all, got {self.rate:g} an hour for {self.hours:g} h"
            )
        for name in ("fat", "urgent"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name}: expected 0 to 1, got {getattr(self, name)}")

    def trace(self, seed: int) -> DeadlineTrace:
        """Draw the trace of a seed, 0 or more; job i is named after its position.

        Raises:
            UsageError: a negative seed, or one so unlucky that no job arrives.
        """
        if seed < 0:
            raise UsageError(f"seed: expected 0 or more, got {seed}")
        count = int(2 * self.rate * self.hours + 200)
        between = np.random.default_rng([seed, 0]).exponential(size=count)
        with np.errstate(over="ignore"):  # at a rate near 0, arrivals after `hours` may be infinite
            arrivals = np.rint(np.cumsum(between) / self.rate * NS_PER_HOUR)
        workloads = np.random.default_rng([seed, 1]).random(count)
        priorities = np.random.default_rng([seed, 2]).random(count)
        end_ns = round(self.hours * NS_PER_HOUR)
        jobs = tuple(
            DeadlineJob.with_priority(
                str(number), int(arrival_ns), self._workload(float(u)), self.priority(float(v))
            )
            for number, (arrival_ns, u, v) in enumerate(zip(arrivals, workloads, priorities, strict=True))
            if arrival_ns < end_ns
        )
        return DeadlineTrace(f"drs-{seed}", jobs, seed=seed, arrivals_ns=end_ns)

    def _workload(self, u: float) -> Workload:
        if u < self.fat:
            return WORKLOADS[int(u / self.fat * FAT)]
        return WORKLOADS[FAT + int((u - self.fat) / (1 - self.fat) * (len(WORKLOADS) - FAT))]

    def priority(self, v: float) -> Fraction:
        """The priority for a random number from 0 to 1."""
        if v < self.urgent:
            return URGENT
        return NORMAL if v < self.urgent + (1 - self.urgent) / 3 else RELAXED


# -- files of any format -----------------------------------------------------------------------------------------------


def read(path: Path, workloads: Sequence[Workload], mix: DrsMix, seed: int = 0) -> DeadlineTrace:
    """Read a trace: a table with deadlines (`COLUMNS`), or one of a cluster (`read.FORMATS`).

    Those of clusters have no deadlines: priorities are drawn as for the drawn traces of `mix`, and a job's work is that
    of its GPUs for its duration, without communication.

    Raises:
        UsageError: whatever is wrong with the file: "file:line: field: reason; expected what".
    """
    file = TraceFile.open(path)
    if file.format == CSV:
        assert file.source is not None, "only a folder has none"
        return parse(file.source, workloads)
    return with_drawn_deadlines(trained(file.recorded()), mix, seed)


def with_drawn_deadlines(trace: JobTrace, mix: DrsMix, seed: int) -> DeadlineTrace:
    """The jobs of a recorded trace with deadlines by the paper's rule (Equations 6 and 7).

    Raises:
        UsageError: a job is too long.
    """
    draws = np.random.default_rng([seed, 2]).random(len(trace.jobs))
    found = []
    for index, (job, v) in enumerate(zip(trace.jobs, draws, strict=True)):
        try:
            found.append(
                (
                    DeadlineJob.with_priority(
                        str(job.job_id),
                        job.arrival_ns,
                        _recorded_workload(job),
                        mix.priority(float(v)),
                        job.gpus,
                    ),
                    trace.place(index),
                )
            )
        except UsageError as error:
            raise UsageError(f"{trace.place(index)}: {error}") from None
    return DeadlineTrace.of(trace.name, found, trace.left_out)


def _recorded_workload(job: Job) -> Workload:
    """The workload of a recorded job: as many samples as its GPUs compute in its iterations."""
    model = job.model
    return Workload(
        model.name,
        max(1, model.size_bytes // BYTES_PER_PARAMETER),
        model.batch_size,
        model.compute_ns,
        model.batch_size * job.gpus,
        job.iterations,
    )
