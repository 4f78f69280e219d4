"""Demand profiles: the phases of a job's iteration, each with a duration and a bandwidth (thesis, section 4.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from mltcp.core.errors import UsageError
from mltcp.core.json_files import read_json
from mltcp.core.quantities import check_number

LONGEST_NS = 10**13
"""The longest iteration: not quite three hours."""

LARGEST_BPS = 10**15
MOST_PHASES = 100_000

_LONGEST_S = 1e9
_HIGHEST_BPS = 1e18


@dataclass(frozen=True)
class Phase:
    """An Up or a Down phase.

    Raises:
        UsageError: the duration or the bandwidth is out of range.
    """

    duration_ns: int
    bandwidth_bps: int

    def __post_init__(self) -> None:
        if not 0 < self.duration_ns <= LONGEST_NS:
            raise UsageError(f"duration_ns: expected 1 to {LONGEST_NS}, got {self.duration_ns}")
        if not 0 <= self.bandwidth_bps <= LARGEST_BPS:
            raise UsageError(f"bandwidth_bps: expected 0 to {LARGEST_BPS}, got {self.bandwidth_bps}")


@dataclass(frozen=True)
class Demand:
    """The phases of one iteration of a job that runs alone, in order.

    Raises:
        UsageError: there are none, too many, or they last too long together.
    """

    phases: tuple[Phase, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.phases) <= MOST_PHASES:
            raise UsageError(f"phases: expected 1 to {MOST_PHASES}, got {len(self.phases)}")
        if self.iteration_ns > LONGEST_NS:
            raise UsageError(f"phases: expected at most {LONGEST_NS} ns in all, got {self.iteration_ns} ns")

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Demands are dictionary keys, and a tuple computes its hash anew every time.
        return hash(self.phases)

    @cached_property
    def iteration_ns(self) -> int:
        """The duration of the iteration, which is the perimeter of the job's own circle."""
        return sum(phase.duration_ns for phase in self.phases)

    @cached_property
    def silence_ns(self) -> int:
        """The time from the start of an iteration to its first phase with bandwidth; all of it if there is none."""
        silence = 0
        for phase in self.phases:
            if phase.bandwidth_bps:
                break
            silence += phase.duration_ns
        return silence

    @cached_property
    def bits(self) -> float:
        """The bits that an iteration sends."""
        return sum(phase.duration_ns * phase.bandwidth_bps for phase in self.phases) / 1e9

    @cached_property
    def ends_ns(self) -> tuple[int, ...]:
        """The end of each phase, from the start of the iteration."""
        return tuple(accumulate(phase.duration_ns for phase in self.phases))


def load(path: Path) -> tuple[str, Demand]:
    """The job's name and demand in a file: its ``job`` or ``name``, or else the file's own name.

    Raises:
        UsageError: the file cannot be read, or does not contain a demand; the message names the field.
    """
    document = read_json(path)
    demand = demand_from_document(document, str(path))
    name = document.get("job", document.get("name"))
    return (name if isinstance(name, str) and name else path.stem), demand


def demand_from_document(document: object, where: str = "profile") -> Demand:
    """The demand in a JSON document: a profile as the ``mltcp`` backend writes it, or ``{"phases": [...]}``.

    From a profile of the backend, this is the typical iteration, or the last one if there is no typical one yet. A
    phase is ``{"duration_s", "bandwidth_bps"}``. With a ``start_s``, it may begin later than the previous phase ends,
    with silence between them, but not earlier.

    Raises:
        UsageError: it is neither, has no finished iteration, or a malformed field; the message names the field.
    """
    if not isinstance(document, Mapping):
        raise UsageError(f"{where}: expected an object with 'phases'")
    if "schema" in document and "typical" in document:
        field = "last" if document["typical"] is None else "typical"
        if document.get(field) is None:
            raise UsageError(f"{where}: no iteration of this job has finished yet")
        return demand_from_document(document[field], f"{where}: {field}")
    listed = document.get("phases")
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise UsageError(f"{where}: phases: expected a list")
    phases: list[Phase] = []
    for position, each in enumerate(listed):
        phases += _phases(each, sum(phase.duration_ns for phase in phases), f"{where}: phases[{position}]")
    try:
        return Demand(tuple(phases))
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def demand_document(demand: Demand) -> dict[str, Any]:
    """The demand as a JSON document, as `demand_from_document` reads it."""
    return {
        "phases": [
            {"duration_s": phase.duration_ns / 1e9, "bandwidth_bps": phase.bandwidth_bps}
            for phase in demand.phases
        ]
    }


def _phases(document: object, at_ns: int, where: str) -> list[Phase]:
    """The phase that a document describes, after a silent one if its `start_s` is later than `at_ns`."""
    if not isinstance(document, Mapping):
        raise UsageError(f"{where}: expected an object with duration_s and bandwidth_bps")
    for field in document:
        if field not in ("start_s", "duration_s", "bandwidth_bps"):
            raise UsageError(
                f"{where}.{field}: unknown field, expected duration_s, bandwidth_bps and optionally start_s"
            )
    before = []
    if "start_s" in document:
        start_ns = round(_number(document, "start_s", where) * 1e9)
        if start_ns < at_ns:
            raise UsageError(
                f"{where}.start_s: expected at least the end of the previous phase, {at_ns / 1e9}, "
                f"got {document['start_s']}"
            )
        before = [Phase(start_ns - at_ns, 0)] if start_ns > at_ns else []
    duration_ns = round(_number(document, "duration_s", where) * 1e9)
    if duration_ns == 0:
        raise UsageError(f"{where}.duration_s: expected a number above 0, got {document['duration_s']}")
    bandwidth_bps = round(_number(document, "bandwidth_bps", where, _HIGHEST_BPS))
    try:
        return [*before, Phase(duration_ns, bandwidth_bps)]
    except UsageError as error:
        raise UsageError(f"{where}.{error}") from None


def _number(document: Mapping[str, Any], field: str, where: str, most: float = _LONGEST_S) -> float:
    """A number, at most `most`: what is far out of the range of a phase may not be convertible."""
    return min(check_number(document.get(field), field=f"{where}.{field}", lowest=0), most)
