import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.model.service_times import LinkSharing, ServiceTimes
from tests.unit.placement.model.queueing_strategies import SERVICES

TIMES = {"worker_s": 0.029, "uplink_s": 0.072, "server_s": 0.018, "downlink_s": 0.072}


def test_cycle_and_bottleneck():
    service = ServiceTimes(**TIMES)
    assert service.cycle_s == pytest.approx(0.191, rel=1e-15)
    assert service.bottleneck_s == 0.072
    assert service.scaled(2) == ServiceTimes(0.058, 0.144, 0.036, 0.144)


@pytest.mark.parametrize("field", TIMES)
@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf, 2e9, "0.1", None, True])
def test_a_bad_time_is_refused_by_name(field, value):
    with pytest.raises(
        UsageError, match=rf"^{field}: expected a number between 0 and 1e\+09, got {value!r}$"
    ):
        ServiceTimes(**{**TIMES, field: value})


def test_no_time_at_all_is_refused():
    with pytest.raises(UsageError, match=r"^service times: expected a sum of at least 1e-09 s, got 0$"):
        ServiceTimes(0, 0, 0, 0)


def test_times_of_a_model():
    """AlexNet of Table III: 249 MB, 7 TFLOP a batch, 1 Gbit/s, a K520."""
    service = ServiceTimes.of_model(249e6, 7e12, rate_bps=1e9, flop_per_s=1229e9)
    assert service.worker_s == pytest.approx(5.696, abs=5e-4)
    assert service.uplink_s == service.downlink_s == pytest.approx(1.992)
    assert service.server_s == pytest.approx(2 * 249e6 / 4 / 1229e9)
    with pytest.raises(UsageError, match=r"^rate_bps: expected a number above 0, got 0$"):
        ServiceTimes.of_model(1, 1, rate_bps=0, flop_per_s=1)
    with pytest.raises(UsageError, match=r"^size_bytes: expected a number of at least 0, got -1$"):
        ServiceTimes.of_model(-1, 1, rate_bps=1, flop_per_s=1)


def test_split_over_servers():
    service = ServiceTimes(1, 2, 3, 4)
    assert service.split(1) is service
    assert service.split(2) == service.split([0.5, 0.5]) == ServiceTimes(1, 1, 1.5, 2)
    # VGG16 of Section VII: one of three servers has four times the parameters of each other.
    assert service.split([1 / 6, 4 / 6, 1 / 6]) == ServiceTimes(1, 4 / 6 * 2, 4 / 6 * 3, 4 / 6 * 4)


@given(SERVICES, st.integers(1, 50))
def test_one_server_is_no_split_and_equal_shares_are_a_number(service, servers):
    assert service.split(1) == service.split([1.0]) == service
    assert service.split([1 / servers] * servers) == service.split(servers)


@pytest.mark.parametrize(
    ("servers", "message"),
    [
        (0, "servers: expected 1 or more, got 0"),
        ([], "shares: expected numbers that sum to 1, got []"),
        ([0.5, 0.4], "shares: expected numbers that sum to 1, got [0.5, 0.4]"),
        ([1.5, -0.5], "shares: expected a number between 0 and 1, got 1.5"),
    ],
)
def test_bad_servers(servers, message):
    with pytest.raises(UsageError) as raised:
        ServiceTimes(**TIMES).split(servers)
    assert str(raised.value) == message


def test_sharing():
    sharing = LinkSharing()
    assert [sharing.degree(rho) for rho in (0, 0.8, 0.9, 1, 1.3)] == pytest.approx([0, 0, 0.5, 1, 1])
    with pytest.raises(UsageError, match=r"^full: expected more than threshold \(0\.8\), got 0\.8$"):
        LinkSharing(0.8, 0.8)
    with pytest.raises(UsageError, match=r"^threshold: expected a number of at least 0, got -0\.1$"):
        LinkSharing(-0.1)
