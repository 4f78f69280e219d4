import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mltcp.core.errors import UsageError
from placement.cassini.circle import MOST_EXACT, MOST_MEASURED, Circles, common_repeats, unified
from tests.unit.placement.cassini.demands import MS, demand, demands, up_down


def test_the_thesis_example_has_a_circle_of_120_units():
    circles = unified([up_down(30, 10), up_down(50, 10)], angles=360)
    assert circles.perimeter_ns == 120 * MS
    assert circles.repeats == (3, 2)
    assert circles.drift_ns == (0, 0)
    # 10 of 120 units are 30 degrees, at the end of each of three, and of each of two, iterations
    assert np.flatnonzero(circles.demand[0]).tolist() == [*range(90, 120), *range(210, 240), *range(330, 360)]
    assert np.flatnonzero(circles.demand[1]).tolist() == [*range(150, 180), *range(330, 360)]


def test_measured_times_share_the_smallest_circle_within_the_tolerance():
    circles = unified([up_down(39.7, 0.5), up_down(60.1, 0.5)], tolerance=0.01)
    assert circles.repeats == (3, 2)
    assert circles.perimeter_ns == round(121.2 * MS)
    assert circles.drift_ns == pytest.approx(((121.2 / 3 - 40.2) * MS, 0), abs=1)
    assert circles.period_ns(0) == pytest.approx(40.4 * MS)


@settings(deadline=None)
@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=6), st.floats(0.001, 0.2))
@example(times=[1, 720, 63756, 63655], tolerance=0.125)
def test_multiples_within_the_tolerance_or_not_more_repeats_than_are_of_use(times, tolerance):
    repeats = common_repeats(times, tolerance)
    assert min(repeats) >= 1
    multiples = [repeat * time for repeat, time in zip(repeats, times, strict=True)]
    exact = len(set(multiples)) == 1
    tight = (max(multiples) - min(multiples)) * max(repeats) <= tolerance * max(multiples)
    assert exact or max(repeats) <= max(MOST_EXACT, max(times) / min(times) + 1)
    if not tight:
        # then nothing within reach is: no multiple of the longest has all the others near it
        longest = max(times)
        for repeat in range(1, MOST_MEASURED * min(times) // longest + 1):
            base = repeat * longest
            most = max(-(-base // time) for time in times)
            near = [min(base % time, -base % time) * most <= tolerance / 2.1 * base for time in times]
            assert not all(near)


@settings(deadline=None)
@given(st.lists(st.sampled_from([20, 30, 40, 60, 120]), min_size=1, max_size=4))
def test_exact_times_have_their_least_common_multiple(times_ms):
    circles = unified([up_down(time / 2, time / 2) for time in times_ms], tolerance=0)
    assert circles.perimeter_ns == math.lcm(*times_ms) * MS
    assert circles.drift_ns == (0,) * len(times_ms)


@settings(deadline=None)
@given(st.lists(demands(), min_size=1, max_size=4))
def test_all_iterations_on_a_circle_look_alike_and_hold_the_jobs_demand(shapes):
    circles = unified(shapes, angles=360)
    assert circles.angles >= 360
    for job, shape in enumerate(shapes):
        repeats = circles.repeats[job]
        assert circles.angles % repeats == 0
        rounds = circles.demand[job].reshape(repeats, -1)
        assert (rounds == rounds[0]).all()
        # at each angle, the demand at its beginning
        step = shape.iteration_ns * repeats // circles.angles
        for angle in range(0, circles.angles // repeats, 7):
            at = angle * shape.iteration_ns * repeats // circles.angles
            value = next(
                phase.bandwidth_bps
                for phase, end in zip(shape.phases, shape.ends_ns, strict=True)
                if at < end
            )
            assert rounds[0][angle] == value, (angle, step)


def test_every_iteration_has_a_dozen_angles_or_more():
    circles = unified([up_down(5, 5), up_down(100, 100)], angles=72)
    assert circles.repeats == (20, 1)
    assert circles.angles >= 12 * 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "demands: expected one or more"),
        (([demand((1, 1))], 1), "angles: expected .*, got 1"),
        (([demand((1, 1))], 72, 1.0), "tolerance: expected .*, got 1.0"),
        (([demand((1, 1))], 72, -0.1), "tolerance: expected .*, got -0.1"),
    ],
)
def test_bad_arguments(arguments, message):
    names = ("angles", "tolerance")
    with pytest.raises(UsageError, match=message):
        unified(arguments[0], **dict(zip(names, arguments[1:], strict=False)))


CIRCLES = st.tuples(st.integers(1, 4), st.integers(1, 6)).flatmap(
    lambda shape: arrays(np.int64, shape, elements=st.integers(0, 9))
)


@pytest.mark.slow
@given(CIRCLES, st.data())
def test_circles_are_rotated_and_added(circles, data):
    rotations = data.draw(arrays(np.int64, len(circles), elements=st.integers(-20, 20)))
    expected = sum(np.roll(row, turn) for row, turn in zip(circles, rotations, strict=True))
    found = Circles(1, circles.shape[1], (1,) * len(circles), (0.0,) * len(circles), circles)
    assert found.together(rotations).tolist() == expected.tolist()
