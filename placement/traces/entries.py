"""Jobs of traces that record the duration of a job, but not its neural network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from placement.model.job import Job, Model
from placement.model.table_reader import Source, fault
from placement.traces.left_out import JobSieve
from placement.traces.models import assigned
from placement.traces.trace import Trace


@dataclass(frozen=True)
class RecordedJob:
    """A job as a trace of a real cluster records it.

    Attributes:
        name: unique.
        arrival_ns: since an arbitrary moment.
        gpus: 1 or more.
        duration_ns: the time for which it had them.
        place: "file:line" where it was read.
    """

    name: str
    arrival_ns: int
    gpus: int
    duration_ns: int
    place: str


def trace(
    source: Source, entries: Iterable[RecordedJob], models: Mapping[str, Model], sieve: JobSieve
) -> Trace:
    """The trace of these entries of `source`; it begins with the first arrival.

    Jobs are numbered in the order of (arrival, name).

    Each job trains one of `models`, chosen by its name, for as many iterations as fit into its duration while it
    computes without a pause, but at least one.

    Raises:
        UsageError: no entries, or only jobs that are too long to be counted.
    """
    ordered = sorted(entries, key=lambda entry: (entry.arrival_ns, entry.name))
    if not ordered:
        sieve.check_some_left(0)
        left_out = sieve.result().counts
        reasons = ", ".join(f"{reason}: {count}" for reason, count in sorted(left_out.items()))
        reason = "no jobs are left" + (f" ({reasons})" if reasons else "")
        raise fault(source.place(1), "file", reason, "1 or more")
    first_ns = ordered[0].arrival_ns
    known = tuple(models.values())
    jobs = [(_job(number, entry, first_ns, known), entry.place) for number, entry in enumerate(ordered)]
    return Trace.of(source.name, jobs, sieve=sieve)


def _job(number: int, entry: RecordedJob, first_ns: int, models: Sequence[Model]) -> Job:
    model = assigned(entry.name, models)
    iterations = max(1, entry.duration_ns // model.compute_ns)
    return Job(number, entry.arrival_ns - first_ns, entry.gpus, iterations, model)
