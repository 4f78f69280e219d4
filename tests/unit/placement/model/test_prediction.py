"""The network with identical workers: closed forms, convolution, the page's figures, and its properties."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.queueing import (
    Method,
    solve,
    throughput,
    throughput_bound,
    throughputs,
)
from placement.model.service_times import LinkSharing, ServiceTimes
from tests.unit.placement.model.queueing_strategies import SERVICES, convolution, random_services

DENSE_8_MB = ServiceTimes(0.029, 0.072, 0.018, 0.072)
"""The paper's 8 MB model (Fig. 7)."""

WORKERS = st.integers(1, 60)
METHODS = st.sampled_from(Method)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (Method.EXACT, [5.236, 8.098, 9.694, 10.643, 11.253, 11.672]),
        (Method.APPROXIMATE, [5.236, 9.098, 11.576, 12.922, 13.536, 13.774]),
        (Method.HYBRID, [5.236, 9.098, 11.377, 12.066, 12.355, 12.534]),
    ],
)
def test_8_mb_model(method, expected):
    assert throughputs(DENSE_8_MB, 6, method=method) == pytest.approx(expected, abs=5.1e-4)


def test_alexnet_of_table_3():
    alexnet = ServiceTimes.of_model(249e6, 7e12, rate_bps=1e9, flop_per_s=1229e9)
    rates = throughputs(alexnet, 100)
    batches = 90 * 1.2e6 / 1024
    assert batches / rates[0] / 86400 == pytest.approx(11.82, rel=0.002)
    assert rates[99] / rates[0] == pytest.approx(4.81, rel=0.002)


@pytest.mark.parametrize("method", Method)
def test_one_worker_waits_for_nobody(method):
    for service in random_services(50):
        assert throughput(service, 1, method=method) == pytest.approx(1 / service.cycle_s, rel=1e-12)


def test_closed_forms():
    most = np.arange(1, 201)
    three = throughputs(ServiceTimes(0, 0.3, 0.3, 0.3), 200, method="exact")
    assert three == pytest.approx(most / ((most + 2) * 0.3), rel=1e-12)
    two = throughputs(ServiceTimes(0, 0.3, 0, 0.3), 200, method="exact")
    assert two == pytest.approx(most / ((most + 1) * 0.3), rel=1e-12)
    alone = throughputs(ServiceTimes(0.3, 0, 0, 0), 200, method="exact")
    assert alone == pytest.approx(most / 0.3, rel=1e-12)
    # One link and nothing else: capacity, which the approximation as printed exceeds by a third.
    link = ServiceTimes(0, 1, 0, 0)
    assert throughputs(link, 200, method="exact") == pytest.approx(np.ones(200), rel=1e-12)
    assert throughput(link, 2, method="approximate") == pytest.approx(4 / 3, rel=1e-12)
    assert throughput(link, 2, method="approximate-capped") == 1


def test_convolution_gives_the_same():
    for service in random_services(100):
        assert throughputs(service, 50, method="exact") == pytest.approx(convolution(service, 50), rel=1e-9)


@given(SERVICES, st.integers(1, 200))
def test_bounds_of_the_exact_solution(service, workers):
    found = throughput(service, workers, method="exact")
    shared = service.uplink_s + service.server_s + service.downlink_s
    assert workers / (service.worker_s + workers * shared) <= found * (1 + 1e-12)
    assert found <= throughput_bound(service, workers) * (1 + 1e-12)


@given(SERVICES, st.integers(2, 100), st.integers(0, 3), st.floats(1, 3))
def test_exact_throughput_grows_with_workers_and_falls_with_times(service, most, slower, factor):
    rates = throughputs(service, most, method="exact")
    assert (np.diff(rates) >= -1e-12 * rates[1:]).all()
    times = [service.worker_s, service.uplink_s, service.server_s, service.downlink_s]
    times[slower] *= factor
    assert (throughputs(ServiceTimes(*times), most, method="exact") <= rates * (1 + 1e-12)).all()


def test_hybrid_lies_between_the_exact_solution_and_the_capacity():
    for service in random_services(1000, seed=2):
        exact, hybrid = (throughputs(service, 30, method=method) for method in ("exact", "hybrid"))
        assert (np.diff(hybrid) >= -1e-12 * hybrid[1:]).all()
        assert (hybrid >= exact * (1 - 1e-12)).all()
        assert (hybrid <= (1 + 1e-12) / service.bottleneck_s).all()


@given(SERVICES, WORKERS, METHODS, st.floats(1e-3, 1e3))
def test_scaling_all_times_scales_the_throughput(service, most, method, factor):
    scaled = throughputs(service.scaled(factor), most, method=method)
    assert scaled == pytest.approx(throughputs(service, most, method=method) / factor, rel=1e-9)


@given(SERVICES, WORKERS, METHODS)
def test_uplink_and_downlink_may_be_exchanged(service, most, method):
    other = ServiceTimes(service.worker_s, service.downlink_s, service.server_s, service.uplink_s)
    expected = throughputs(service, most, method=method)
    assert throughputs(other, most, method=method) == pytest.approx(expected, rel=1e-9)


@given(SERVICES, WORKERS, st.sampled_from([Method.EXACT, Method.APPROXIMATE, Method.HYBRID]))
def test_every_worker_is_somewhere(service, workers, method):
    solution = solve(service, workers, method=method)
    assert sum(solution.tasks) == pytest.approx(workers, rel=1e-12)
    assert min(solution.tasks) >= 0
    if method is not Method.APPROXIMATE:
        assert max(solution.utilisation[1:]) <= 1 + 1e-12


@given(SERVICES, WORKERS)
def test_sharing_decides_between_the_two_models(service, workers):
    exact, approximate = (throughput(service, workers, method=name) for name in ("exact", "approximate"))
    never, always = LinkSharing(1e9, 2e9), LinkSharing(0, 1e-12)
    assert throughput(service, workers, sharing=never) == pytest.approx(approximate, rel=1e-12)
    assert throughput(service, workers, sharing=always) == pytest.approx(exact, rel=1e-9)


@given(SERVICES, WORKERS, METHODS, st.integers(1, 8))
def test_several_servers_divide_what_is_shared(service, workers, method, servers):
    times = (service.uplink_s / servers, service.server_s / servers, service.downlink_s / servers)
    if service.worker_s + sum(times) < 1e-9:
        return
    expected = throughput(ServiceTimes(service.worker_s, *times), workers, method=method)
    assert throughput(service, workers, method=method, servers=servers) == pytest.approx(expected, rel=1e-9)


def test_a_thousand_workers_take_less_than_10_ms():
    throughputs(DENSE_8_MB, 1000)
    begin = time.process_time()
    throughputs(DENSE_8_MB, 1000)
    assert time.process_time() - begin < 0.01


@pytest.mark.parametrize("workers", [0, -1, 1_000_001])
def test_bad_number_of_workers(workers):
    with pytest.raises(UsageError, match=f"^workers: expected 1 to 1000000, got {workers}$"):
        throughput(DENSE_8_MB, workers)


def test_unknown_method():
    with pytest.raises(
        UsageError, match=r"^method: expected exact, approximate, approximate-capped, hybrid, got 'mva'$"
    ):
        throughput(DENSE_8_MB, 1, method="mva")
