"""The compatibility score of jobs on a link, and the rotations that reach it (Table 4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mltcp.core.demand import Demand
from mltcp.core.errors import UsageError
from placement.cassini import search
from placement.cassini.circle import ANGLES, TOLERANCE, Circles, unified

EFFORT = 30_000_000
"""The number of sums that branch and bound may evaluate: enough to prove four jobs at five degrees."""

_MOST_MATCHED = 12
"""The most jobs for which the bound considers pairs; for more, which overload any link, it is the overload."""


@dataclass(frozen=True)
class Compatibility:
    """The result of the optimization of Table 4.1.

    Attributes:
        score: 1 minus the average excess over the capacity; 1 if the jobs are fully compatible, and possibly negative.
        bound: an upper bound of the score over all rotations.
        proven: whether the score is optimal: it equals the bound.
        rotations: Delta_j of each job, in angles of its circle (Eq. 4.4: within its first iteration).
        shifts_ns: t_j of each job (Eq. 4.5): the delay of the start of its next iteration.
    """

    score: float
    bound: float
    proven: bool
    rotations: tuple[int, ...]
    shifts_ns: tuple[int, ...]


def score_link(
    demands: Sequence[Demand],
    capacity_bps: int,
    *,
    angles: int = ANGLES,
    tolerance: float = TOLERANCE,
    effort: int = EFFORT,
) -> Compatibility:
    """The compatibility of the demands of some jobs on a link, in the order of the jobs.

    Raises:
        UsageError: no demands, a capacity that is not positive, or angles or a tolerance out of range.
    """
    return compatibility(unified(demands, angles=angles, tolerance=tolerance), capacity_bps, effort=effort)


def compatibility(circles: Circles, capacity_bps: int, *, effort: int = EFFORT) -> Compatibility:
    """Maximize the score of Table 4.1.

    The jobs are sorted by their circles first, so that their order makes no difference. Rotating all of them alike
    changes nothing, so one job is not rotated, and all rotations are relative to it. Of rotations with equal scores
    those are chosen that leave room for drift on both sides.

    Raises:
        UsageError: the capacity is not positive.
    """
    if capacity_bps <= 0:
        raise UsageError(f"capacity_bps: expected more than 0, got {capacity_bps}")
    order = _canonical(circles)
    domains = np.array([_domain(circles, job) for job in order], np.int64)
    demand = np.ascontiguousarray(np.tile(circles.demand[order], 2))
    rotations = np.zeros(len(order), np.int64)
    excess, floor = _least_excess(demand, circles.angles, domains, capacity_bps, effort, rotations)
    search.centre(demand, circles.angles, domains, capacity_bps, rotations)
    by_job = np.empty_like(rotations)
    by_job[order] = rotations
    whole = circles.angles * capacity_bps
    return Compatibility(
        1 - excess / whole,
        1 - floor / whole,
        excess == floor,
        tuple(int(rotation) for rotation in by_job),
        tuple(shift_ns(circles, job, int(rotation)) for job, rotation in enumerate(by_job)),
    )


def shift_ns(circles: Circles, job: int, rotation: int) -> int:
    """Eq. 4.5: the time shift of a job for a rotation of its unified circle (in angles)."""
    whole = circles.angles * circles.repeats[job]
    # t = rotation / angles * perimeter, modulo the perimeter / repeats
    return rotation * circles.repeats[job] % circles.angles * circles.perimeter_ns // whole


def score_at(circles: Circles, capacity_bps: int, rotations: Sequence[int]) -> float:
    """The score of Table 4.1 for given rotations (in angles), such as 0 for jobs as they are."""
    excess = int(np.maximum(circles.together(rotations) - capacity_bps, 0).sum())
    return 1 - excess / (circles.angles * capacity_bps)


def _canonical(circles: Circles) -> list[int]:
    """Order the jobs by iteration time and bits, the largest first."""
    return sorted(
        range(len(circles.repeats)),
        key=lambda job: (
            circles.repeats[job],
            -int(circles.demand[job].sum()),
            circles.demand[job].tobytes(),
        ),
    )


def _domain(circles: Circles, job: int) -> int:
    """Eq. 4.4: up to 2 pi / r_j, where the sampled iterations are all alike; the whole circle where they are not."""
    repeats = circles.repeats[job]
    return circles.angles // repeats if circles.angles % repeats == 0 else circles.angles


def _least_excess(
    demand: np.ndarray,
    angles: int,
    domains: np.ndarray,
    capacity_bps: int,
    effort: int,
    rotations: np.ndarray,
) -> tuple[int, int]:
    """Search the rotations, which are written; returns the least excess found, and a lower bound of it."""
    jobs = len(domains)
    overload = int(demand[:, :angles].sum()) - angles * capacity_bps
    if jobs == 1:
        excess = int(np.maximum(demand[0, :angles] - capacity_bps, 0).sum())
        return excess, excess
    suffix = np.zeros(jobs + 1, np.int64)
    if jobs <= _MOST_MATCHED:
        suffix = search.matched(search.paired(demand, angles, domains, capacity_bps))
    floor = max(overload, int(suffix[0]))
    best = int(search.descended(demand, angles, domains, capacity_bps, floor, effort // 4, rotations))
    if best <= floor:
        return best, best
    alike = np.array(
        [
            job > 1 and domains[job] == domains[job - 1] and bool((demand[job] == demand[job - 1]).all())
            for job in range(jobs)
        ]
    )
    least, bound = search.searched(
        demand, angles, domains, capacity_bps, alike, suffix, floor, best, effort, rotations
    )
    return int(least), int(bound)
