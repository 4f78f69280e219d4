"""The cost of all-reduces: Table I, Eq. 2 and Eq. 5, and the threshold of Theorem 2."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.job import PUBLISHED, Contention
from tests.unit.placement.model.all_reduce import AllReduce

positive = st.fractions(Fraction(1, 1000), 1000)
contentions = st.builds(Contention, st.fractions(0, 10**6), positive, st.fractions(0, 1000))


def test_eq_5_with_the_published_constants():
    # 100 MB: 85.6 ms alone; 2 * 85.6 + 23.5 for two; 8 * 85.6 + 7 * 23.5 for eight.
    assert PUBLISHED.duration_ns(10**8) == 85_600_000
    assert PUBLISHED.duration_ns(10**8, 2) == 194_700_000
    assert PUBLISHED.duration_ns(10**8, 8) == 849_300_000
    assert PUBLISHED.pace_ns_per_byte(2) == Fraction("1.947")


def test_the_published_acceptance():
    assert PUBLISHED.acceptance == Fraction(856, 2 * (856 + 235))
    assert float(PUBLISHED.acceptance) == pytest.approx(0.3923, abs=5e-5)
    assert Contention(Fraction(0), Fraction(1), Fraction(0)).acceptance == Fraction(1, 2)


@given(contentions, st.integers(0, 10**9), st.integers(1, 20))
def test_the_laws_of_eq_5(contention, size, transfers):
    alone, together = contention.duration_ns(size), contention.duration_ns(size, transfers)
    assert alone == contention.latency_ns + contention.ns_per_byte * size
    assert contention.duration_ns(0, transfers) == contention.latency_ns
    # To share is never better than to take turns, and eta is what it costs.
    lost = (transfers - 1) * contention.penalty_ns_per_byte * size
    assert together - contention.latency_ns - lost == transfers * (alone - contention.latency_ns)


@given(contentions, st.integers(1, 10**9), st.integers(1, 10**9))
def test_the_acceptance_is_where_starting_at_once_ends_both_as_soon_on_average(contention, new, left):
    """Theorem 2, without latency: C2 with t = 0 against waiting for the other."""
    b, pace = contention.ns_per_byte, contention.pace_ns_per_byte(2)
    small, large = sorted((new, left))
    at_once = pace * small + (pace * small + b * (large - small))
    in_turn = b * left + b * (left + new)
    if new < left:
        assert (at_once < in_turn) == (Fraction(new, left) < contention.acceptance)
    assert contention.acceptance <= Fraction(1, 2)


# Alpha, beta and gamma chosen so that every term shows in a digit of its own.
@pytest.mark.parametrize(
    ("algorithm", "nodes", "latency", "per_byte"),
    [
        (AllReduce.BINARY_TREE, 8, 2 * 3, (2 * 100 + 1) * 3),
        (AllReduce.RECURSIVE_DOUBLING, 8, 3, (100 + 1) * 3),
        (AllReduce.RECURSIVE_HALVING_AND_DOUBLING, 8, 2 * 3, 2 * 100 - (2 * 100 + 1) / 8 + 1),
        (AllReduce.RING, 8, 2 * 7, 2 * 7 / 8 * 100 + 7 / 8),
        (AllReduce.RING, 6, 2 * 5, 2 * 5 / 6 * 100 + 5 / 6),
        (AllReduce.RING, 2, 2, 100 + 1 / 2),
        (AllReduce.BINARY_TREE, 2, 2, 201),
        (AllReduce.RECURSIVE_DOUBLING, 1024, 10, 1010),
    ],
)
def test_table_1(algorithm, nodes, latency, per_byte):
    assert algorithm.cost(nodes, 1, 100, 1) == pytest.approx((latency, per_byte))


def test_the_ring_sends_what_halving_and_doubling_sends():
    for nodes in (2, 4, 64):
        ring = AllReduce.RING.cost(nodes, 1, 100, 1)
        halving = AllReduce.RECURSIVE_HALVING_AND_DOUBLING.cost(nodes, 1, 100, 1)
        assert ring[1] == pytest.approx(halving[1])
        assert ring[0] >= halving[0]


@pytest.mark.parametrize(
    ("algorithm", "nodes"),
    [(each, nodes) for each in AllReduce for nodes in (-2, 0, 1)]
    + [(each, nodes) for each in AllReduce if each is not AllReduce.RING for nodes in (3, 6, 12)],
)
def test_nodes_that_cannot_be(algorithm, nodes):
    with pytest.raises(
        UsageError, match=f"{algorithm.value}: expected a power of two of nodes, .*, got {nodes}"
    ):
        algorithm.cost(nodes, 1, 1, 1)


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ((0, 0, 0), "b: expected more than 0 ns/byte, got 0"),
        ((0, -1, 0), "b: expected more than 0 ns/byte, got -1"),
        ((-1, 1, 0), "a and eta: expected 0 or more, got -1 ns"),
        ((0, 1, -2), "expected 0 or more, got 0 ns and -2 ns/byte"),
    ],
)
def test_constants_that_cannot_be(constants, message):
    with pytest.raises(UsageError, match=message):
        Contention(*map(Fraction, constants))
