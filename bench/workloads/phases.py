"""Demand phases on the lab's link: an iteration as stretches of silence and of all-reduces at a share of its rate.

A set of jobs (`placement.traces.sets`) describes each job by phases of (duration, bandwidth) on a link of some
capacity. The lab's link is slower: times are multiplied by one factor for all jobs of the set, and bytes are chosen
such that each phase takes the same share of the link's rate as before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.workloads.profile import SMALLEST_BUCKET_BYTES, link_time_s
from mltcp.core.demand import Demand, Phase
from mltcp.core.errors import UsageError

LINE_RATE_SHARE = 0.95
"""A phase with at least this share of the rate is one all-reduce; below it, the phase is sent in pieces."""
PIECE_S = 0.005
"""The distance of pieces: shorter than the idle time after which TCP restarts slowly (the lab's minimum RTO)."""

LONGEST_S, SHORTEST_S, USUAL_S = 0.6, 0.2, 0.4


@dataclass(frozen=True)
class Stretch:
    """A part of an iteration on the lab's link: all-reduces of these sizes at equal distances; without any, silence."""

    duration_s: float
    pieces_bytes: tuple[int, ...] = ()

    @property
    def every_s(self) -> float:
        """The shortest time between the beginnings of two pieces."""
        return self.duration_s / max(1, len(self.pieces_bytes))


@dataclass(frozen=True)
class ComputeChange:
    """From an iteration (counted from 0) on, silences are `factor` times as long, as with another batch size."""

    iteration: int
    factor: float

    def __post_init__(self) -> None:
        if self.iteration < 1:
            raise UsageError(f"change: iteration: expected 1 or more, got {self.iteration}")
        if not (math.isfinite(self.factor) and self.factor > 0):
            raise UsageError(f"change: factor: expected a finite number above 0, got {self.factor}")


@dataclass(frozen=True)
class PhasedWork:
    """The stretches of a job's iteration in order, and an optional change of its compute time during the run."""

    name: str
    stretches: tuple[Stretch, ...]
    change: ComputeChange | None = None

    @property
    def sent_bytes(self) -> int:
        """The bytes that one rank submits to all-reduces in an iteration."""
        return sum(sum(stretch.pieces_bytes) for stretch in self.stretches)

    def isolated_iteration_s(self, rate_bps: float, ranks: int) -> float:
        """The iteration's time alone on a link of `rate_bps`, before any change."""
        return sum(_alone_s(stretch, rate_bps, ranks) for stretch in self.stretches)

    def at(self, iteration: int) -> tuple[Stretch, ...]:
        """The stretches of that iteration."""
        if self.change is None or iteration < self.change.iteration:
            return self.stretches
        factor = self.change.factor
        return tuple(
            stretch if stretch.pieces_bytes else replace(stretch, duration_s=stretch.duration_s * factor)
            for stretch in self.stretches
        )


def time_scale(iterations_s: Sequence[float]) -> float:
    """One factor for the times of a set of jobs, such that their iterations take 0.2 to 0.6 s.

    The longest becomes 0.4 s, or up to 0.6 s if the shortest would be below 0.2 s: long enough for F and congestion
    windows to act within an iteration, and short enough for a comparison of many iterations.

    Raises:
        UsageError: there is no job.
    """
    if not iterations_s:
        raise UsageError("set: expected at least one job, got none")
    longest, shortest = max(iterations_s), min(iterations_s)
    return min(LONGEST_S, max(USUAL_S, SHORTEST_S * longest / shortest)) / longest


def on_link(
    name: str,
    demand: Demand,
    capacity_bps: float,
    rate_bps: float,
    ranks: int,
    scale: float,
) -> PhasedWork:
    """Convert a job's demand on a link of `capacity_bps` to a link of `rate_bps`, with times multiplied by `scale`.

    A phase with more bandwidth than the capacity is prolonged accordingly. The phases of a single rank are silent,
    since it has no peer.

    Raises:
        UsageError: the capacity is not positive.
    """
    if not capacity_bps > 0:
        raise UsageError(f"job {name}: capacity_bps: expected more than 0, got {capacity_bps}")
    stretches = tuple(_stretch(phase, capacity_bps, rate_bps, ranks, scale) for phase in demand.phases)
    return PhasedWork(name, stretches)


def _stretch(phase: Phase, capacity_bps: float, rate_bps: float, ranks: int, scale: float) -> Stretch:
    share = phase.bandwidth_bps / capacity_bps
    if share == 0 or ranks < 2:
        return Stretch(phase.duration_ns / 1e9 * scale)
    duration_s = phase.duration_ns / 1e9 * scale * max(1.0, share)
    share = min(1.0, share)
    count = 1 if share >= LINE_RATE_SHARE else max(1, round(duration_s / PIECE_S))
    # link_time_s is proportional to the bytes.
    size = share * duration_s / count / link_time_s(1.0, rate_bps, ranks)
    return Stretch(duration_s, (max(SMALLEST_BUCKET_BYTES, round(size)),) * count)


def _alone_s(stretch: Stretch, rate_bps: float, ranks: int) -> float:
    piece_s = max((link_time_s(size, rate_bps, ranks) for size in stretch.pieces_bytes), default=0.0)
    return max(stretch.duration_s, len(stretch.pieces_bytes) * piece_s)


def next_due_s(due_s: float, every_s: float, now_s: float) -> float:
    """When the piece after one that was due at `due_s` and is done at `now_s` is due.

    Lateness is made up for, up to one piece: a late timer must not prolong a phase, but after congestion the rate must
    not exceed the phase's for long.
    """
    return max(due_s + every_s, now_s - every_s)


def parse_change(text: str) -> tuple[str, ComputeChange]:
    """The job and its change, written as JOB:ITERATION:FACTOR, such as vgg16-1:40:2. Raises UsageError for others."""
    job, _, rest = text.partition(":")
    iteration, _, factor = rest.partition(":")
    try:
        return job, ComputeChange(int(iteration), float(factor))
    except ValueError:
        raise UsageError(
            f"--change: expected JOB:ITERATION:FACTOR, such as vgg16-1:40:2, got {text!r}"
        ) from None
