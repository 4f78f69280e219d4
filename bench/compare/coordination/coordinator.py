"""The interface of what coordinates running jobs: it sets variables for their ranks, and is told of every job."""

from __future__ import annotations

from dataclasses import dataclass

from bench.compare.results.runs import Shift
from mltcp.core.demand import Demand


@dataclass(frozen=True)
class PlacedDemand:
    """A job that starts.

    Attributes:
        name: of the job.
        slots: the slot of each rank.
        links: the links that it uses.
        demand: on these links, in the times and rates of the lab.
        iterations: how many it runs.
    """

    name: str
    slots: tuple[str, ...]
    links: tuple[str, ...]
    demand: Demand
    iterations: int


@dataclass
class Coordinator:
    """Coordinates the jobs of one run; this base class does nothing.

    Attributes:
        variables: environment variables of every rank.
        decisions_s: the duration of each decision so far.
        shifts: the time shifts so far; times by CLOCK_MONOTONIC.
    """

    variables: tuple[tuple[str, str], ...] = ()
    decisions_s: tuple[float, ...] = ()
    shifts: tuple[Shift, ...] = ()

    def placed(self, job: PlacedDemand) -> None:
        """Take note of a job before its ranks start."""

    def released(self, job: str) -> None:
        """Take note that the ranks of a job have ended."""
