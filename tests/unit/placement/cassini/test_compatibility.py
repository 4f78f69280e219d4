import itertools
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.cassini.circle import Circles, unified
from placement.cassini.compatibility import compatibility, score_at, score_link
from tests.unit.placement.cassini.demands import MS, demand, demands, up_down


def exhaustive(circles, capacity):
    """The best score of Table 4.1 by trying all rotations of all jobs but one."""
    angles = circles.angles
    rolled = [np.stack([np.roll(row, shift) for shift in range(angles)]) for row in circles.demand]
    domains = [angles // repeats for repeats in circles.repeats]
    least = None
    for rotations in itertools.product(*(range(domain) for domain in domains[1:-1])):
        base = circles.demand[0] - capacity
        for job, rotation in enumerate(rotations):
            base = base + rolled[job + 1][rotation]
        if len(domains) > 1:
            base = base + rolled[-1][: domains[-1]]
        excess = np.maximum(base, 0).sum(axis=-1).min()
        least = excess if least is None else min(least, excess)
    return 1 - int(least) / (angles * capacity)


def test_the_thesis_example_is_fully_compatible_at_thirty_degrees():
    jobs = [up_down(30, 10), up_down(50, 10)]
    found = score_link(jobs, 100, angles=360)
    assert found.score == found.bound == 1
    assert found.proven
    # the circles as they are collide at the end of the turn; a rotation by 30 degrees sets them apart
    circles = unified(jobs, angles=360)
    assert score_at(circles, 100, (0, 0)) < 1
    assert score_at(circles, 100, (30, 0)) == 1
    assert sorted(found.rotations) == [0, 30]
    assert sorted(found.shifts_ns) == [0, 10 * MS]


def test_the_score_is_one_minus_the_average_excess_over_the_capacity():
    # two jobs that send all the time at 80 of 100: at every angle 60 too much
    assert score_link([demand((10, 80)), demand((10, 80))], 100).score == pytest.approx(0.4)
    # five of them: negative, as 4.3.6 says
    assert score_link([demand((10, 80))] * 5, 100).score == pytest.approx(-2)
    # a job alone that asks for more than there is
    assert score_link([demand((10, 0), (10, 150))], 100).score == pytest.approx(0.75)


def test_rotations_leave_room_for_drift_on_both_sides():
    # two jobs that send a quarter of the time each: right opposite to each other, not back to back
    found = score_link([up_down(75, 25), up_down(75, 25)], 100)
    assert sorted(found.rotations) == [0, 36]
    # three of a sixth
    found = score_link([up_down(250, 50)] * 3, 100)
    assert found.score == 1
    first, second, third = sorted(found.rotations)
    assert min(second - first, third - second, 72 - third + first) >= 18


def random_circles(numbers, jobs, angles):
    """Any demands around circles that hold 1, 2 or 3 equal iterations."""
    repeats = [numbers.choice((1, 1, 2, 3)) for _ in range(jobs)]
    rows = []
    for each in repeats:
        length, one = angles // each, []
        while len(one) < length:
            level = numbers.choice((0, 0, numbers.randint(1, 120)))
            one += [level] * numbers.randint(1, max(1, length // 2))
        rows.append(one[:length] * each)
    return Circles(angles * MS, angles, tuple(repeats), (0.0,) * jobs, np.array(rows, np.int64))


@pytest.mark.slow
@pytest.mark.parametrize(("jobs", "instances"), [(2, 200), (3, 200), (4, 100)])
def test_equal_to_exhaustive_search_over_72_angles(jobs, instances):
    numbers = random.Random(jobs)
    for _ in range(instances):
        circles = random_circles(numbers, jobs, 72)
        found = compatibility(circles, 100)
        assert found.proven
        assert found.score == exhaustive(circles, 100)
        assert score_at(circles, 100, found.rotations) == found.score


@settings(max_examples=60, deadline=None)
@given(st.lists(demands(), min_size=1, max_size=8), st.integers(20, 200))
def test_a_score_is_reached_and_never_above_its_bound(shapes, capacity):
    circles = unified(shapes)
    found = compatibility(circles, capacity)
    assert score_at(circles, capacity, found.rotations) == found.score <= found.bound <= 1
    assert found.proven == (found.score == found.bound)
    for job, shape in enumerate(shapes):
        # Eq. 4.4 and 4.5
        assert (
            0 <= found.rotations[job] * circles.repeats[job] < circles.angles
            or circles.angles % circles.repeats[job]
        )
        assert 0 <= found.shifts_ns[job] < circles.period_ns(job)
        assert shape.iteration_ns <= circles.period_ns(job) + 1e-3


@settings(max_examples=60, deadline=None)
@given(st.lists(demands(), min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_scores_do_not_depend_on_the_order_of_the_jobs(shapes, numbers):
    first = score_link(shapes, 100)
    order = list(range(len(shapes)))
    numbers.shuffle(order)
    second = score_link([shapes[each] for each in order], 100)
    assert (first.score, first.bound) == (second.score, second.bound)
    # jobs whose circles differ keep their own shifts; those that look alike at all angles may change places
    circles = unified(shapes)
    looks = [(each.tobytes(), times) for each, times in zip(circles.demand, circles.repeats, strict=True)]
    kinds = Counter((looks[job], shift) for job, shift in enumerate(first.shifts_ns))
    assert kinds == Counter((looks[order[at]], shift) for at, shift in enumerate(second.shifts_ns))


def test_little_effort_still_gives_a_bound():
    numbers = random.Random(7)
    for _ in range(20):
        circles = random_circles(numbers, 5, 72)
        little, much = compatibility(circles, 100, effort=0), compatibility(circles, 100)
        assert little.score <= much.score <= much.bound <= little.bound


def test_a_capacity_that_cannot_be():
    with pytest.raises(UsageError, match="capacity_bps: expected more than 0, got 0"):
        score_link([up_down(1, 1)], 0)
