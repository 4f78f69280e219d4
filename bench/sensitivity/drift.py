"""Measurements during which the machine, or a layout alone, was not as usual: to be made once more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median, pstdev

from bench.sensitivity.plan import Point, SensitivityPlan
from bench.sensitivity.run import SensitivityRun

DRIFT = 0.03
"""A reference that differs by more from the median of all voids the pairs that follow it."""

UNSTEADY = 0.02
"""A layout alone whose measurements have a larger coefficient of variation is measured again."""

Runs = Mapping[str, SensitivityRun]


def second_attempts(plan: SensitivityPlan, points: Sequence[Point], runs: Runs) -> dict[Point, Point]:
    """The points of void blocks, references among them, and of unsteady layouts, with those that take their place.

    Args:
        plan: that was measured.
        points: of the plan, in its order.
        runs: of all of them, by their keys.
    """
    again = _unsteady(plan, points, runs) | _in_void_blocks(plan, points, runs)
    return {point: replace(point, attempt=1) for point in points if point in again}


def drifts(references: Sequence[SensitivityRun]) -> list[float]:
    """How far the iteration of each measurement of the reference is from the median of all, as a share."""
    times = [median(run.iterations_s[0]) for run in references]
    return [abs(time / median(times) - 1) for time in times]


def variation(means: Sequence[float]) -> float:
    """The coefficient of variation of the measurements of a layout alone, by the mean of each."""
    return pstdev(means) / fmean(means)


def _unsteady(plan: SensitivityPlan, points: Sequence[Point], runs: Runs) -> set[Point]:
    alone: dict[tuple[object, ...], list[Point]] = {}
    for point in points:
        if len(point.layouts) == 1 and point.block is None:
            alone.setdefault((point.control, point.layouts), []).append(point)
    return {
        point
        for each in alone.values()
        if variation([fmean(runs[plan.key(point)].iterations_s[0]) for point in each]) > UNSTEADY
        for point in each
    }


def _in_void_blocks(plan: SensitivityPlan, points: Sequence[Point], runs: Runs) -> set[Point]:
    references: dict[str, list[Point]] = {}
    for point in points:
        if point.block is not None:
            references.setdefault(point.control, []).append(point)
    drifted = {
        point
        for each in references.values()
        for point, drift in zip(each, drifts([runs[plan.key(point)] for point in each]), strict=True)
        if drift > DRIFT
    }
    reference: dict[str, Point] = {}
    found = set()
    for point in points:
        if point.block is not None:
            reference[point.control] = point
        if reference.get(point.control) in drifted:
            found.add(point)
    return found
