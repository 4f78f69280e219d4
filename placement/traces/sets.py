"""Sets of jobs with demand phases: the snapshots of Table 4.3, the groups of Table 3.1, and traces; read from JSON.

A set is ``{"name", "source", "capacity_gbps", "jobs": [...]}``, and a job ``{"name", "workers", "iterations",
"arrival_s", "phases": [{"duration_s", "bandwidth_bps"}, ...]}``. A job may also have ``model``, ``batch`` (per worker),
``min_workers`` and ``max_workers`` (of a data-parallel job: its phases are then recalculated), ``noise_scale``, and
``deadline_s`` (from the beginning of the trace, as ``arrival_s``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from math import isfinite
from pathlib import Path
from typing import Any, Self

from mltcp.core.bounded_files import MOST_DOCUMENT_BYTES, read_bounded
from mltcp.core.demand import Demand, Phase, demand_document, demand_from_document
from mltcp.core.errors import UsageError
from placement.traces.trace import NOTHING_LEFT_OUT, LeftOut, check_jobs

NOISE_SCALE = 16.0
"""The default noise scale of a job, in batches of one worker."""

ACROSS_RACKS = 1.5
"""Schedulers assume that communication takes this many times as long for a job that spans racks."""

_MOST_JOBS = 100_000
_MOST_WORKERS = 1_000_000
_MOST_ITERATIONS = 10**9
_LATEST_S = 10**8
_LARGEST = 1.7e308
_MOST_GBPS = 10**6
_SHIPPED = "sets"
_SET_FIELDS = ("name", "source", "capacity_gbps", "jobs")
_JOB_FIELDS = (
    *("name", "workers", "iterations", "arrival_s", "phases", "model", "batch"),
    *("min_workers", "max_workers", "noise_scale", "deadline_s", "parallelism"),
)


@dataclass(frozen=True)
class TracedJob:
    """A job of a set, with its demand and its work.

    Attributes:
        name: unique in its set.
        workers: GPUs it asks for.
        iterations: it takes with as many.
        arrival_ns: since the beginning of the trace.
        demand: of an iteration with so many workers, alone.
        min_workers: with less it does not run.
        max_workers: more are of no use to it.
        model: the name of its network, or empty.
        batch: per worker; 0 if that is not known.
        noise_scale: its gradient noise scale, in batches of one worker.
        deadline_ns: when it is to have ended, since the beginning of the trace; None if it has no deadline.
        parallelism: how its model is divided, such as ``llama7b:tp=8,dp=2`` (`simulator.network.parallelism`): in a
            network it sends what follows from that, and `demand` is what schedulers know of it; empty: it sends its
            phases.

    Raises:
        UsageError: any of these cannot be.
    """

    name: str
    workers: int
    iterations: int
    arrival_ns: int
    demand: Demand
    min_workers: int = 0
    max_workers: int = 0
    model: str = ""
    batch: int = 0
    noise_scale: float = NOISE_SCALE
    deadline_ns: int | None = None
    parallelism: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_workers", self.min_workers or self.workers)
        object.__setattr__(self, "max_workers", self.max_workers or self.workers)
        if not 1 <= self.min_workers <= self.workers <= self.max_workers <= _MOST_WORKERS:
            raise UsageError(
                f"{self.name}: workers: expected 1 <= min_workers <= workers <= max_workers <= {_MOST_WORKERS}, "
                f"got {self.min_workers}, {self.workers}, {self.max_workers}"
            )
        if self.workers == 1 < self.max_workers:
            raise UsageError(
                f"{self.name}: max_workers: expected 1 with phases of 1 worker, got {self.max_workers}"
            )
        if self.parallelism and self.min_workers < self.max_workers:
            raise UsageError(
                f"{self.name}: max_workers: expected as many as workers with parallelism, got more"
            )
        if not 1 <= self.iterations <= _MOST_ITERATIONS:
            raise UsageError(
                f"{self.name}: iterations: expected 1 to {_MOST_ITERATIONS}, got {self.iterations}"
            )
        if not (isfinite(self.noise_scale) and self.noise_scale > 0):
            raise UsageError(f"{self.name}: noise_scale: expected a number above 0, got {self.noise_scale}")
        if self.deadline_ns is not None and self.deadline_ns <= self.arrival_ns:
            raise UsageError(
                f"{self.name}: deadline_s: expected more than its arrival_s {self.arrival_ns / 1e9}, "
                f"got {self.deadline_ns / 1e9}"
            )

    @property
    def times(self) -> Self:
        """Its iteration times as a scheduler knows them: `iteration_ns`."""
        return self

    def iteration_ns(self, workers: int, one_node: bool) -> float:
        """The time of an iteration with so many workers, all in one rack or not, whatever others send."""
        phases = self.phases(workers)
        sending = sum(phase.duration_ns for phase in phases if phase.bandwidth_bps)
        total = sum(phase.duration_ns for phase in phases)
        return total if one_node else total + (ACROSS_RACKS - 1) * sending

    def phases(self, workers: int) -> tuple[Phase, ...]:
        """The phases of an iteration with another number of workers."""
        return rescaled(self.demand.phases, self.workers, workers)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        always = {
            "name": self.name,
            "workers": self.workers,
            "iterations": self.iterations,
            "arrival_s": self.arrival_ns / 1e9,
        }
        unless_default: dict[str, tuple[Any, Any]] = {
            "model": (self.model, ""),
            "batch": (self.batch, 0),
            "min_workers": (self.min_workers, self.workers),
            "max_workers": (self.max_workers, self.workers),
            "noise_scale": (self.noise_scale, NOISE_SCALE),
            "deadline_s": (None if self.deadline_ns is None else self.deadline_ns / 1e9, None),
            "parallelism": (self.parallelism, ""),
        }
        given = {name: value for name, (value, default) in unless_default.items() if value != default}
        return {**always, **given, **demand_document(self.demand)}


@dataclass(frozen=True)
class JobSet:
    """Jobs that share a network.

    Attributes:
        name: for reports.
        source: what it is modelled on.
        capacity_gbps: of the links that the phases were made for.
        jobs: in the order of their arrival.
        left_out: of the trace that they are from.

    Raises:
        UsageError: no jobs, a name twice, jobs that are not in this order, or a capacity that cannot be.
    """

    name: str
    source: str
    capacity_gbps: float
    jobs: tuple[TracedJob, ...]
    left_out: LeftOut = field(default=NOTHING_LEFT_OUT, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.capacity_gbps <= _MOST_GBPS:
            raise UsageError(
                f"{self.name}: capacity_gbps: expected more than 0 up to {_MOST_GBPS}, got {self.capacity_gbps}"
            )
        if not 1 <= len(self.jobs) <= _MOST_JOBS:
            raise UsageError(f"{self.name}: jobs: expected 1 to {_MOST_JOBS}, got {len(self.jobs)}")
        check_jobs(self.name, self.jobs)

    @property
    def capacity_bps(self) -> int:
        """The capacity as a whole number of bit/s."""
        return round(self.capacity_gbps * 1e9)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "name": self.name,
            "source": self.source,
            "capacity_gbps": self.capacity_gbps,
            "jobs": [job.document() for job in self.jobs],
        }

    @classmethod
    def from_document(cls, document: object, where: str = "set") -> Self:
        """Read the set from a JSON document.

        Raises:
            UsageError: it is none; the message names the field.
        """
        fields = _object(document, where, _SET_FIELDS)
        listed = fields.get("jobs")
        if not isinstance(listed, Sequence) or isinstance(listed, str):
            raise UsageError(f"{where}: jobs must be a list")
        jobs = tuple(_job(each, f"{where}: jobs[{position}]") for position, each in enumerate(listed))
        try:
            return cls(
                _text(fields, "name", where),
                _text(fields, "source", where, ""),
                _number(fields, "capacity_gbps", where),
                jobs,
            )
        except UsageError as error:
            raise UsageError(_placed(where, error)) from None


def rescaled(phases: Sequence[Phase], workers: int, now: int) -> tuple[Phase, ...]:
    """The phases of a data-parallel job with `now` workers, from those it has with `workers`.

    Each worker of a ring sends (w-1)/w of twice the size; one alone sends nothing, and is done with it at once.

    Raises:
        UsageError: the phases are those of one worker, which tell nothing about what more would send.
    """
    if workers == now:
        return tuple(phases)
    if workers < 2:
        raise UsageError("phases of 1 worker: what more workers send cannot be told from them")
    share = (now - 1) * workers / (now * (workers - 1))
    scaled = [
        Phase(round(phase.duration_ns * share), phase.bandwidth_bps) if phase.bandwidth_bps else phase
        for phase in phases
        if share or not phase.bandwidth_bps
    ]
    # a job that only sends has to last at least something
    return tuple(scaled) or (Phase(1, 0),)


def names() -> tuple[str, ...]:
    """The names of the sets that come with this package."""
    folder = resources.files("placement.traces").joinpath(_SHIPPED)
    found = [entry.name for entry in folder.iterdir() if entry.name.endswith(".json")]
    return tuple(sorted(name.removesuffix(".json") for name in found))


def load(name_or_path: str | Path) -> JobSet:
    """Load the set of this name or from this file.

    Raises:
        UsageError: there is neither, or the file holds no set; the message names the field.
    """
    name = str(name_or_path)
    if name in names():
        text = resources.files("placement.traces").joinpath(_SHIPPED, f"{name}.json").read_text()
    else:
        text = _read(Path(name_or_path))
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name}: {error}") from None
    return JobSet.from_document(document, name)


def _read(path: Path) -> str:
    if not path.exists() and path.suffix != ".json":
        raise UsageError(f"set: expected a file or one of {', '.join(names())}, got {str(path)!r}")
    try:
        return read_bounded(path, MOST_DOCUMENT_BYTES).decode()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _job(document: object, where: str) -> TracedJob:
    fields = _object(document, where, _JOB_FIELDS)
    demand = demand_from_document({"phases": fields.get("phases")}, where)
    arrival_s = _number(fields, "arrival_s", where, 0.0)
    if arrival_s > _LATEST_S:
        raise UsageError(f"{where}.arrival_s: expected 0 to {_LATEST_S}, got {arrival_s}")
    try:
        return TracedJob(
            _text(fields, "name", where),
            _whole(fields, "workers", where),
            _whole(fields, "iterations", where),
            round(arrival_s * 1e9),
            demand,
            _whole(fields, "min_workers", where, 0),
            _whole(fields, "max_workers", where, 0),
            _text(fields, "model", where, ""),
            _whole(fields, "batch", where, 0),
            _number(fields, "noise_scale", where, NOISE_SCALE),
            round(_number(fields, "deadline_s", where) * 1e9) if "deadline_s" in fields else None,
            _text(fields, "parallelism", where, ""),
        )
    except UsageError as error:
        raise UsageError(_placed(where, error)) from None


def _placed(where: str, error: UsageError) -> str:
    return str(error) if str(error).startswith(where) else f"{where}: {error}"


def _object(document: object, where: str, expected: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(document, Mapping):
        raise UsageError(f"{where}: expected an object with {', '.join(expected[:5])}")
    for key in document:
        if key not in expected:
            raise UsageError(f"{where}.{key}: unknown field, expected {', '.join(expected)}")
    return document


def _text(fields: Mapping[str, Any], field: str, where: str, default: str | None = None) -> str:
    value = fields.get(field, default)
    if not isinstance(value, str) or not value.isprintable() or (default is None and not value):
        raise UsageError(f"{where}.{field}: expected a text on one line, got {value!r}")
    return value


def _whole(fields: Mapping[str, Any], field: str, where: str, default: int | None = None) -> int:
    value = fields.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0 or (field in fields and value < 1):
        raise UsageError(f"{where}.{field}: expected a whole number from 1 on, got {value!r}")
    return value


def _number(fields: Mapping[str, Any], field: str, where: str, default: float | None = None) -> float:
    value = fields.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
        raise UsageError(f"{where}.{field}: expected a number from 0 on, got {value!r}")
    return float(value)
