"""Corrects the model of a job's speed by the iteration times that its runs have had, and says how sure it is.

Each term of a model is its submitted value times an unknown factor. Before any measurement the logarithm of a factor is
normal around 0 with deviation `PRIOR`; the logarithm of a measured time is normal around that of the model, with the
error of its median and `MODEL_ERROR`. The fit is the most probable factors, by Gauss-Newton steps in logarithms; their
covariance gives the intervals. So one measured size moves the terms that it depends on, and many determine them all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from mltcp.core.errors import UsageError
from placement.model.job_speed import JobSpeed

PRIOR = 0.5
"""A submitted term is taken to be right within a factor of e^(+-1) in 95 % of the cases."""

MODEL_ERROR = 0.005
"""The deviation, as a fraction, by which a model misses times that are known exactly."""

QUANTILE = 1.96
"""Of the normal distribution: 95 % lie within so many deviations."""

_STEPS = 10
_LONGEST_STEP = 1.0
_CONVERGED = 1e-6
_DIFFERENCE = 1e-3
_MEDIAN_ERROR = 1.2533 * 1.4826
"""The standard error of a median of n, in median absolute deviations over sqrt(n), for normal noise."""


@dataclass(frozen=True)
class MeasuredTime:
    """The iteration time of a job on a number of slots.

    Attributes:
        slots: their number.
        one_node: whether they were all on one host.
        time_ns: the median.
        error: its standard error, as a fraction of it.
        count: of iterations.
    """

    slots: int
    one_node: bool
    time_ns: float
    error: float
    count: int

    @classmethod
    def of(cls, slots: int, one_node: bool, durations_ns: Sequence[int]) -> MeasuredTime:
        """The median of these iterations.

        Raises:
            UsageError: there are none, or one took no time.
        """
        if not durations_ns or min(durations_ns) <= 0:
            raise UsageError(f"durations: expected one or more above 0, got {list(durations_ns)[:8]}")
        middle = median(durations_ns)
        spread = median(abs(each - middle) for each in durations_ns)
        error = _MEDIAN_ERROR * spread / math.sqrt(len(durations_ns)) / middle
        return cls(slots, one_node, middle, error, len(durations_ns))

    @property
    def interval_ns(self) -> tuple[float, float]:
        """The 95 % interval of the median."""
        return _interval(self.time_ns, self.error)


@dataclass(frozen=True, eq=False)
class SpeedFit:
    """A corrected model.

    Attributes:
        speed: the model with its most probable terms.
        positions: in its terms, of those that measurements depend on; the others are as submitted.
        covariance: of the logarithms of these.
    """

    speed: JobSpeed
    positions: tuple[int, ...]
    covariance: np.ndarray

    def interval_ns(self, slots: int, one_node: bool) -> tuple[float, float]:
        """The 95 % interval of the time of an iteration, without the noise of single iterations."""
        involved = self.speed.positions(slots)
        row = _derivatives(self.speed, dict.fromkeys(involved, 0.0), slots, one_node)
        covariance = np.eye(len(involved)) * PRIOR**2
        measured = [each for each in involved if each in self.positions]
        here, there = (
            [where.index(each) for each in measured] for where in (tuple(involved), self.positions)
        )
        covariance[np.ix_(here, here)] = self.covariance[np.ix_(there, there)]
        return _interval(
            self.speed.iteration_ns(slots, one_node), math.sqrt(row @ covariance @ row + MODEL_ERROR**2)
        )


def fitted(submitted: JobSpeed, measured: Sequence[MeasuredTime]) -> SpeedFit:
    """The submitted model corrected by measured times."""
    positions = tuple(sorted({each for point in measured for each in submitted.positions(point.slots)}))
    logs = np.zeros(len(positions))
    covariance = np.eye(len(positions)) * PRIOR**2
    times = np.log([each.time_ns for each in measured])
    weights = np.array([1 / (each.error**2 + MODEL_ERROR**2) for each in measured])
    for _ in range(_STEPS if measured else 0):
        factors = dict(zip(positions, logs.tolist(), strict=True))
        places = [(each.slots, each.one_node) for each in measured]
        model = np.log([_scaled(submitted, factors).iteration_ns(*place) for place in places])
        rows = np.array([_derivatives(submitted, factors, *place) for place in places])
        covariance = np.linalg.inv(np.eye(len(positions)) / PRIOR**2 + (rows.T * weights) @ rows)
        step = covariance @ ((rows.T * weights) @ (times - model + rows @ logs)) - logs
        logs = logs + np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)
        if np.abs(step).max() < _CONVERGED:
            break
    return SpeedFit(
        _scaled(submitted, dict(zip(positions, logs.tolist(), strict=True))), positions, covariance
    )


def _scaled(speed: JobSpeed, factors: Mapping[int, float]) -> JobSpeed:
    """The model with the terms at these positions multiplied by e to these powers; terms of 0 stay 0."""
    terms = list(speed.terms)
    for position, log in factors.items():
        if terms[position]:
            terms[position] = max(1, round(terms[position] * math.exp(log)))
    return speed.with_terms(tuple(terms))


def _derivatives(speed: JobSpeed, factors: Mapping[int, float], slots: int, one_node: bool) -> np.ndarray:
    """Of the logarithm of the time, by each of the factors' logarithms."""
    found = []
    for position, log in factors.items():
        above, below = (
            _scaled(speed, {**factors, position: log + sign * _DIFFERENCE}).iteration_ns(slots, one_node)
            for sign in (1, -1)
        )
        found.append(math.log(above / below) / (2 * _DIFFERENCE))
    return np.array(found)


def _interval(time_ns: float, deviation: float) -> tuple[float, float]:
    factor = math.exp(QUANTILE * deviation)
    return time_ns / factor, time_ns * factor
