"""The expected excess of demands that know nothing of each other, against every rotation of each."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from placement.cassini.search import expected_excess

ROWS = st.integers(1, 6).flatmap(lambda angles: arrays(np.int64, angles, elements=st.integers(0, 9)))


@pytest.mark.slow
@given(st.lists(ROWS, min_size=1, max_size=4), st.integers(1, 20))
def test_it_is_the_mean_over_all_ways_to_lie_beside_each_other(demands, capacity):
    every = [sum(values) for values in itertools.product(*demands)]
    mean = sum(max(0, value - capacity) for value in every) / len(every)
    assert expected_excess(demands, capacity) == pytest.approx(mean)


def test_of_nothing_there_is_none():
    assert expected_excess([], 10) == 0


def test_more_values_than_are_kept_apart_are_still_right_on_average():
    # 40 demands of which each doubles the number of distinct sums: a binomial in disguise
    numbers = np.random.default_rng(3)
    demands = [np.array([0, value]) for value in numbers.integers(1, 10**9, 40)]
    mean = sum(each.mean() for each in demands)
    assert expected_excess(demands, 1) == pytest.approx(mean, rel=1e-6)
    drawn = sum(numbers.choice(each, 400_000) for each in demands)
    beyond = np.maximum(drawn - mean, 0).mean()
    assert expected_excess(demands, round(mean)) == pytest.approx(beyond, rel=0.01)
