"""The network with workers that differ."""

import math
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.queueing import Method, solve_mixture, throughput
from placement.model.service_times import ServiceTimes
from tests.unit.placement.model.queueing_strategies import SERVICES, random_services

METHODS = st.sampled_from([Method.EXACT, Method.APPROXIMATE, Method.HYBRID])
MIXTURES = st.lists(st.tuples(SERVICES, st.integers(1, 4)), min_size=1, max_size=4)


def barely_different(service, count):
    """Service times that differ too little to matter, but enough to be classes of their own."""
    return [
        ServiceTimes(
            service.worker_s * (1 + 1e-15 * number), service.uplink_s, service.server_s, service.downlink_s
        )
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("method", "tolerance"), [("exact", 1e-12), ("approximate", 1e-12), ("hybrid", 1e-9)]
)
def test_equal_classes_are_the_recursion_over_one_number(method, tolerance):
    for service in random_services(20, seed=3):
        expected = throughput(service, 9, method=method)
        for counts in ((9,), (4, 5), (2, 3, 4), (1,) * 9):
            classes = list(zip(barely_different(service, len(counts)), counts, strict=True))
            solutions = solve_mixture(classes, method=method)
            assert sum(each.throughput for each in solutions) == pytest.approx(expected, rel=tolerance)
            for each, count in zip(solutions, counts, strict=True):
                assert each.throughput == pytest.approx(expected * count / 9, rel=tolerance)


def test_two_workers_by_hand():
    """Equation 1 for n = (1, 1), from the populations (1, 0) and (0, 1)."""
    fast, slow = ServiceTimes(1, 2, 1, 1), ServiceTimes(4, 3, 1, 2)
    solutions = solve_mixture([(fast, 1), (slow, 1)], method="exact")
    of_fast = 1 / (1 + 2 * (1 + 3 / 10) + 1 * (1 + 1 / 10) + 1 * (1 + 2 / 10))
    of_slow = 1 / (4 + 3 * (1 + 2 / 5) + 1 * (1 + 1 / 5) + 2 * (1 + 1 / 5))
    assert [each.throughput for each in solutions] == pytest.approx([of_fast, of_slow], rel=1e-14)
    solutions = solve_mixture([(fast, 1), (slow, 1)], method="approximate")
    # What an arrival waits for is the other's service, less half of the other's utilisation of it.
    of_fast = 1 / (1 + (2 + 3 * 0.15) + 1.1 + (1 + 2 * 0.1))
    of_slow = 1 / (4 + (3 + 2 * 0.2) + 1.2 + (2 + 1 * 0.1))
    assert [each.throughput for each in solutions] == pytest.approx([of_fast, of_slow], rel=1e-14)


@given(MIXTURES, METHODS)
def test_every_worker_is_somewhere(classes, method):
    for (_, workers), each in zip(classes, solve_mixture(classes, method=method), strict=True):
        assert sum(each.tasks) == pytest.approx(workers, rel=1e-9)


def busiest(solutions):
    """The highest utilisation of a station that workers share."""
    return max(math.fsum(each.utilisation[station] for each in solutions) for station in range(1, 4))


@given(MIXTURES)
def test_no_station_is_used_more_than_all_the_time(classes):
    assert busiest(solve_mixture(classes, method="exact")) <= 1 + 1e-9
    assert busiest(solve_mixture(classes, method="approximate-capped")) <= 1 + 1e-9


def test_hybrid_exceeds_the_capacity_if_workers_differ():
    """A limit of Equation 3 with several classes: the queues that it starts from are not those of one network."""
    slow_and_fast = [(ServiceTimes(0.001, 0, 0, 1), 1), (ServiceTimes(1.001, 0, 0, 1), 2)]
    assert 1 < busiest(solve_mixture(slow_and_fast, method="hybrid")) < 1.05
    long_and_short = [(ServiceTimes(0, 1, 0, 0.01), 1), (ServiceTimes(0, 0.02, 0, 0.2), 4)]
    assert 1.35 < busiest(solve_mixture(long_and_short, method="hybrid")) < 1.45


@given(MIXTURES, METHODS, st.floats(0.01, 100))
def test_scaling_all_times_scales_the_throughputs(classes, method, factor):
    scaled = [(service.scaled(factor), workers) for service, workers in classes]
    for before, after in zip(
        solve_mixture(classes, method=method), solve_mixture(scaled, method=method), strict=True
    ):
        assert after.throughput == pytest.approx(before.throughput / factor, rel=1e-8)


@given(SERVICES, st.floats(1, 5), st.integers(1, 4), st.integers(1, 4), METHODS)
def test_a_worker_that_computes_longer_has_the_lower_throughput(service, factor, fast, slow, method):
    slower = ServiceTimes(service.worker_s * factor, service.uplink_s, service.server_s, service.downlink_s)
    one, other = solve_mixture([(service, fast), (slower, slow)], method=method)
    assert other.throughput / slow <= one.throughput / fast * (1 + 1e-9)


BARELY_SETTLING = [
    (ServiceTimes(0, 0, 0, 1.2053695204276043), 4),
    (ServiceTimes(0, 0, 0.125, 0), 1),
    (ServiceTimes(0, 0, 0.00390625, 0), 1),
]


@given(MIXTURES, METHODS)
@example(BARELY_SETTLING, "hybrid")
def test_the_order_of_classes_does_not_matter(classes, method):
    forward = solve_mixture(classes, method=method)
    backward = solve_mixture(classes[::-1], method=method)[::-1]
    assert [each.throughput for each in forward] == pytest.approx(
        [each.throughput for each in backward], rel=1e-8
    )


def test_4096_populations_take_less_than_2_s():
    classes = [(service, 1) for service in random_services(12)]
    solve_mixture(classes[:1])
    begin = time.process_time()
    solve_mixture(classes)
    assert time.process_time() - begin < 2


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([], "classes: expected 1 or more, got none"),
        ([(ServiceTimes(1, 1, 1, 1), 0)], "workers: expected 1 or more, got 0"),
        (
            [(service, 1) for service in random_services(30)],
            "classes: expected at most 4194304 populations (the product of workers + 1), got 1073741824",
        ),
    ],
)
def test_bad_classes(classes, message):
    with pytest.raises(UsageError) as raised:
        solve_mixture(classes)
    assert str(raised.value) == message
