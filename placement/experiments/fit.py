"""The constants of eq. 5 of the Ada-SRSF paper, T = a + k*b*M + (k-1)*eta*M, from measurements.

The squares of relative errors are minimised, because sizes and numbers of jobs, and so the times, vary by factors.
No constant may be negative.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, groupby
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from mltcp.core.errors import UsageError
from placement.experiments.measurements import Measurement, read_measurements
from placement.experiments.statistics import CONFIDENCE, two_sided
from placement.model.job import Contention

__all__ = ["Constant", "Fit", "Measurement", "fit", "read_measurements"]

_A, _B, _ETA = 0, 1, 2
# Where the measurements do not tell the constants apart, they are explained by b if possible, then by a.
_PREFERENCE = (_B, _A, _ETA)
_NS_PER_US = 1000
_COLLINEAR = 30.0
_POOR = 0.15
_DIGITS = 6

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Constant:
    """A constant of eq. 5, estimated from the measurements.

    Attributes:
        value: the best one that is not negative.
        standard_error: None where the measurements do not determine the constant, or are too few to tell.
        low: of the 95 % confidence interval, which holds no negative values; None where there is no standard error.
        high: likewise.
    """

    value: float
    standard_error: float | None
    low: float | None
    high: float | None

    @property
    def identified(self) -> bool:
        """Whether the interval, before negative values are cut off, is narrower than the value."""
        return self.high is not None and 2 * (self.high - self.value) < self.value


@dataclass(frozen=True)
class Fit:
    """Eq. 5 fitted to measurements.

    Attributes:
        latency_ns: a.
        ns_per_byte: b.
        penalty_ns_per_byte: eta.
        r_squared: the share of the squared deviations from the (weighted) mean that eq. 5 explains; None where all
            times are the same.
        relative_error: root mean square of (measured - fitted) / measured.
        measurements: how many there were.
        jobs: the numbers of concurrent all-reduces among them.
        sizes_bytes: the sizes among them.
        points: how many combinations of the two; repeats of a point are averaged first.
        condition: the condition index of the design: how hard the three are to tell apart (from 30 on, too hard).
        warnings: what a reader of the constants must know, a sentence each.
    """

    latency_ns: Constant
    ns_per_byte: Constant
    penalty_ns_per_byte: Constant
    r_squared: float | None
    relative_error: float
    measurements: int
    jobs: tuple[int, ...]
    sizes_bytes: tuple[int, ...]
    points: int
    condition: float
    warnings: tuple[str, ...]

    @property
    def penalty_identified(self) -> bool:
        """Whether the measurements determine eta."""
        return self.penalty_ns_per_byte.identified

    def duration_us(self, jobs: int, size_bytes: int) -> float:
        """Eq. 5: the time in microseconds of each of `jobs` concurrent all-reduces of `size_bytes`."""
        pace = jobs * self.ns_per_byte.value + (jobs - 1) * self.penalty_ns_per_byte.value
        return (self.latency_ns.value + size_bytes * pace) / _NS_PER_US

    def contention(self) -> Contention:
        """The model that the simulator takes, each constant to six digits.

        Raises:
            UsageError: the fitted b is 0.
        """
        constants = (self.latency_ns, self.ns_per_byte, self.penalty_ns_per_byte)
        return Contention(*(Fraction(f"{each.value:.{_DIGITS}g}") for each in constants))


def fit(measurements: Sequence[Measurement]) -> Fit:
    """The constants of eq. 5 that come closest to the measurements, whatever their order.

    Repeats of a point count as one, their mean: how far a point lies off eq. 5 is no smaller for being measured
    often. The intervals are as wide as those of a fit without bounds, so that they are of use where a
    bound is reached, too.

    Raises:
        UsageError: there is no measurement.
    """
    if not measurements:
        raise UsageError("fit: there is no measurement: at least one is needed")
    points = _points(measurements)
    design = _design(points)
    target = np.ones(len(points))
    solution = non_negative(design, target, _PREFERENCE)
    squares = float(np.sum((target - design @ solution) ** 2))
    constants = _constants(solution, design, squares)
    condition = condition_index(design)
    return Fit(
        *constants,
        r_squared=_r_squared(points, squares),
        relative_error=math.sqrt(squares / len(points)),
        measurements=len(measurements),
        jobs=tuple(sorted({point.jobs for point in points})),
        sizes_bytes=tuple(sorted({point.size_bytes for point in points})),
        points=len(points),
        condition=condition,
        warnings=_warnings(points, constants, condition, math.sqrt(squares / len(points))),
    )


def _points(measurements: Sequence[Measurement]) -> list[Measurement]:
    def point(measurement: Measurement) -> tuple[int, int]:
        return measurement.jobs, measurement.size_bytes

    # Sorted by time as well: a sum of floats depends on their order.
    ordered = sorted(measurements, key=lambda each: (*point(each), each.latency_us))
    return [
        Measurement(jobs, size, fmean(each.latency_us for each in repeats))
        for (jobs, size), repeats in groupby(ordered, point)
    ]


def _design(points: Sequence[Measurement]) -> Array:
    """The design matrix: a row a point with the factors of a, b and eta over the time in ns; its target is 1."""
    rows = [(1, each.jobs * each.size_bytes, (each.jobs - 1) * each.size_bytes) for each in points]
    times_ns = [each.latency_us * _NS_PER_US for each in points]
    return np.array(rows, dtype=np.float64) / np.array(times_ns)[:, None]


def _constants(solution: Array, design: Array, squares: float) -> tuple[Constant, Constant, Constant]:
    degrees = len(design) - rank(design)
    if degrees < 1:
        errors = np.full(len(solution), np.inf)
        reach = 0.0
    else:
        errors = standard_errors(design, squares / degrees)
        reach = two_sided(CONFIDENCE, degrees)
    a, b, eta = (
        _constant(float(value), float(error), reach) for value, error in zip(solution, errors, strict=True)
    )
    return a, b, eta


def _constant(value: float, error: float, reach: float) -> Constant:
    if not math.isfinite(error):
        return Constant(value, None, None, None)
    return Constant(value, error, max(0.0, value - reach * error), value + reach * error)


def _r_squared(points: Sequence[Measurement], squares: float) -> float | None:
    times = np.array([each.latency_us for each in points])
    mean = np.sum(1 / times) / np.sum(1 / times**2)
    total = float(np.sum((1 - mean / times) ** 2))
    return None if math.isclose(total, 0.0, abs_tol=1e-24) else 1 - squares / total


# -- what a reader must know -------------------------------------------------------------------------------------------


def _warnings(
    points: Sequence[Measurement],
    constants: tuple[Constant, Constant, Constant],
    condition: float,
    rms: float,
) -> tuple[str, ...]:
    _, pace, penalty = constants
    found = _design_warnings(points, condition)
    if penalty.high is not None and not penalty.identified:
        found.append(_penalty_warning(penalty))
    found += _bound_warnings(points, constants)
    if pace.value == 0:
        found.append("b is 0: the times do not grow with the size, which eq. 5 does not describe")
    elif pace.high is not None and not pace.identified:
        found.append("b is poorly identified: its 95 % confidence interval is wider than b itself")
    if rms > _POOR:
        found.append(
            f"eq. 5 misses the measured times by {rms:.0%} (root mean square): it describes them poorly"
        )
    return tuple(found)


def _design_warnings(points: Sequence[Measurement], condition: float) -> list[str]:
    jobs, sizes = {each.jobs for each in points}, {each.size_bytes for each in points}
    found = []
    if len(jobs) == 1:
        which = f"every measurement is of {min(jobs)} at a time"
        found.append(f"eta is not identified: {which}; measure 1 and several concurrent all-reduces")
    if len(sizes) == 1:
        found.append("a cannot be told from b and eta: there is one size only; measure two or more")
    if condition == math.inf and len(jobs) > 1 and len(sizes) > 1:
        found.append("a, b and eta are not identified: several sets of them fit as well; measure more points")
    if _COLLINEAR <= condition < math.inf:
        found.append(
            f"a, b and eta are hard to tell apart (condition index {condition:.0f}): measure 1 all-reduce as well "
            "as many at a time, and sizes further apart"
        )
    if len(points) <= rank(_design(points)):
        found.append(
            f"nothing tells how good the constants are: {len(points)} points are too few, 4 are needed"
        )
    return found


def _penalty_warning(penalty: Constant) -> str:
    interval = f"its 95 % confidence interval is {penalty.low:.3g} to {penalty.high:.3g} ns/byte"
    why = "which includes 0" if penalty.low == 0 else "wider than eta itself"
    return f"eta is not identified: {interval}, {why}"


def _bound_warnings(
    points: Sequence[Measurement], constants: tuple[Constant, Constant, Constant]
) -> Iterator[str]:
    """Warnings about constants whose unbounded estimate is so negative that 0 lies outside its interval."""
    free = unbounded(_design(points), np.ones(len(points)))
    for name, unit, at in (("a", "ns", _A), ("eta", "ns/byte", _ETA)):
        reach = (constants[at].high or 0) - constants[at].value
        if free is not None and free[at] + reach < 0 < reach:
            yield (
                f"{name} is held at 0: by least squares alone it would be {free[at]:.3g} {unit}, which eq. 5 does not "
                "describe"
            )


# -- non-negative linear least squares for few unknowns, with standard errors ------------------------------------------
# The linear algebra is numpy's. `scipy.optimize.nnls` would not do: it takes any of several equally good solutions, and
# a fit must be the same whatever the order of its columns and report which constants the data determine.

# Relative to the largest singular value; smaller ones are rounding errors.
_RANK_TOLERANCE = 1e-10
_NULL_SPACE_TOLERANCE = 1e-6
# Relative to the data, squared: an unknown must explain more than this to be used at all.
_TIE = 1e-20
_RELATIVE_TIE = 1e-9


def non_negative(design: Array, target: Array, preference: Sequence[int]) -> Array:
    """The x >= 0 that minimises |design @ x - target|.

    Every set of unknowns that may be above zero is tried, so that the result is exact; the effort doubles with
    each unknown. Where several solutions are as good, the one that uses few unknowns is taken, those first that
    come first in `preference`.
    """
    best = np.zeros(design.shape[1])
    least = scale = float(target @ target)
    for used in _subsets(preference):
        solution = _solve(design, target, used)
        if solution is None:
            continue
        residual = target - design @ solution
        squares = float(residual @ residual)
        if squares < least * (1 - _RELATIVE_TIE) - scale * _TIE:
            best, least = solution, squares
    return best


def unbounded(design: Array, target: Array) -> Array | None:
    """The x of any sign that minimises |design @ x - target|; None unless it is unique."""
    columns, norms = _scaled(design)
    if rank(design) < design.shape[1]:
        return None
    return np.asarray(np.linalg.lstsq(columns, target, rcond=None)[0] / norms)


def standard_errors(design: Array, variance: float) -> Array:
    """Standard errors of the unknowns of design @ x = target, for independent errors of the target with this variance.

    Infinite for an unknown that the design leaves undetermined; those of the others are valid nevertheless.
    """
    scaled, norms = _scaled(design)
    # Rows of zeros tell nothing; with as many rows as unknowns, every direction has its singular value.
    padding = np.zeros((max(0, design.shape[1] - len(design)), design.shape[1]))
    _, values, directions = np.linalg.svd(np.vstack([scaled, padding]), full_matrices=False)
    known = values > _RANK_TOLERANCE * values[0]
    undetermined = np.any(np.abs(directions[~known]) > _NULL_SPACE_TOLERANCE, axis=0)
    squares = np.sum((directions[known] / values[known, None]) ** 2, axis=0) * variance / norms**2
    return np.where(undetermined, np.inf, np.sqrt(squares))


def condition_index(design: Array) -> float:
    """The condition index of the columns, each scaled to length 1: 1 for orthogonal, infinite for collinear ones.

    From about 30 on, estimates are of little use (Belsley, Kuh and Welsch, Regression Diagnostics, 1980).
    """
    values = np.linalg.svd(_scaled(design)[0], compute_uv=False)
    exactly = len(values) < design.shape[1] or values[-1] <= _RANK_TOLERANCE * values[0]
    return float("inf") if exactly else float(values[0] / values[-1])


def rank(design: Array) -> int:
    """The rank of the design: the number of unknowns, or combinations of them, that it determines."""
    values = np.linalg.svd(_scaled(design)[0], compute_uv=False)
    return int(np.sum(values > _RANK_TOLERANCE * values[0]))


def _subsets(preference: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for size in range(1, len(preference) + 1):
        yield from combinations(preference, size)


def _solve(design: Array, target: Array, used: tuple[int, ...]) -> Array | None:
    """The least-squares solution with the other unknowns at zero; None if it is negative or not the only one."""
    found = unbounded(design[:, used], target)
    if found is None or np.any(found < 0):
        return None
    solution = np.zeros(design.shape[1])
    solution[list(used)] = found
    return solution


def _scaled(design: Array) -> tuple[Array, Array]:
    norms = np.linalg.norm(design, axis=0)
    norms[norms == 0] = 1.0
    return design / norms, norms
