"""Traces of real clusters: when each job came, how many GPUs it had, and for how long.

Such a trace says (almost) nothing of what a job trained: `job_trace.trained` and `job_mix` assign that.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

from mltcp.core.errors import UsageError, shown
from mltcp.core.quantities import NS_PER_HOUR, NS_PER_S
from placement.model.table_reader import MOST, MOST_TEXT, Columns, Field, Source, fault
from placement.traces.trace import JobSieve, LeftOut, Trace

UNKNOWN = ("", "nan", "none", "null", "nat")
"""How an unknown value is written, in lower case."""

CLOCK_NS = 60 * NS_PER_S
"""A job may have started by as much before it was submitted: clocks differ, and some traces have whole minutes."""

_MOMENT = re.compile(
    r"(\d{4})[-/](\d{1,2})[-/](\d{1,2})[ T](\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?"
    r" ?(?:(Z|UTC)|([+-])(\d{2}):?(\d{2}))?",
    re.ASCII,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class RecordedJob:
    """A job as a trace of a real cluster records it.

    Attributes:
        name: unique.
        arrival_ns: when it was submitted; in a trace, since its beginning.
        gpus: 1 or more; parts of GPUs are rounded up.
        duration_ns: the time for which it had them.
        place: "file:line" where it was read.
        user: who submitted it; empty if that is not told.
        model: what it trained, in the trace's words; empty if that is not told.
    """

    name: str
    arrival_ns: int
    gpus: int
    duration_ns: int
    place: str = field(default="", compare=False)
    user: str = ""
    model: str = ""


@dataclass(frozen=True)
class RecordedTrace(Trace[RecordedJob]):
    """Jobs of a real cluster in the order of (arrival, name); the first one arrives at 0."""


def recorded_trace(source: Source, entries: Iterable[RecordedJob], sieve: JobSieve) -> RecordedTrace:
    """The trace of these entries of `source`, which may arrive since any moment.

    Raises:
        UsageError: no entries.
    """
    found = _from_first_arrival(entries)
    if not found:
        sieve.check_some_left(0)
        raise fault(source.place(1), "file", f"no jobs are left{_reasons(sieve.result())}", "1 or more")
    return RecordedTrace.of(source.name, ((job, job.place) for job in found), sieve.result())


def _from_first_arrival(entries: Iterable[RecordedJob]) -> list[RecordedJob]:
    ordered = sorted(entries, key=lambda entry: (entry.arrival_ns, entry.name))
    return [replace(entry, arrival_ns=entry.arrival_ns - ordered[0].arrival_ns) for entry in ordered]


def _reasons(left_out: LeftOut) -> str:
    reasons = ", ".join(f"{reason}: {count}" for reason, count in sorted(left_out.counts.items()))
    return f" ({reasons})" if reasons else ""


# -- a part of a trace -------------------------------------------------------------------------------------------------

OUTSIDE, THINNED = "outside of the hours", "thinned out"


@dataclass(frozen=True)
class TraceCut:
    """The part of a trace that is simulated, and how much shorter than it was.

    Attributes:
        from_hours: the beginning of the part, in hours of the trace; jobs that ran by then already are no part of it.
        hours: for which its jobs arrive; None: up to the end.
        keep: the share of these jobs that are kept, chosen by their names: the same ones in every run.
        scale: of all times: with 0.01, an hour takes 36 s.

    Raises:
        UsageError: a value is out of range.
    """

    from_hours: Fraction = Fraction(0)
    hours: Fraction | None = None
    keep: Fraction = Fraction(1)
    scale: Fraction = Fraction(1)

    def __post_init__(self) -> None:
        if self.from_hours < 0 or (self.hours is not None and self.hours <= 0):
            raise UsageError("from and hours: expected 0 or more, and above 0")
        for name, value in (("keep", self.keep), ("scale", self.scale)):
            if not 0 < value <= 1:
                raise UsageError(f"{name}: expected more than 0 up to 1, got {float(value):g}")

    def of(self, trace: RecordedTrace) -> RecordedTrace:
        """The part of a trace.

        Raises:
            UsageError: it has no jobs.
        """
        if self == WHOLE:
            return trace
        begin_ns = self.from_hours * NS_PER_HOUR
        end_ns = MOST if self.hours is None else begin_ns + self.hours * NS_PER_HOUR
        inside = [job for job in trace.jobs if begin_ns <= job.arrival_ns < end_ns]
        kept = [job for job in inside if _drawn(job.name) < self.keep]
        sieve = JobSieve(trace.left_out)
        sieve.leave_out(OUTSIDE, len(trace.jobs) - len(inside))
        sieve.leave_out(THINNED, len(inside) - len(kept))
        if not kept:
            raise UsageError(f"{trace.name}: no jobs are left{_reasons(sieve.result())}; expected 1 or more")
        jobs = _from_first_arrival(kept)
        return RecordedTrace.of(trace.name, ((self._scaled(job), job.place) for job in jobs), sieve.result())

    def _scaled(self, job: RecordedJob) -> RecordedJob:
        arrival_ns, duration_ns = (round(each * self.scale) for each in (job.arrival_ns, job.duration_ns))
        return replace(job, arrival_ns=arrival_ns, duration_ns=duration_ns)


WHOLE = TraceCut()


def _drawn(name: str) -> Fraction:
    """A number from 0 to 1 that is the name's, unrelated to the model that it is assigned."""
    return Fraction(
        int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[8:16]), 1 << 64
    )


# -- reading -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """When a job was submitted, started and ended, in ns since one moment; None: that is unknown."""

    submitted_ns: int | None
    began_ns: int | None
    ended_ns: int | None


def entry_of(
    name: str, place: str, gpus: int, run: Run, user: str = "", model: str = ""
) -> RecordedJob | str:
    """The job, or the reason why it is left out."""
    if not gpus:
        return "no GPUs"
    if run.submitted_ns is None:
        return "never submitted"
    if run.began_ns is None:
        return "never started"
    if run.ended_ns is None:
        return "no end"
    if run.ended_ns < run.began_ns:
        return "ended before it started"
    if run.began_ns + CLOCK_NS < run.submitted_ns:
        return "started before it was submitted"
    return RecordedJob(name, run.submitted_ns, gpus, run.ended_ns - run.began_ns, place, user, model)


def read_entries(
    source: Source, columns_needed: tuple[str, ...], entry: Callable[[Mapping[str, Field]], RecordedJob | str]
) -> RecordedTrace:
    """The trace of a table of jobs, one a line; `entry` makes a job of a line, or says why it is left out.

    Raises:
        UsageError: "file:line: field: reason; expected what": a column is missing, or no job is left.
    """
    sieve = JobSieve()
    records = source.records()
    columns = Columns.of(next(records), needed=columns_needed)
    kept = []
    for record in records:
        with sieve.faults():
            found = entry(columns.fields(record))
            if isinstance(found, str):
                sieve.leave_out(found)
            elif sieve.is_new(found.name):
                kept.append(found)
    return recorded_trace(source, kept, sieve)


def is_unknown(field: Field) -> bool:
    """Whether the field says that its value is not known."""
    return field.text.strip().lower() in UNKNOWN


def whole_gpus(field: Field) -> int:
    """A number of GPUs, rounded up; 0 if it is not known.

    Raises:
        UsageError: it is no number, or out of range.
    """
    if is_unknown(field):
        return 0
    expected = f"GPUs from 0 to {MOST_TEXT}"
    gpus = field.number(expected)
    if not 0 <= gpus <= MOST:
        raise field.error(f"{shown(field.text.strip())} is out of range", expected)
    return -(-gpus.numerator // gpus.denominator)


def seconds_ns(field: Field) -> int | None:
    """A time in seconds since an unknown moment; None if it is not known.

    Raises:
        UsageError: it is no number, negative, or too fine.
    """
    return None if is_unknown(field) else field.units(NS_PER_S, "ns")


def moment_ns(field: Field) -> int | None:
    """A date and time since 1970, in UTC if it says no other zone; None if it is not known.

    Raises:
        UsageError: it is none.
    """
    if is_unknown(field):
        return None
    found = _MOMENT.fullmatch(field.text.strip())
    try:
        if found is None:
            raise ValueError
        *parts, fraction, _, sign, hours, minutes = found.groups()
        year, month, day, hour, minute, second = (int(part or 0) for part in parts)
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
        if sign:
            ahead = timedelta(hours=int(hours), minutes=int(minutes))
            moment += -ahead if sign == "+" else ahead
    except (ValueError, OverflowError):
        expected = "YYYY-MM-DD hh:mm:ss, with or without a zone such as +08:00"
        raise field.error(f"{shown(field.text)} is no time", expected) from None
    return (moment - _EPOCH) // timedelta(seconds=1) * NS_PER_S + int((fraction or "").ljust(9, "0"))


# -- traces of several files -------------------------------------------------------------------------------------------


def packed_or_not(path: Path) -> Path:
    """The file at this path, or the one that only differs from it by gzip's suffix."""
    other = path.with_suffix("") if path.suffix == ".gz" else path.with_name(f"{path.name}.gz")
    return other if other.exists() and not path.exists() else path


def beside(path: Path, this: str, that: str) -> Path:
    """The other table of a trace: its name has `that` for `this`.

    Raises:
        UsageError: the name of this one does not have `this`.
    """
    if this not in path.name:
        reason = f"its table of {that}s cannot be told"
        raise UsageError(f"{path}: file: {reason}; expected a name with {this!r} in it")
    return packed_or_not(path.with_name(path.name.replace(this, that)))
