"""Unified circles: the demands of jobs that share a link, rolled around a common perimeter (4.3.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mltcp.core.demand import Demand
from mltcp.core.errors import UsageError
from placement.model.compiled import compiled_with_arrays

ANGLES = 72
"""The default number of angles: five degrees each, as in 4.5.1."""

TOLERANCE = 0.03
KEPT_TOLERANCE = 0.05
"""The tolerance for jobs that keep to timetables: a job that is faster than its circle waits and collides with none."""

MOST_ANGLES = 36_000
_LARGEST = 2**62
MOST_EXACT, MOST_MEASURED = 24, 8
"""The most iterations of the shortest job on a circle: with an exact common multiple of the times, and with one within
the tolerance. Any two times have a common multiple eventually; but with more iterations the jobs overlap in so many
ways that rotations hardly matter, and drift would soon undo them.
"""

_ANGLES_AN_ITERATION = 12
_REASONABLE_ANGLES = 4
_KEPT = 1 << 10


@dataclass(frozen=True)
class Circles:
    """The unified circles of some jobs, in discrete angles.

    Attributes:
        perimeter_ns: the common multiple of the iteration times; see `unified`.
        angles: |A| of Table 4.1, the number of angles.
        repeats: r_j, the number of iterations of each job on the circle.
        drift_ns: the time by which an iteration of each job is shorter than its share of the perimeter. A job runs
            ahead of its circle by it in every iteration unless it is delayed; 0 for exact multiples.
        demand: bw_circle_j of Table 4.1: [job, angle], bit/s.
    """

    perimeter_ns: int
    angles: int
    repeats: tuple[int, ...]
    drift_ns: tuple[float, ...]
    demand: np.ndarray

    def period_ns(self, job: int) -> float:
        """The period of a job on its circle, which is at least its iteration time."""
        return self.perimeter_ns / self.repeats[job]

    def together(self, rotations: Sequence[int]) -> np.ndarray:
        """The sum of all jobs' demands at each angle, bit/s, with each job rotated by its number of angles."""
        return _rotated_sum(self.demand, np.array(rotations, np.int64))


@compiled_with_arrays
def _rotated_sum(circles: np.ndarray, rotations: np.ndarray) -> np.ndarray:
    jobs, angles = circles.shape
    sum_ = np.zeros(angles, circles.dtype)
    for job in range(jobs):
        to = rotations[job] % angles
        for angle in range(angles):
            sum_[to] += circles[job, angle]
            to = to + 1 if to + 1 < angles else 0
    return sum_


def unified(demands: Sequence[Demand], *, angles: int = ANGLES, tolerance: float = TOLERANCE) -> Circles:
    """Build the unified circles of jobs that share a link.

    The perimeter is the least common multiple of the iteration times. Measured times have no useful one:
    then it is the smallest p = max_j(r_j T_j) such that no job's r_j T_j is shorter by more than
    `tolerance` / max_j(r_j) of it, if there is one within 8 iterations of the shortest (an exact one: 24). A job whose
    iterations are shorter than p / r_j is silent for the rest, which is its drift. Where there is none, the p with the
    least drift is taken, and `drift_ns` has that drift: `groups` keeps such jobs apart.

    There are at least `angles` angles, more where an iteration of some job would have fewer than twelve, and a
    multiple of every r_j where that is affordable, so that all iterations of a job are sampled alike.

    Raises:
        UsageError: no demands, or angles or a tolerance out of range.
    """
    if not demands:
        raise UsageError("demands: expected one or more, got none")
    if not 2 <= angles <= MOST_ANGLES:
        raise UsageError(f"angles: expected 2 to {MOST_ANGLES}, got {angles}")
    if not 0 <= tolerance < 1:
        raise UsageError(f"tolerance: expected 0 <= tolerance < 1, got {tolerance}")
    times = [demand.iteration_ns for demand in demands]
    perimeter, repeats = common_turn(times, tolerance)
    number = _angles(angles, repeats)
    return Circles(
        perimeter,
        number,
        repeats,
        tuple(perimeter / repeat - time for repeat, time in zip(repeats, times, strict=True)),
        np.array(
            [
                _sampled(demand, perimeter, repeat, number)
                for demand, repeat in zip(demands, repeats, strict=True)
            ],
            np.int64,
        ),
    )


def common_turn(times_ns: Sequence[int], tolerance: float = TOLERANCE) -> tuple[int, tuple[int, ...]]:
    """p (ns) and r_j of the unified circle of jobs with these iteration times; see `unified`."""
    repeats = common_repeats(times_ns, tolerance)
    return max(repeat * time for repeat, time in zip(repeats, times_ns, strict=True)), repeats


def common_repeats(times_ns: Sequence[int], tolerance: float) -> tuple[int, ...]:
    """r_j of the smallest common multiple within the tolerance, or of the closest if there is none."""
    distinct = np.array(sorted(set(times_ns)), np.int64)
    repeats = np.zeros(len(distinct), np.int64)
    if closest_multiples(distinct, _within(times_ns, MOST_MEASURED), tolerance, repeats) > tolerance:
        exact = math.lcm(*times_ns)
        if exact <= max(times_ns) * _within(times_ns, MOST_EXACT):
            return tuple(exact // time for time in times_ns)
        closest_multiples(distinct, _within(times_ns, MOST_EXACT), tolerance, repeats)
    by_time = dict(zip(distinct.tolist(), repeats.tolist(), strict=True))
    return tuple(by_time[time] for time in times_ns)


def periods_on_circle(times_ns: Sequence[int], tolerance: float = TOLERANCE) -> tuple[int, ...]:
    """The period of each job on the unified circle of all: p / r_j, in ns; see `unified`."""
    perimeter, repeats = common_turn(times_ns, tolerance)
    return tuple(round(perimeter / repeat) for repeat in repeats)


def _within(times_ns: Sequence[int], most: int) -> int:
    """The number of longest iterations that fit into `most` shortest ones, at least one."""
    return max(1, most * min(times_ns) // max(times_ns))


def groups(times_ns: Sequence[int], tolerance: float) -> tuple[tuple[int, ...], ...]:
    """Group the jobs (by position) that can share a circle: those whose iteration times have a common multiple.

    The common multiple is exact within 24 iterations of the shortest, or within the tolerance within 8. Beginning with
    the longest iterations, a job joins the first group with all of whose jobs it has one.
    """
    found: list[list[int]] = []
    for job in sorted(range(len(times_ns)), key=lambda each: -times_ns[each]):
        for group in found:
            times = {*(times_ns[each] for each in group), times_ns[job]}
            if _commensurable(tuple(sorted(times)), tolerance):
                group.append(job)
                break
        else:
            found.append([job])
    return tuple(sorted(tuple(sorted(group)) for group in found))


@lru_cache(maxsize=_KEPT)
def _commensurable(times_ns: tuple[int, ...], tolerance: float) -> bool:
    """Whether jobs with these iteration times, distinct and ascending, can share a circle."""
    if len(times_ns) == 1 or math.lcm(*times_ns) <= times_ns[-1] * _within(times_ns, MOST_EXACT):
        return True
    distinct = np.array(times_ns, np.int64)
    repeats = np.zeros(len(distinct), np.int64)
    return closest_multiples(distinct, _within(times_ns, MOST_MEASURED), tolerance, repeats) <= tolerance


def _angles(least: int, repeats: Sequence[int]) -> int:
    wanted = max(least, _ANGLES_AN_ITERATION * max(repeats))
    common = math.lcm(*repeats)
    return -(-wanted // common) * common if common <= _REASONABLE_ANGLES * wanted else wanted


@lru_cache(maxsize=_KEPT)
def _sampled(demand: Demand, perimeter_ns: int, repeats: int, angles: int) -> np.ndarray:
    """The demand at each angle; after the end of its iteration a job is silent until the next begins."""
    values = np.array([phase.bandwidth_bps for phase in demand.phases] + [0], np.int64)
    # Integers throughout: an angle on the border of two phases belongs to the later one.
    positions = np.arange(angles) * repeats % angles
    if angles * perimeter_ns < _LARGEST:
        times_ns = positions * perimeter_ns // (angles * repeats)
    else:
        times_ns = np.array([int(each) * perimeter_ns // (angles * repeats) for each in positions])
    return values[np.searchsorted(np.array(demand.ends_ns), times_ns, side="right")]


# -- common multiples of measured times --------------------------------------------------------------------------------


@compiled_with_arrays
def closest_multiples(times: np.ndarray, most: int, tolerance: float, best: np.ndarray) -> float:
    """Search multiples of all times that lie close together, write them into `best`, and return their distance.

    The distance is (largest - smallest) / largest, times the largest multiple: the more iterations there are on a
    circle, the less there is to gain from rotating it, and the less drift is worth it. The multiples next to the first,
    second, ... `most`-th multiple of the longest time are tried; the first within the tolerance are taken, or else the
    closest.

    Args:
        times: different, ascending, ns.
        most: the largest multiple of the longest time.
        tolerance: the distance at which the search ends.
        best: the multiples found, one for each time.
    """
    jobs = times.shape[0]
    closest = np.inf
    for repeat in range(1, most + 1):
        about = times[jobs - 1] * repeat
        chosen = np.empty(jobs, np.int64)
        # a window begins at a multiple of one time below (or above) and takes the first multiple of each from there on
        for first in range(2 * jobs):
            time = times[first // 2]
            begin = about // time * time
            if first % 2 and begin < about:
                begin += time
            if begin == 0:
                continue
            end = begin
            largest = 1
            for job in range(jobs):
                chosen[job] = -(-begin // times[job])
                end = max(end, chosen[job] * times[job])
                largest = max(largest, chosen[job])
            if chosen[jobs - 1] > most:
                continue
            spread = (end - begin) / end * largest
            if spread < closest:
                closest = spread
                best[:] = chosen
        if closest <= tolerance:
            break
    return closest
