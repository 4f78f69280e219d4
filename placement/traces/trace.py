"""A trace: jobs with their times of arrival at a cluster."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Self

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster
from placement.model.job import Job
from placement.model.table_reader import MOST, MOST_TEXT, Once, fault, shown
from placement.traces.left_out import JobSieve, LeftOut


@dataclass(frozen=True)
class Trace:
    """Jobs in the order of (arrival_ns, job_id), whatever the order in which they were listed.

    Attributes:
        name: for reports.
        jobs: one or more, with different numbers.
        seconds_per_simulated_s: of the paper's scale: 100 for traces that are simulated at a hundredth of the time,
            as the published simulator did (`scale10`), and 1 for all others. Results of the simulation, times this,
            are those to compare with the paper.
        left_out: the entries of its file that make no job.
        places: of each job, "file:line" where it was read, for messages; empty if it was not read.

    Raises:
        UsageError: no jobs, a number twice, or jobs too long to be counted in 64 bits.
    """

    name: str
    jobs: tuple[Job, ...]
    seconds_per_simulated_s: Fraction = Fraction(1)
    left_out: LeftOut = field(default=LeftOut(), compare=False, repr=False)
    places: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.jobs:
            raise UsageError(f"{self.name}: no jobs; expected 1 or more")
        if self.jobs != tuple(sorted(self.jobs, key=_order)):
            raise UsageError(f"{self.name}: jobs: expected in the order of their arrival and number")
        once = Once()
        for index, job in enumerate(self.jobs):
            once.add(job.job_id, self.place(index), "job_id")
            _check_countable(job, self.place(index))

    @property
    def skipped(self) -> Mapping[str, int]:
        """Of the entries that make no job, how many for which reason."""
        return self.left_out.counts

    @classmethod
    def of(
        cls,
        name: str,
        jobs: Iterable[tuple[Job, str]],
        seconds_per_simulated_s: Fraction = Fraction(1),
        sieve: JobSieve | None = None,
    ) -> Self:
        """Make a trace of jobs in any order, each with the place where it was read.

        Args:
            name: for reports.
            jobs: with their places.
            seconds_per_simulated_s: see the class.
            sieve: of the file, if they were read; it gets those that are too long, or whose number is there twice.

        Raises:
            UsageError: as the class; with a sieve, no job is left.
        """
        listed = list(jobs) if sieve is None else _sifted(jobs, sieve)
        ordered = sorted(listed, key=lambda each: _order(each[0]))
        numbers = tuple(job for job, _ in ordered)
        places = tuple(place for _, place in ordered)
        return cls(name, numbers, seconds_per_simulated_s, sieve.result() if sieve else LeftOut(), places)

    def place(self, index: int) -> str:
        """The place where the job of this index was read; the trace's name if it was not read."""
        return self.places[index] if self.places else self.name


def check_fits(trace: Trace, cluster: Cluster) -> None:
    """Check that every job could run on the cluster if it were alone there.

    Raises:
        UsageError: which job could not, how many GPUs, or GPUs with how much memory, it wants, and how many there are.
    """
    memories = sorted(gpu.memory_mb for _, gpu in cluster.gpus)
    for index, job in enumerate(trace.jobs):
        if job.gpus > len(memories):
            reason = f"job {job.job_id} wants {job.gpus} GPUs"
            raise fault(trace.place(index), "num_gpus", reason, f"the cluster's {len(memories)} or less")
        large = len(memories) - bisect_left(memories, job.model.memory_mb)
        if job.gpus > large:
            each = f"job {job.job_id} ({job.model.name}) wants {job.model.memory_mb} MB on each of its GPUs"
            found = f"of {len(memories)} GPUs {large} have that much, the largest has {memories[-1]} MB"
            raise fault(
                trace.place(index),
                "train_mem_mb",
                f"{each} ({job.gpus}); {found}",
                "what they have",
            )


def _sifted(jobs: Iterable[tuple[Job, str]], sieve: JobSieve) -> list[tuple[Job, str]]:
    kept = []
    for job, place in jobs:
        with sieve.faults():
            _check_countable(job, place)
            if sieve.is_new(job.job_id):
                kept.append((job, place))
    sieve.check_some_left(len(kept))
    return kept


def _check_countable(job: Job, place: str) -> None:
    expected = f"up to {MOST_TEXT} ns"
    if job.arrival_ns > MOST:
        raise fault(place, "arrival", f"job {job.job_id} arrives after {shown(job.arrival_ns)} ns", expected)
    if job.service_ns > MOST:
        reason = f"job {job.job_id} computes for {shown(job.service_ns)} ns on all its GPUs together"
        raise fault(place, "iterations", reason, expected)


def _order(job: Job) -> tuple[int, int]:
    return job.arrival_ns, job.job_id
