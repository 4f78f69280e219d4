"""The upper bound on deadlines that can be met, and paired differences of guarantee rates."""

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.experiments.bound import bound_of, least_gpu_time, relaxed_optimum, speed_hull
from placement.experiments.comparison import PolicyComparison, TraceRun
from placement.experiments.deadline_jobs import rate_difference
from placement.model.throughput import RingAllReduce
from placement.simulator.rates.timed_job import RatesSettings
from placement.traces.deadlines import WORKLOADS, DrsMix

SETUP = RatesSettings(RingAllReduce())


def test_least_gpu_time():
    hull = [(0, Fraction(0)), (1, Fraction(2)), (3, Fraction(3))]
    assert least_gpu_time(hull, 10, 5) == 5  # one GPU all the time
    assert least_gpu_time(hull, 10, 10) == 5  # one GPU half of the time
    assert least_gpu_time(hull, 10, 4) == 8  # 2.5 a ns: half of the time on one GPU, and half on three
    assert least_gpu_time(hull, 10, 3) == math.inf


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_the_hull_lies_above_all_speeds(workload):
    hull = speed_hull(workload, SETUP)
    corners, speeds = [float(gpus) for gpus, _ in hull], [float(speed) for _, speed in hull]
    slopes = np.diff(speeds) / np.diff(corners)
    assert all(slopes > 0)
    assert all(np.diff(slopes) < 0)
    for gpus in range(1, int(corners[-1]) + 1):
        for allocation in (((0, gpus),) if gpus <= 4 else (), ((0, 1), (1, gpus - 1)) if gpus > 1 else ()):
            if allocation:
                rate = float(SETUP.model.samples_per_ns(workload, allocation))
                assert np.interp(gpus, corners, speeds) >= rate * (1 - 1e-12)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20), st.integers(1, 30)), min_size=1, max_size=7)
)
def test_the_relaxed_optimum_is_no_less_than_the_best_choice_of_jobs(drawn):
    drawn.sort()
    jobs = [(start, start + length, demand) for start, length, demand in drawn]

    def feasible(chosen):  # Hall's condition, for two GPUs as one resource
        return all(
            sum(demand for start, end, demand in chosen if low <= start and end <= high) <= 2 * (high - low)
            for low in range(21)
            for high in range(low + 1, 41)
        )

    arrivals, deadlines = (np.array(column, float) for column in list(zip(*jobs, strict=True))[:2])
    found = relaxed_optimum(arrivals, deadlines, [float(demand) for _, _, demand in jobs], 2)
    counts = range(len(jobs), -1, -1)
    best = next(count for count in counts if any(feasible(some) for some in combinations(jobs, count)))
    assert best <= math.floor(found + 1e-6) <= len(jobs)


def test_all_deadlines_of_a_trace_with_little_load_can_be_met():
    assert bound_of(DrsMix(rate=1, urgent=0).trace(3), SETUP).guarantee_rate == 1


def compared(a, b):
    def runs(policy, met):
        return [
            TraceRun("", policy, "t", seed, {"guarantee_rate": count / 10}) for seed, count in enumerate(met)
        ]

    return PolicyComparison("b", {"a": runs("a", a), "b": runs("b", b)})


def test_paired_differences():
    points, half = rate_difference(compared([5, 7, 9], [4, 5, 6]), "a")
    assert points == pytest.approx(20)
    assert half == pytest.approx(4.302653 * 10 / math.sqrt(3), rel=1e-6)
    assert rate_difference(compared([5], [4]), "a")[1] is None
