"""The compatibility score of jobs on a link, and the rotations that reach it (Table 4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from mltcp.core.demand import Demand
from mltcp.core.errors import UsageError
from placement.cassini import search
from placement.cassini.circle import ANGLES, TOLERANCE, Circles, groups, unified
from placement.cassini.search import expected_excess

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


# -- the jobs of a link on circles -------------------------------------------------------------------------------------
# Jobs with a common multiple share a unified circle, and can be rotated against each other (Table 4.1). Jobs without
# one pass through every relative position: on the circle of their least common multiple, however large, the excess is
# the same for all rotations, that of independent demands. So the score of the link is 1 minus the expected excess of
# its circles, each at a random angle.

_LEAST_SHARE = 10


@dataclass(frozen=True)
class CircleGroup:
    """Jobs that share a unified circle.

    Attributes:
        jobs: their positions among the jobs of the link.
        circles: their unified circles.
        capacity_bps: the capacity that they were fitted to: the link's less the mean demand of the other groups.
        compatibility: of these jobs at this capacity.
        at_random: the mean score at this capacity over all rotations: that of jobs without time shifts.
        tied: whether holding them to the rotations is worthwhile.
    """

    jobs: tuple[int, ...]
    circles: Circles
    capacity_bps: int
    compatibility: Compatibility
    at_random: float
    tied: bool

    @property
    def drift(self) -> float:
        """The largest drift of a job in an iteration, as a fraction of its period."""
        return max(drift / self.circles.period_ns(job) for job, drift in enumerate(self.circles.drift_ns))

    def rotation(self, shift_ns: float) -> int:
        """The rotation (in angles of the group's circle) nearest to a time shift of one of its jobs."""
        circles = self.circles
        return round(shift_ns * circles.angles / circles.perimeter_ns) % circles.angles


@dataclass(frozen=True)
class LinkFit:
    """The fit of the jobs of a link.

    Attributes:
        capacity_bps: of the link.
        groups: the groups; with a single one this is Table 4.1 exactly.
        score: the score at the best time shifts that were found.
        bound: an upper bound of the score over all time shifts.
        shifts_ns: the time shift of each job (Eq. 4.5), relative to the others of its group.
    """

    capacity_bps: int
    groups: tuple[CircleGroup, ...]
    score: float
    bound: float
    shifts_ns: tuple[int, ...]

    @property
    def proven(self) -> bool:
        """Whether it is proven that no time shifts have a higher score."""
        return self.score >= self.bound

    @cached_property
    def at_random(self) -> float:
        """The score on average over all time shifts: that of jobs which nobody holds to any."""
        demands = [demand for group in self.groups for demand in list(group.circles.demand)]
        return 1 - expected_excess(demands, self.capacity_bps) / self.capacity_bps

    @property
    def drift(self) -> float:
        """The largest drift of a job an iteration, over its period, within the groups that are tied."""
        return max((group.drift for group in self.groups if group.tied), default=0.0)

    def score_at(self, shifts_ns: Sequence[float]) -> float:
        """The score when each job of a tied group is delayed by its time shift."""
        sums: list[np.ndarray] = []
        for group in self.groups:
            sums += _independent(group, [group.rotation(shifts_ns[job]) for job in group.jobs])
        # The sums are rounded, and would exceed the bound by that where it is reached.
        return min(self.bound, 1 - expected_excess(sums, self.capacity_bps) / self.capacity_bps)


def fit_link(
    demands: Sequence[Demand],
    capacity_bps: int,
    *,
    angles: int = ANGLES,
    tolerance: float = TOLERANCE,
    effort: int = EFFORT,
    worthwhile: float = 0.0,
    timed: bool = False,
) -> LinkFit:
    """Rotate the jobs of a link against each other as far as that makes sense; their order makes no difference.

    Args:
        demands: of the jobs.
        capacity_bps: of the link.
        angles: see `unified`.
        tolerance: see `unified`.
        effort: see `compatibility`.
        worthwhile: by how much the score of a group has to be better than at random, for its jobs to be tied to each
            other. With 0 all groups are.
        timed: whether jobs keep to timetables. Then drift costs those that are faster than their circle just that,
            and is worth anything below what it gains. Otherwise the jobs collide until they are corrected, and drift
            must not come to half of the gain.

    Raises:
        UsageError: no demands, a capacity that is not positive, or angles or a tolerance that cannot be.
    """
    if len(demands) == 0:
        unified(demands)  # says what is wrong
    times_ns = [demand.iteration_ns for demand in demands]
    parts = groups(times_ns, tolerance)
    fitted = []
    for part in parts:
        own = [demands[job] for job in part]
        others_bps = sum(_mean_bps(demands[job]) for job in range(len(demands)) if job not in part)
        # where the others leave nothing, to be as flat as possible is still worth something
        left_bps = max(round(capacity_bps - others_bps), -(-capacity_bps // _LEAST_SHARE))
        circles = unified(own, angles=angles, tolerance=tolerance)
        capacity = capacity_bps if len(parts) == 1 else left_bps
        found = compatibility(circles, capacity, effort=effort)
        at_random = found.score
        if len(part) > 1:
            at_random = 1 - expected_excess(list(circles.demand), capacity) / capacity
        group = CircleGroup(part, circles, capacity, found, at_random, True)
        gain = found.score - at_random
        tied = not worthwhile or (gain >= worthwhile and group.drift <= (gain if timed else gain / 2))
        fitted.append(replace(group, tied=tied))
    return _whole(demands, capacity_bps, tuple(fitted))


def _whole(demands: Sequence[Demand], capacity_bps: int, fitted: tuple[CircleGroup, ...]) -> LinkFit:
    shifts = [0] * len(demands)
    for group in fitted:
        for at, job in enumerate(group.jobs):
            shifts[job] = group.compatibility.shifts_ns[at]
    if len(fitted) == 1 and fitted[0].tied:
        found = fitted[0].compatibility
        return LinkFit(capacity_bps, fitted, found.score, found.bound, tuple(shifts))
    sums = [each for group in fitted for each in _independent(group, group.compatibility.rotations)]
    score = 1 - expected_excess(sums, capacity_bps) / capacity_bps
    # whatever the rotations, the mean demand beyond the capacity is lost
    overload = sum(int(each.sum()) / len(each) for each in sums) - capacity_bps
    bound = max(score, 1 - max(0.0, overload) / capacity_bps)
    return LinkFit(capacity_bps, fitted, score, bound, tuple(shifts))


def _independent(group: CircleGroup, rotations: Sequence[int]) -> list[np.ndarray]:
    """The demands that lie beside each other at random: that of the group, or those of its jobs if it is not tied."""
    if not group.tied:
        return list(group.circles.demand)
    return [group.circles.together(rotations)]


def _mean_bps(demand: Demand) -> float:
    return demand.bits * 1e9 / demand.iteration_ns
