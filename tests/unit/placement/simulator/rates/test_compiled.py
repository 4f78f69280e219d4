"""Runs, compiled or on the executor, are those of plain rules, to the nanosecond; and figures of the specification."""

from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from placement.model.throughput import RingAllReduce
from placement.policies.schedulers.deadlines.rules import RULES
from placement.policies.schedulers.registry import named_scheduler
from placement.simulator.rates.compiled import compiles, run_compiled, scaled_up
from placement.simulator.rates.outcome import SpanTable, numbered_spans
from placement.simulator.rates.run import run_rates
from placement.simulator.rates.timed_job import RatesSettings
from placement.traces.deadlines import DrsMix
from tests.unit.placement.policies.deadlines_reference import reference
from tests.unit.placement.simulator.long_tests import everything
from tests.unit.placement.simulator.rates.whole_jobs import S, check_gpus, settings, traces

SETTINGS = (
    RatesSettings(RingAllReduce()),
    RatesSettings(RingAllReduce(5 * S, 3 * S), 2, 4, 60 * S),
    RatesSettings(RingAllReduce(2 * S, S), 5, 2),
    RatesSettings(RingAllReduce(), 1, 4),
)


@pytest.mark.slow
@pytest.mark.parametrize("setup", SETTINGS, ids=lambda setup: f"{setup.nodes}x{setup.gpus}")
def test_drs_agrees_on_200_traces(setup):
    mix = DrsMix(rate=setup.nodes * setup.gpus * 0.3, hours=5)
    for seed in range(50):
        trace = mix.trace(seed)
        plain = run_rates(trace, setup, reference("drs"))
        assert run_compiled(trace, setup, "drs").table == plain.table, seed


@pytest.mark.parametrize("name", RULES)
@hypothesis_settings(max_examples=20)
@given(trace=traces(), setup=settings())
def test_all_agree_on_drawn_traces(name, trace, setup):
    assert compiles(name, trace, setup)
    plain, fast = run_rates(trace, setup, reference(name)), run_compiled(trace, setup, name)
    assert fast.table == plain.table
    assert run_rates(trace, setup, named_scheduler(name)).spans == plain.spans
    assert (fast.met, fast.mean_wait_s, fast.utilization) == (plain.met, plain.mean_wait_s, plain.utilization)


@pytest.mark.parametrize("name", ["drs", "edf-late-last-node", "themis-batch"])
@hypothesis_settings(max_examples=30)
@given(trace=traces(), setup=settings())
def test_compiled_spans_are_numbered_so_that_a_gpu_has_one_job(name, trace, setup):
    plain, fast = run_rates(trace, setup, named_scheduler(name)), run_compiled(trace, setup, name)
    assert numbered_spans(plain) is plain.spans
    numbered = replace(fast, spans=numbered_spans(fast))
    check_gpus(numbered, setup.nodes, setup.gpus)
    assert SpanTable.of(numbered.spans, trace, setup.cluster()) == plain.table


@pytest.mark.parametrize(
    ("value", "factor", "divisor"), [(0, 5, 7), (10**15, 10**9, 10**11 + 7), (6, 7, 42), (1, 1, 3)]
)
def test_scaled_up(value, factor, divisor):
    assert scaled_up(value, factor, divisor) == -(-value * factor // divisor)


RATES = {
    10: {
        "drs": (0.964, 0.765, 0.634, 0.528, 0.445),
        "norm": (0.964, 0.764, 0.634, 0.528, 0.445),
        "edf": (0.980, 0.605, 0.258, 0.158, 0.114),
        "fifo": (0.896, 0.374, 0.163, 0.105, 0.076),
        "themis-batch": (0.892, 0.253, 0.107, 0.066, 0.050),
        "edf-scheme": (0.960, 0.636, 0.294, 0.172, 0.119),
        "edf-late-last": (0.979, 0.887, 0.716, 0.609, 0.540),
        "edf-late-last-node": (0.967, 0.889, 0.757, 0.651, 0.583),
        "edf-late-last-scheme": (0.963, 0.765, 0.657, 0.579, 0.521),
        "llf": (0.979, 0.855, 0.624, 0.490, 0.406),
    },
    5: {
        "drs": (0.941, 0.741, 0.612, 0.510, 0.428),
        "norm": (0.940, 0.739, 0.611, 0.510, 0.428),
        "edf": (0.914, 0.264, 0.118, 0.069, 0.045),
        "fifo": (0.738, 0.217, 0.109, 0.073, 0.055),
        "themis-batch": (0.785, 0.195, 0.091, 0.061, 0.046),
        "edf-scheme": (0.935, 0.598, 0.267, 0.153, 0.105),
        "edf-late-last": (0.941, 0.748, 0.602, 0.513, 0.457),
        "edf-late-last-node": (0.907, 0.792, 0.651, 0.555, 0.497),
        "edf-late-last-scheme": (0.940, 0.734, 0.632, 0.558, 0.503),
        "llf": (0.936, 0.679, 0.482, 0.374, 0.311),
    },
}
"""Guarantee rates at 2, 4, 6, 8 and 10 jobs an hour over 100 seeds, by the bandwidth inside a node in GB/s."""


@pytest.mark.slow
@pytest.mark.parametrize("rate", [2, 4, *(pytest.param(rate, marks=everything) for rate in (6, 8, 10))])
def test_guarantee_rates_of_the_specification(rate):
    drawn = [DrsMix(rate).trace(seed) for seed in range(100)]
    for bandwidth, table in RATES.items():
        setup = RatesSettings(RingAllReduce(bandwidth * S, bandwidth * 6 * S // 10))
        for name, expected in table.items():
            found = fmean(run_compiled(trace, setup, name).guarantee_rate for trace in drawn)
            assert found == pytest.approx(expected[rate // 2 - 1], abs=0.0015), name


def test_numbers_too_large_for_64_bits_are_not_compiled():
    trace = DrsMix(hours=2).trace(0)
    assert compiles("drs", trace, RatesSettings(RingAllReduce()))
    assert not compiles("drs", trace, RatesSettings(RingAllReduce(), 1000, 100, 10**18))
    assert not compiles("elastic-mh", trace, RatesSettings(RingAllReduce()))


def test_runs_that_are_longer_on_more_gpus_are_not_compiled_if_their_times_do_not_fit():
    trace, slow = DrsMix(rate=4).trace(0), RatesSettings(RingAllReduce(10**5, 10**5), 2, 1)
    plain, live = (run_rates(trace, slow, each) for each in (reference("edf"), named_scheduler("edf")))
    assert max(plain.end_ns) > 1 << 62
    assert live.table == plain.table
    assert not compiles("edf", trace, slow)


def test_thousands_of_jobs_on_hundreds_of_gpus_are_compiled():
    assert compiles("drs", DrsMix(rate=250).trace(0), RatesSettings(RingAllReduce(), 50, 8))
