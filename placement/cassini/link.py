"""The fit of the jobs of one link, whether or not their iteration times have a common multiple.

Jobs with a common multiple share a unified circle, and can be rotated against each other (Table 4.1). Jobs without one
pass through every relative position: on the circle of their least common multiple, however large, the excess is the
same for all rotations, that of independent demands. So the score of the link is 1 minus the expected excess of its
circles, each at a random angle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from mltcp.core.demand import Demand
from placement.cassini.circle import ANGLES, TOLERANCE, Circles, groups, unified
from placement.cassini.compatibility import EFFORT, Compatibility, compatibility
from placement.cassini.excess import expected_excess

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
