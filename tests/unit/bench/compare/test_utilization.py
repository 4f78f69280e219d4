"""The link's use while one job sends alone, from bins that a test makes up."""

import pytest

from bench.compare.engine import sole_utilization
from bench.lab.bottleneck import DirectionUse

BIN_NS = 5_000_000
RATE_BPS = 1_600_000_000
FULL = 1_000_000


def direction(*jobs):
    bins = dict(enumerate(jobs))
    return DirectionUse("trunk", "a", "b", RATE_BPS, bins, 0, 0, 0, 0, 0)


def test_bins_that_a_job_fills_in_part_at_its_ends_do_not_count():
    alone = [0, 300_000, *[900_000] * 6, 200_000, 0]
    assert sole_utilization([direction(alone)], BIN_NS) == pytest.approx(0.9)


def test_bins_in_which_two_jobs_send_do_not_count():
    one = [0, FULL, 950_000, 950_000, 950_000, FULL, 500_000, 500_000, 0, 0, 0, 0, 0, 0]
    two = [0, 0, 0, 0, 0, 0, 500_000, 500_000, FULL, 850_000, 850_000, 850_000, FULL, 0]
    assert sole_utilization([direction(one, two)], BIN_NS) == pytest.approx(0.9)


def test_isolated_runs_of_several_jobs_are_taken_together():
    slow, fast = [800_000] * 6, [FULL] * 6
    assert sole_utilization([direction(slow), direction(fast)], BIN_NS) == pytest.approx(0.9)


def test_where_a_job_never_sends_alone_for_long_there_is_no_figure():
    assert sole_utilization([direction([FULL] * 9, [FULL] * 9)], BIN_NS) is None
    assert sole_utilization([direction([0, FULL, FULL, 0, FULL, 0])], BIN_NS) is None
