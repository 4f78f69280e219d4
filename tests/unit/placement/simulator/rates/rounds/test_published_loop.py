"""The public loop with its faults, against the figures measured with the public code."""

import numpy as np
import pytest

from mltcp.core.errors import UsageError
from placement.model.throughput_table import published_table
from placement.simulator.rates.rounds.published_loop import run_published
from placement.traces.contention import ContentionMix, read_trace

TABLE = published_table()
TRACE = read_trace("simulate_trace0", TABLE)


@pytest.mark.parametrize(
    ("policy", "mean_jct_s", "mean_run_s", "utilization", "skipped"),
    [("las", 139_631, 6082, 0.907, 253), ("srtf", 245_364, 5975, 0.929, 220)],
)
def test_the_baselines_as_they_are_coded(policy, mean_jct_s, mean_run_s, utilization, skipped):
    outcome = run_published(TRACE, TABLE, policy)
    assert outcome.mean_jct_s == pytest.approx(mean_jct_s, abs=1)
    assert outcome.mean_run_s == pytest.approx(mean_run_s, abs=1)
    assert outcome.utilization == pytest.approx(utilization, abs=0.0005)
    assert outcome.skipped == skipped


@pytest.mark.parametrize(("policy", "mean_jct_s"), [("random", 116_549), ("random-fallback", 85_040)])
def test_random_actions(policy, mean_jct_s):
    runs = [run_published(TRACE, TABLE, policy, seed) for seed in range(5)]
    assert np.mean([each.mean_jct_s for each in runs]) == pytest.approx(mean_jct_s, rel=0.03)
    assert all(200 < each.skipped < 280 for each in runs)


def test_what_the_public_loop_has_not_is_refused():
    with pytest.raises(UsageError, match="policy of the public loop: expected las"):
        run_published(TRACE, TABLE, "greedy")
    with pytest.raises(UsageError, match="arrival_s: expected 0"):
        run_published(ContentionMix(0.6).trace(0, TABLE), TABLE, "las")
