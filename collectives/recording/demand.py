"""Demand profiles: an iteration as phases of (duration, bandwidth), from which Cassini's circles are made.

A phase is a stretch of the iteration with one bandwidth; phases of bandwidth 0 are silent. Overlapping operations form
one phase, whose bandwidth is their bytes over their time. Silent stretches shorter than a hundredth of the iteration,
or a millisecond, are part of the communication around them. (Thesis of Cassini and MLTCP, chapter 4, on profiling.)

The document (``MLTCP_PROFILE``), schema 1, with the times of one rank::

    {"schema": 1, "job", "rank", "ranks", "backend", "iterations",
     "detection": {"detector", "iterations", "optimizer_steps", "operations", "bytes", "gap_s"},
     "last": {"number", "iteration_s", "compute_s", "communication_s", "sent_bytes", "acked_bytes",
              "phases": [{"duration_s", "bandwidth_bps"}],
              "operations": [{"name", "group", "bytes", "sent_bytes", "submitted_s", "completed_s"}]},
     "typical": as "last", or null while there is none}

``submitted_s`` and ``completed_s`` count from the iteration's beginning; ``completed_s`` is null for an operation that
failed. ``sent_bytes`` is computed from the algorithms, ``acked_bytes`` read from the sockets (null: not available).
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import Field, asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from statistics import median_low
from typing import Any, TypeVar

from collectives.core.notices import warn_once
from collectives.recording.detection.detector import Detection
from collectives.recording.records import Iteration, Operation, busy_intervals
from mltcp.core.atomic_files import check_writable, write_atomically
from mltcp.core.errors import MltcpError, UsageError, shown

SCHEMA = 1
TYPICAL_OF = 32
"""The typical iteration is chosen among this many of the last ones."""

WARM_UP = 2
"""Number of first iterations that differ: DistributedDataParallel rebuilds its buckets after the first."""

SHORT_SILENCE_NS = 1_000_000
SHORT_SILENCE_SHARE = 0.01

_PLAIN: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "a string"),
    "int": ((int,), "a whole number from 0 on"),
    "float": ((int, float), "a number from 0 on"),
}

Made = TypeVar("Made")


@dataclass(frozen=True)
class MeasuredPhase:
    """A stretch of an iteration with its average bandwidth.

    Unlike `mltcp.core.demand.Phase`, which is whole nanoseconds and bits per second, it has the values as measured:
    rounding them would change the numbers in profiles.
    """

    duration_s: float
    bandwidth_bps: float


@dataclass(frozen=True)
class ProfiledOperation:
    """An operation with its times relative to the iteration's beginning."""

    name: str
    group: str
    bytes: int
    sent_bytes: int
    submitted_s: float
    completed_s: float | None


@dataclass(frozen=True)
class DemandProfile:
    """The network demand of one iteration; the durations of its phases add up to iteration_s."""

    number: int
    iteration_s: float
    compute_s: float
    communication_s: float
    sent_bytes: int
    acked_bytes: int | None
    phases: tuple[MeasuredPhase, ...]
    operations: tuple[ProfiledOperation, ...]


@dataclass(frozen=True)
class Profile:
    """The profile of a job on one rank: its last and its typical iteration."""

    job: str
    rank: int
    ranks: int
    backend: str
    iterations: int
    detection: Detection
    last: DemandProfile | None
    typical: DemandProfile | None


def profile_of(
    iterations: Sequence[Iteration],
    detection: Detection,
    *,
    job: str,
    rank: int,
    ranks: int,
    backend: str,
    count: int,
) -> Profile:
    """The job's profile from its last finished iterations; `count` is the number of all iterations so far."""
    last = demand_profile(iterations[-1]) if iterations else None
    chosen = typical(iterations)
    return Profile(
        job,
        rank,
        ranks,
        backend,
        count,
        detection,
        last,
        demand_profile(chosen) if chosen is not None else None,
    )


def typical(iterations: Sequence[Iteration]) -> Iteration | None:
    """The iteration of median duration among those of the last ones that have the most frequent operations.

    Where no sequence of operations has a majority (token counts of experts, sequences of varying length), it is the one
    of median duration among all of them. Warm-up iterations are used only if there are no others.
    """
    recent = [each for each in iterations if each.number >= WARM_UP][-TYPICAL_OF:] or list(iterations)
    if not recent:
        return None
    kinds = Counter(_kind(each) for each in recent)
    usual, times = kinds.most_common(1)[0]
    alike = recent if 2 * times < len(recent) else [each for each in recent if _kind(each) == usual]
    middle = median_low(each.duration_s for each in alike)
    return next(each for each in alike if each.duration_s == middle)


def _kind(iteration: Iteration) -> tuple[tuple[str, int], ...]:
    return tuple((operation.name, operation.bytes) for operation in iteration.operations)


def demand_profile(iteration: Iteration) -> DemandProfile:
    """Divide an iteration into phases.

    The bytes of an operation count in the phase in which it was submitted. An operation that ends after the iteration
    is cut off at its end, with all of its bytes; one that never completed is left out of the phases.
    """
    phases = _phases(iteration)
    return DemandProfile(
        number=iteration.number,
        iteration_s=iteration.duration_s,
        compute_s=iteration.compute_s,
        communication_s=iteration.communication_s,
        sent_bytes=iteration.sent_bytes,
        acked_bytes=iteration.acked_bytes,
        phases=phases,
        operations=tuple(_relative(operation, iteration.started_ns) for operation in iteration.operations),
    )


def _relative(operation: Operation, started_ns: int) -> ProfiledOperation:
    done_ns = operation.completed_ns
    return ProfiledOperation(
        operation.name,
        operation.group,
        operation.bytes,
        operation.sent_bytes,
        (operation.submitted_ns - started_ns) / 1e9,
        None if done_ns is None else (done_ns - started_ns) / 1e9,
    )


def _phases(iteration: Iteration) -> tuple[MeasuredPhase, ...]:
    sending = [
        operation for operation in iteration.operations if operation.sent_bytes and operation.completed_ns
    ]
    phases = []
    at_ns = iteration.started_ns
    for start_ns, end_ns in _joined(iteration, busy_intervals(sending)):
        sent = sum(each.sent_bytes for each in sending if start_ns <= each.submitted_ns <= end_ns)
        if start_ns > at_ns:
            phases.append(MeasuredPhase((start_ns - at_ns) / 1e9, 0.0))
        phases.append(MeasuredPhase((end_ns - start_ns) / 1e9, sent * 8e9 / (end_ns - start_ns)))
        at_ns = end_ns
    if iteration.ended_ns > at_ns:
        phases.append(MeasuredPhase((iteration.ended_ns - at_ns) / 1e9, 0.0))
    return tuple(phases)


def _joined(iteration: Iteration, intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The intervals within the iteration, joined where the silence between them is short."""
    short_ns = max(SHORT_SILENCE_NS, int(SHORT_SILENCE_SHARE * (iteration.ended_ns - iteration.started_ns)))
    joined: list[tuple[int, int]] = []
    for start_ns, end_ns in intervals:
        start_ns = max(start_ns, iteration.started_ns)
        end_ns = min(end_ns, iteration.ended_ns)
        if end_ns <= start_ns:
            continue
        if joined and start_ns - joined[-1][1] < short_ns:
            joined[-1] = (joined[-1][0], end_ns)
        else:
            joined.append((start_ns, end_ns))
    return joined


# -- the document ------------------------------------------------------------------------------------------------------


def as_document(profile: Profile) -> dict[str, Any]:
    """The profile as the JSON document described above."""
    return {"schema": SCHEMA, **asdict(profile)}


def from_document(document: object) -> Profile:
    """The profile in a JSON document.

    Raises:
        UsageError: the document is not of this schema; the message names the field.
    """
    known = _fields(document, "profile")
    if known.get("schema") != SCHEMA:
        raise UsageError(f"profile.schema: expected {SCHEMA}, got {known.get('schema')!r}")
    values = {name: value for name, value in known.items() if name != "schema"}
    values["detection"] = _made(Detection, known.get("detection"), "detection")
    for name in ("last", "typical"):
        values[name] = None if known.get(name) is None else _demand(known[name], name)
    return _made(Profile, values, "profile")


def _demand(document: object, where: str) -> DemandProfile:
    values = dict(_fields(document, where))
    values["phases"] = _list(MeasuredPhase, values.get("phases"), f"{where}.phases")
    values["operations"] = _list(ProfiledOperation, values.get("operations"), f"{where}.operations")
    return _made(DemandProfile, values, where)


def _list(kind: type[Made], documents: object, where: str) -> tuple[Made, ...]:
    if not isinstance(documents, list | tuple):
        raise UsageError(f"profile: {where}: expected a list, got {shown(documents)}")
    return tuple(_made(kind, each, f"{where}[{at}]") for at, each in enumerate(documents))


def _made(kind: type[Made], document: object, where: str) -> Made:
    values = _fields(document, where)
    wanted = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    for name in sorted(wanted ^ set(values)):
        raise UsageError(f"profile: {where}.{name}: {'missing' if name in wanted else 'unknown'} field")
    for each in fields(kind):  # type: ignore[arg-type]
        _check(each, values[each.name], f"{where}.{each.name}")
    return kind(**values)


def _check(field: Field[Any], value: object, where: str) -> None:
    """Check that a plain value has its field's type; nested values have been checked when they were made."""
    name, _, absent = str(field.type).partition(" | ")
    if name not in _PLAIN or (absent and value is None):
        return
    kinds, wanted = _PLAIN[name]
    good = isinstance(value, kinds) and not isinstance(value, bool)
    if isinstance(value, int | float):
        # An operation may have been submitted before the boundary that it comes after was found.
        good = good and isfinite(value) and (value >= 0 or field.name in ("submitted_s", "completed_s"))
    if not good:
        raise UsageError(f"profile: {where}: expected {wanted}, got {shown(value)}")


def _fields(document: object, where: str) -> Mapping[str, Any]:
    if not isinstance(document, Mapping):
        raise UsageError(f"profile: {where}: expected an object, got {shown(document)}")
    return document


# -- the file -----------------------------------------------------------------------------------


class ProfileFile:
    """Writes documents to `path`.

    Raises:
        UsageError: the file cannot be written, or exists and is no regular file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        # The completion thread and the one that ends the process both write.
        self._lock = threading.Lock()
        try:
            if self._path.exists() and not self._path.is_file():
                raise UsageError(f"{path}: expected a regular file or a new name")
            check_writable(self._path)
        except (UsageError, OSError) as error:
            raise UsageError(f"MLTCP_PROFILE: {error}") from None

    def write(self, document: Mapping[str, Any]) -> None:
        """Replace the previous document; an error is logged once and never raised."""
        content = f"{json.dumps(document, indent=1)}\n".encode()
        with self._lock:
            try:
                # Not forced to disk: that takes milliseconds, in which completions of operations go unnoticed.
                write_atomically(self._path, content, durable=False)
            except MltcpError as error:
                warn_once("profile", f"mltcp: cannot write the profile: {error}")
