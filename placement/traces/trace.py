"""Traces of jobs in the order of their arrival, how they are read from tables, and what of a file is left out."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, Self, TypeVar

from mltcp.core.errors import UsageError
from mltcp.core.one_line import one_line
from placement.model.table_reader import Columns, Field, Record, Source, fault

UNREADABLE = "cannot be read"
TWICE = "listed twice"


@dataclass(frozen=True)
class LeftOut:
    """The jobs of a file that are not in its trace.

    Attributes:
        counts: by reason.
        first: of those that cannot be read: "file:line: field: reason; expected what"; empty without any.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    first: str = ""

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.counts.items()))
        first = f" (first: {self.first})" if self.first else ""
        return f"left out: {reasons}{first}"

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {"jobs": sum(self.counts.values()), "reasons": dict(self.counts), "first": self.first or None}


NOTHING_LEFT_OUT = LeftOut()


class ArrivingJob(Protocol):
    """A job of a trace."""

    @property
    def name(self) -> str:
        """Unique in its trace."""

    @property
    def arrival_ns(self) -> int:
        """Since the beginning of the trace."""


J = TypeVar("J", bound=ArrivingJob)
R = TypeVar("R")


@dataclass(frozen=True)
class Trace(Generic[J]):
    """Jobs in the order of their arrival.

    Attributes:
        name: for reports.
        jobs: one or more, each name once; their positions decide between jobs that are equal in everything else.
        seed: of a trace that was drawn; None if it was read.
        places: of each job, "file:line" where it was read, for messages; empty if it was not read.
        left_out: the entries of its file that make no job.

    Raises:
        UsageError: no jobs, a name twice, or another order.
    """

    name: str
    jobs: tuple[J, ...]
    seed: int | None = field(default=None, kw_only=True)
    places: tuple[str, ...] = field(default=(), compare=False, repr=False, kw_only=True)
    left_out: LeftOut = field(default=NOTHING_LEFT_OUT, compare=False, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        check_jobs(self.name, self.jobs)

    @property
    def skipped(self) -> Mapping[str, int]:
        """Of the entries that make no job, how many for which reason."""
        return self.left_out.counts

    @classmethod
    def of(
        cls, name: str, jobs: Iterable[tuple[J, str]], left_out: LeftOut = NOTHING_LEFT_OUT, **fields: Any
    ) -> Self:
        """A trace that was read: jobs in any order, each with the place where it was read.

        Args:
            name: for reports.
            jobs: with their places.
            left_out: see the class.
            fields: the other fields of the class.

        Raises:
            UsageError: as the class.
        """
        ordered = sorted(jobs, key=lambda job: cls.rank(job[0]))
        places = tuple(place for _, place in ordered)
        return cls(name, tuple(job for job, _ in ordered), places=places, left_out=left_out, **fields)

    @staticmethod
    def rank(job: J) -> tuple[int, ...]:
        """Jobs of a trace that was read are in this order."""
        return (job.arrival_ns,)

    def place(self, index: int) -> str:
        """The place where the job of this index was read; the trace's name if it was not read."""
        return self.places[index] if self.places else self.name


def check_jobs(name: str, jobs: tuple[ArrivingJob, ...]) -> None:
    """Refuse a trace without jobs, with a name twice, or in another order than that of arrival.

    Raises:
        UsageError: it is one of these.
    """
    if not jobs:
        raise UsageError(f"{name}: jobs: expected one or more, got no jobs")
    seen: set[str] = set()
    latest_ns = jobs[0].arrival_ns
    for job in jobs:
        if job.name in seen:
            raise UsageError(f"{name}: jobs: expected each name once, got {job.name!r} twice")
        if job.arrival_ns < latest_ns:
            raise UsageError(f"{name}: jobs: expected in the order of their arrival")
        seen.add(job.name)
        latest_ns = job.arrival_ns


def check_gpus(trace: Trace[Any], gpus: int) -> None:
    """Refuse a job that asks for more GPUs than there are.

    Raises:
        UsageError: there is one.
    """
    for index, job in enumerate(trace.jobs):
        if job.gpus > gpus:
            raise UsageError(
                f"{trace.place(index)}: gpus: job {job.name!r} asks for {job.gpus} GPUs; "
                f"expected at most the {gpus} of the cluster"
            )


# -- reading -----------------------------------------------------------------------------------------------------------


def read_jobs(
    source: Source,
    columns_of: Callable[[Record], Columns],
    job_of: Callable[[Mapping[str, Field]], R],
    sieve: JobSieve,
    name_of: Callable[[R], Hashable] | None = None,
) -> list[tuple[R, str]]:
    """Read the jobs of a table, one a line, each with its place; the sieve gets those that make no job.

    Args:
        source: the file.
        columns_of: checks the names of the columns.
        job_of: makes a job of the fields of a line.
        sieve: of the file.
        name_of: of a job; of several with the same name the first is read.

    Raises:
        UsageError: "file:line: field: reason; expected what": the columns are wrong, or no job is left.
    """
    records = source.records()
    header = next(records)
    columns = columns_of(header)
    jobs: list[tuple[R, str]] = []
    for record in records:
        with sieve.faults():
            job = job_of(columns.fields(record))
            if name_of is None or sieve.is_new(name_of(job)):
                jobs.append((job, record.place))
    sieve.check_some_left(len(jobs))
    if not jobs:
        raise fault(header.place, "file", "no jobs follow the names of the columns", "1 or more")
    return jobs


class JobSieve:
    """Collects, while a file is read, what is to be left out.

    Args:
        before: what has been left out already.
    """

    def __init__(self, before: LeftOut = NOTHING_LEFT_OUT) -> None:
        self._counts: Counter[str] = Counter(before.counts)
        self._first = UsageError(before.first) if before.first else None
        self._kept: set[Hashable] = set()

    def leave_out(self, reason: str, count: int = 1) -> None:
        """Count jobs that are left out."""
        if count:
            self._counts[reason] += count

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Leave the job out in whose reading a UsageError is raised."""
        try:
            yield
        except UsageError as error:
            self._first = self._first or error
            self.leave_out(UNREADABLE)

    def is_new(self, key: Hashable) -> bool:
        """Whether no job with this key has been asked for; one that has is left out."""
        if key in self._kept:
            self.leave_out(TWICE)
            return False
        self._kept.add(key)
        return True

    def check_some_left(self, jobs: int) -> None:
        """Refuse a file of which no job is left.

        Raises:
            UsageError: the first that was raised in `faults`.
        """
        if not jobs and self._first is not None:
            raise self._first

    def result(self) -> LeftOut:
        """What was left out so far."""
        return LeftOut(dict(self._counts), str(self._first or ""))


# -- reports -----------------------------------------------------------------------------------------------------------


class ReadTrace(Protocol):
    """A trace that was read from a file."""

    @property
    def name(self) -> str:
        """For reports."""

    @property
    def left_out(self) -> LeftOut:
        """The jobs of its file that are not in it."""


def tell_left_out(tool: str, *traces: ReadTrace) -> None:
    """Say on standard error what was left out of traces, a line each."""
    for trace in traces:
        if trace.left_out.counts:
            print(f"{tool}: {one_line(f'{trace.name}: {trace.left_out}')}", file=sys.stderr)


def left_out_document(traces: Iterable[ReadTrace]) -> dict[str, Any]:
    """What was left out of traces as JSON, by their names."""
    return {trace.name: trace.left_out.document() for trace in traces if trace.left_out.counts}
