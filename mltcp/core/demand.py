"""What a job demands of the network in one iteration: phases, each of a duration and a bandwidth (4.3)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import isfinite
from pathlib import Path
from typing import Any

from mltcp.core.errors import UsageError

LONGEST_NS = 10**13
"""Of an iteration: not quite three hours."""

LARGEST_BPS = 10**15
MOST_PHASES = 100_000


@dataclass(frozen=True)
class Phase:
    """An Up or a Down phase.

    Raises:
        UsageError: the duration is not more than 0, or the bandwidth is negative, or one of them beyond all reason.
    """

    duration_ns: int
    bandwidth_bps: int

    def __post_init__(self) -> None:
        if not 0 < self.duration_ns <= LONGEST_NS:
            raise UsageError(f"duration_ns is {self.duration_ns}: 1 to {LONGEST_NS} is allowed")
        if not 0 <= self.bandwidth_bps <= LARGEST_BPS:
            raise UsageError(f"bandwidth_bps is {self.bandwidth_bps}: 0 to {LARGEST_BPS} is allowed")


@dataclass(frozen=True)
class Demand:
    """The phases of one iteration of a job that runs alone, in order.

    Raises:
        UsageError: there are none, too many, or they last too long together.
    """

    phases: tuple[Phase, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.phases) <= MOST_PHASES:
            raise UsageError(f"{len(self.phases)} phases: 1 to {MOST_PHASES} are allowed")
        if self.iteration_ns > LONGEST_NS:
            raise UsageError(f"the phases last {self.iteration_ns} ns: {LONGEST_NS} are allowed")

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # demands are looked up often, and a tuple works its hash out anew every time
        return hash(self.phases)

    @cached_property
    def iteration_ns(self) -> int:
        """The perimeter of the job's own circle."""
        return sum(phase.duration_ns for phase in self.phases)

    @cached_property
    def silence_ns(self) -> int:
        """From the beginning of an iteration until its first phase with bandwidth; all of it if there is none."""
        silence = 0
        for phase in self.phases:
            if phase.bandwidth_bps:
                break
            silence += phase.duration_ns
        return silence

    @cached_property
    def bits(self) -> float:
        """What an iteration sends."""
        return sum(phase.duration_ns * phase.bandwidth_bps for phase in self.phases) / 1e9

    @cached_property
    def ends_ns(self) -> tuple[int, ...]:
        """When each phase ends, from the beginning of the iteration."""
        return tuple(accumulate(phase.duration_ns for phase in self.phases))


def load(path: Path) -> tuple[str, Demand]:
    """The job's name and demand in a file: its ``job`` or ``name``, or else the file's own name.

    Raises:
        UsageError: the file cannot be read, or holds no demand; the message names the field.
    """
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: {error}") from None
    demand = demand_from_document(document, str(path))
    name = document.get("job", document.get("name"))
    return (name if isinstance(name, str) and name else path.stem), demand


def demand_from_document(document: object, where: str = "profile") -> Demand:
    """The demand in a JSON document: a profile as the ``mltcp`` backend writes it, or ``{"phases": [...]}``.

    Of the backend's profile it is the typical iteration, or the last where there is none yet. A phase is
    ``{"duration_s", "bandwidth_bps"}``; with a ``start_s`` of its own, too, it may leave silence before it, but not
    begin before the last has ended.

    Raises:
        UsageError: it is neither, has no finished iteration, or a field that cannot be; the message names it.
    """
    if not isinstance(document, Mapping):
        raise UsageError(f"{where}: must be an object with 'phases'")
    if "schema" in document and "typical" in document:
        field = "last" if document["typical"] is None else "typical"
        if document.get(field) is None:
            raise UsageError(f"{where}: no iteration of this job has finished yet")
        return demand_from_document(document[field], f"{where}: {field}")
    listed = document.get("phases")
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise UsageError(f"{where}: phases must be a list")
    phases: list[Phase] = []
    for position, each in enumerate(listed):
        phases += _phases(each, sum(phase.duration_ns for phase in phases), f"{where}: phases[{position}]")
    try:
        return Demand(tuple(phases))
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def demand_document(demand: Demand) -> dict[str, Any]:
    """The demand as a document that `demand_from_document` reads."""
    return {
        "phases": [
            {"duration_s": phase.duration_ns / 1e9, "bandwidth_bps": phase.bandwidth_bps}
            for phase in demand.phases
        ]
    }


def _phases(document: object, at_ns: int, where: str) -> list[Phase]:
    """The phase that a document describes, and the silence before it, if it says when it begins."""
    if not isinstance(document, Mapping):
        raise UsageError(f"{where}: must be an object with duration_s and bandwidth_bps")
    for field in document:
        if field not in ("start_s", "duration_s", "bandwidth_bps"):
            raise UsageError(
                f"{where}.{field}: unknown; duration_s, bandwidth_bps, and perhaps start_s are allowed"
            )
    before = []
    if "start_s" in document:
        start_ns = round(_number(document, "start_s", where) * 1e9)
        if start_ns < at_ns:
            raise UsageError(
                f"{where}.start_s is {document['start_s']}: overlaps the phase before, which ends at {at_ns / 1e9} s"
            )
        before = [Phase(start_ns - at_ns, 0)] if start_ns > at_ns else []
    duration_ns = round(_number(document, "duration_s", where) * 1e9)
    if duration_ns == 0:
        raise UsageError(
            f"{where}.duration_s is {document['duration_s']}: an empty phase; more than 0 is allowed"
        )
    try:
        return [*before, Phase(duration_ns, round(_number(document, "bandwidth_bps", where)))]
    except UsageError as error:
        raise UsageError(f"{where}.{error}") from None


def _number(document: Mapping[str, Any], field: str, where: str) -> float:
    value = document.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
        raise UsageError(f"{where}.{field} is {value!r}: a number from 0 on is allowed")
    return float(value)
