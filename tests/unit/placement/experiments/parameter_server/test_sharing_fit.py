import pytest

from mltcp.core.errors import UsageError
from placement.experiments.parameter_server.sharing_fit import fit_sharing, sharing_error
from placement.model.queueing import throughputs
from placement.model.service_times import LinkSharing, ServiceTimes

DENSE_8_MB = ServiceTimes(0.029, 0.072, 0.018, 0.072)


@pytest.mark.parametrize("sharing", [LinkSharing(), LinkSharing(0.3, 1.2), LinkSharing(0.6, 0.7)])
def test_a_known_g_is_found_from_odd_numbers_of_workers(sharing):
    rates = throughputs(DENSE_8_MB, 8, sharing=sharing)
    found = fit_sharing(DENSE_8_MB, {workers: float(rates[workers - 1]) for workers in (1, 3, 5, 7)})
    assert found.error < 0.004
    even = {workers: float(rates[workers - 1]) for workers in (2, 4, 6, 8)}
    assert sharing_error(DENSE_8_MB, even, found.sharing) < 0.01


def test_what_no_g_explains_has_an_error():
    """Beyond the approximate solution, and falling as real TCP does."""
    measured = {1: 5.2, 3: 13.8, 5: 10.0}
    found = fit_sharing(DENSE_8_MB, measured)
    assert found.error > 0.05
    assert found.error <= sharing_error(DENSE_8_MB, measured, LinkSharing())


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        ({}, "measured: expected 1 throughput or more, got none"),
        ({0: 1.0}, "measured: expected 1 worker or more and more than 0/s, got 0: 1.0"),
        ({2: 0.0}, "measured: expected 1 worker or more and more than 0/s, got 2: 0.0"),
        ({2: -1.0}, "throughput of 2 workers: expected a number of at least 0, got -1.0"),
    ],
)
def test_bad_measurements(measured, message):
    with pytest.raises(UsageError) as raised:
        fit_sharing(DENSE_8_MB, measured)
    assert str(raised.value) == message
