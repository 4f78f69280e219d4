"""Models of how fast a job is on any number of slots, and their correction by measured times."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.job_speed import ParameterServerSpeed, RingSpeed, TableSpeed
from placement.model.speed_fit import MODEL_ERROR, PRIOR, QUANTILE, MeasuredTime, fitted
from placement.model.throughput import RingAllReduce, Workload
from placement.policies.schedulers.response.widths import hell_width, knee_width

MS = 10**6
RING = RingSpeed(100 * MS, 10_000_000, inside_bytes_per_s=10**9, between_bytes_per_s=10**8)
EIGHT_MB = ParameterServerSpeed(29 * MS, 72 * MS, 18 * MS, 72 * MS)
ALEXNET = ParameterServerSpeed(5_696 * MS, 1_992 * MS, 101_302, 1_992 * MS)


def test_a_ring_takes_the_times_of_equation_5():
    assert [RING.iteration_ns(slots, True) / MS for slots in (1, 2, 4)] == [100, 110, 115]
    assert [RING.iteration_ns(slots, False) / MS for slots in (1, 2, 4)] == [100, 200, 250]


@given(st.integers(1, 10**6), st.integers(1, 10**12), st.integers(1, 64), st.booleans())
def test_a_ring_is_the_model_of_the_simulator(parameters, compute_ns, slots, one_node):
    workload = Workload("w", parameters, batch=1, compute_ns=compute_ns, samples=1, epochs=1)
    speed = RingSpeed(compute_ns, 4 * parameters)
    assert speed.iteration_ns(slots, one_node) == RingAllReduce().step_ns(workload, slots, one_node)


def test_workers_of_a_parameter_server_have_the_cycles_of_the_hybrid_model():
    known = (5.236, 9.098, 11.377, 12.066, 12.355, 12.534)
    found = [workers * 1e9 / EIGHT_MB.iteration_ns(workers, False) for workers in range(1, 7)]
    assert found == pytest.approx(known, abs=6e-4)


def test_a_parameter_server_has_the_widths_of_the_paper():
    rates = [0.0, *(workers / ALEXNET.iteration_ns(workers, True) for workers in range(1, 101))]
    assert rates[100] / rates[1] == pytest.approx(4.81, abs=0.005)
    assert (hell_width(rates, 100), knee_width(rates, 100, 0.01)) == (5, 9)


def test_a_table_has_its_times_and_no_others():
    table = TableSpeed((5, 7))
    assert [table.iteration_ns(slots, one_node) for slots, one_node in ((1, True), (2, False))] == [5, 7]
    with pytest.raises(UsageError, match="slots: expected 1 to 2, as in the table of speeds, got 3"):
        table.iteration_ns(3, True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RingSpeed(0, 1), "compute_ns: expected 1 to 1000000000000000, got 0"),
        (lambda: RingSpeed(1, -1), "bytes: expected 0 to"),
        (lambda: RingSpeed(1, 1, 0), "inside_bytes_per_s: expected 1 to"),
        (lambda: ParameterServerSpeed(1, -1, 0, 0), "uplink_ns: expected 0 to"),
        (lambda: TableSpeed(()), "step_ns: expected the time on 1 slot"),
        (lambda: TableSpeed((1, 0)), "step_ns of 2 slots: expected 1 to"),
    ],
)
def test_a_speed_that_is_none_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


# -- correction --------------------------------------------------------------------------------------------------------


def exact(speed, *places):
    return [MeasuredTime.of(*place, [speed.iteration_ns(*place)] * 5) for place in places]


PLACES = (1, True), (4, True), (2, False), (8, False)


@pytest.mark.parametrize(
    ("submitted", "true"),
    [
        (RING, RingSpeed(130 * MS, 10_000_000, 2 * 10**9, 70_000_000)),
        (EIGHT_MB, ParameterServerSpeed(40 * MS, 60 * MS, 25 * MS, 60 * MS)),
        (
            TableSpeed(tuple(each * MS for each in (90, 100, 110, 120, 130, 140, 150, 160))),
            TableSpeed(tuple(each * MS for each in (50, 200, 60, 70, 80, 90, 100, 300))),
        ),
    ],
)
def test_an_exact_series_is_found_again(submitted, true):
    found = fitted(submitted, exact(true, *PLACES))
    for place in PLACES:
        assert found.speed.iteration_ns(*place) == pytest.approx(true.iteration_ns(*place), rel=0.01)
        low, high = found.interval_ns(*place)
        assert low < true.iteration_ns(*place) < high
        assert high / low < 1.1


def test_the_terms_of_a_ring_are_found_where_enough_sizes_are_measured():
    true = RingSpeed(130 * MS, 10_000_000, 2 * 10**9, 70_000_000)
    found = fitted(RING, exact(true, *PLACES)).speed
    assert found.terms[0] == pytest.approx(true.terms[0], rel=0.005)
    assert found.terms[2] == pytest.approx(true.terms[2], rel=0.01)


def test_without_measurements_a_speed_is_as_submitted_and_unsure():
    found = fitted(RING, [])
    assert found.speed == RING
    low, high = found.interval_ns(1, True)
    assert high / low == pytest.approx(math.exp(2 * QUANTILE * math.hypot(PRIOR, MODEL_ERROR)), rel=1e-3)


def test_a_measured_size_of_a_table_says_nothing_of_the_others():
    found = fitted(TableSpeed((100 * MS,) * 3), exact(TableSpeed((1, 300 * MS, 1)), (2, True)))
    assert found.speed.step_ns == (100 * MS, pytest.approx(300 * MS, rel=1e-3), 100 * MS)
    (known_low, known_high), (low, high) = (found.interval_ns(slots, True) for slots in (2, 3))
    assert known_high / known_low < 1.05
    assert high / low > 5


def test_intervals_contain_the_true_times_as_often_as_they_say():
    true, inside = RingSpeed(130 * MS, 10_000_000, 2 * 10**9, 70_000_000), 0
    for seed in range(100):
        noise = random.Random(seed)
        measured = [
            MeasuredTime.of(
                *place, [round(true.iteration_ns(*place) * noise.gauss(1, 0.05)) for _ in range(20)]
            )
            for place in PLACES
        ]
        low, high = fitted(RING, measured).interval_ns(2, False)
        inside += low <= true.iteration_ns(2, False) <= high
    assert inside >= 88  # 95 are expected; fewer than 89 have a probability of less than 1 %


@pytest.mark.parametrize("durations", [[], [5, 0]])
def test_a_time_of_no_iterations_is_refused(durations):
    with pytest.raises(UsageError, match="durations: expected one or more above 0"):
        MeasuredTime.of(1, True, durations)
