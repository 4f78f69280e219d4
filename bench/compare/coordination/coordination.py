"""What steers running jobs from outside: nothing, the placement service, a gate, or both.

A coordination lasts for one run of one approach. Before the run it says what the ranks find in their environment,
it is told of every job that is placed and that is gone, and after the run it says what it decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from bench.compare.results.runs import Shift
from mltcp.core.demand import Demand

LINK = "trunk"


@dataclass(frozen=True)
class PlacedDemand:
    """A job that starts: the slot of each rank, the links that it uses, what it demands of them in the lab's own times
    and rates, and for how many iterations."""

    name: str
    slots: tuple[str, ...]
    links: tuple[str, ...]
    demand: Demand
    iterations: int


class Coordination(Protocol):
    """What a run has to know of what steers it."""

    def placed(self, job: PlacedDemand) -> None:
        """A job is about to start its ranks."""

    def released(self, job: str) -> None:
        """A job's ranks are gone."""

    @property
    def variables(self) -> tuple[tuple[str, str], ...]:
        """What every rank finds in its environment."""

    @property
    def decisions_s(self) -> tuple[float, ...]:
        """What each decision has taken so far."""

    @property
    def shifts(self) -> tuple[Shift, ...]:
        """By which jobs have been moved so far; times by CLOCK_MONOTONIC."""


@dataclass
class Uncoordinated:
    """Jobs do what they do."""

    variables: tuple[tuple[str, str], ...] = ()
    decisions_s: tuple[float, ...] = ()
    shifts: tuple[Shift, ...] = ()

    def placed(self, job: PlacedDemand) -> None:
        """See `Coordination`."""

    def released(self, job: str) -> None:
        """See `Coordination`."""


class Together:
    """Several coordinations at a time."""

    def __init__(self, parts: Sequence[Coordination]) -> None:
        self._parts = parts

    def placed(self, job: PlacedDemand) -> None:
        """See `Coordination`."""
        for part in self._parts:
            part.placed(job)

    def released(self, job: str) -> None:
        """See `Coordination`."""
        for part in self._parts:
            part.released(job)

    @property
    def variables(self) -> tuple[tuple[str, str], ...]:
        """See `Coordination`."""
        return tuple(variable for part in self._parts for variable in part.variables)

    @property
    def decisions_s(self) -> tuple[float, ...]:
        """See `Coordination`."""
        return tuple(taken_s for part in self._parts for taken_s in part.decisions_s)

    @property
    def shifts(self) -> tuple[Shift, ...]:
        """See `Coordination`."""
        return tuple(shift for part in self._parts for shift in part.shifts)


def from_epoch(shifts: Sequence[Shift], epoch_s: float) -> tuple[Shift, ...]:
    """The same shifts with times from a moment of CLOCK_MONOTONIC on."""
    return tuple(replace(shift, at_s=max(0.0, shift.at_s - epoch_s)) for shift in shifts)
