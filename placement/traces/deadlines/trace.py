"""Traces of whole jobs with deadlines: training runs that a scheduler may give any number of GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from mltcp.core.errors import UsageError, shown
from placement.model.table_reader import MOST
from placement.model.throughput import Workload
from placement.traces.left_out import LeftOut

HIGHEST_ALPHA = 1000

_NONE = LeftOut()


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
class DeadlineTrace:
    """Jobs in the order of their arrival.

    Attributes:
        name: for reports.
        jobs: one or more; their positions decide between jobs that are equal in everything else.
        arrivals_ns: the time in which jobs arrive, for the utilization over it.
        seed: of a trace that was drawn; None if it was read.
        places: of each job, "file:line" where it was read, for messages; empty if it was not read.
        left_out: the entries of its file that make no job.

    Raises:
        UsageError: no jobs, a name twice, or another order.
    """

    name: str
    jobs: tuple[DeadlineJob, ...]
    arrivals_ns: int
    seed: int | None = None
    places: tuple[str, ...] = field(default=(), compare=False, repr=False)
    left_out: LeftOut = field(default=LeftOut(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.jobs:
            raise UsageError(f"{self.name}: jobs: expected one or more, got no jobs")
        seen: set[str] = set()
        for job in self.jobs:
            if job.name in seen:
                raise UsageError(f"{self.name}: jobs: expected each name once, got {job.name!r} twice")
            seen.add(job.name)
        arrivals = [job.arrival_ns for job in self.jobs]
        if arrivals != sorted(arrivals):
            raise UsageError(f"{self.name}: jobs: expected in the order of their arrival")
        if self.arrivals_ns < 1:
            raise UsageError(f"{self.name}: arrivals_ns: expected 1 or more, got {self.arrivals_ns}")

    @classmethod
    def of(
        cls, name: str, jobs: Iterable[tuple[DeadlineJob, str]], left_out: LeftOut = _NONE
    ) -> DeadlineTrace:
        """A trace that was read: jobs in any order, each with its place; they arrive until the last one has.

        Raises:
            UsageError: as the class.
        """
        ordered = sorted(jobs, key=lambda each: each[0].arrival_ns)
        latest_ns = max((job.arrival_ns for job, _ in ordered), default=0)
        places = tuple(place for _, place in ordered)
        return cls(name, tuple(job for job, _ in ordered), max(latest_ns, 1), None, places, left_out)

    def place(self, index: int) -> str:
        """The place where the job of this index was read; the trace's name if it was not read."""
        return self.places[index] if self.places else self.name
