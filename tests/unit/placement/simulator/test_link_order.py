"""Ideal sharing rules on one link: closed forms of two bursts, and what holds for any jobs."""

from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.simulator.link_order import BurstJob, BurstPhase, LinkRule, LinkSettings, throughput_ratios

QUIET = LinkSettings(iterations=2, noise=0.0)
SHARING = (LinkRule.FAIR,)
ORDERS = (
    LinkRule.FIFO_BURST,
    LinkRule.SRPT,
    LinkRule.SRPT_BURST,
    LinkRule.DUTY,
    LinkRule.SMALL,
    LinkRule.OPTIMUM,
)


def job(compute_s, send_s, name="job"):
    return BurstJob(name, (BurstPhase(compute_s, send_s),))


@pytest.mark.parametrize("rule", SHARING)
@pytest.mark.parametrize("overlap", [0.25, 0.5, 1.0])
def test_fair_delays_two_equal_bursts_by_their_overlap(rule, overlap):
    ratios = throughput_ratios([job(10, 1), job(10, 1)], rule, (0, 1 - overlap), 0, QUIET)
    assert ratios == pytest.approx([11 / (11 + overlap)] * 2)


@pytest.mark.parametrize("rule", ORDERS)
@pytest.mark.parametrize("overlap", [0.25, 0.5])
def test_order_delays_one_of_them_by_the_overlap(rule, overlap):
    ratios = throughput_ratios([job(10, 1), job(10, 1)], rule, (0, 1 - overlap), 0, QUIET)
    assert ratios == pytest.approx([1, 11 / (11 + overlap)])


def test_the_ratio_gives_the_first_burst_the_larger_part():
    first, second = throughput_ratios([job(10, 1), job(10, 1)], LinkRule.RATIO, (0, 0.5), 0, QUIET)
    # The offset grows by slope d x / (c intercept + d slope) = 0.39, and the second waits for all of the overlap. The
    # first has another iteration, of which a ninth meets the second again.
    assert second == pytest.approx(11 / 11.5)
    assert first == pytest.approx(22 / (22 + 0.5 - 0.389), abs=1e-3)


def test_of_one_burst_the_ratio_is_that_of_the_iteration():
    jobs = [job(10, 4), job(7, 3)]
    assert throughput_ratios(jobs, LinkRule.RATIO_BURST, (0, 1), 7) == pytest.approx(
        throughput_ratios(jobs, LinkRule.RATIO, (0, 1), 7)
    )


def test_jobs_by_shards_part_by_the_ratio_of_the_burst():
    passes = (BurstPhase(0.022, 0.018),) * 4 + (BurstPhase(0.045, 0.036),) * 4
    jobs = [BurstJob("by shards", passes)] * 2
    lost = {
        rule: 1 - fmean(throughput_ratios(jobs, rule, (0, 0.01), 0, LinkSettings(80)))
        for rule in (LinkRule.FAIR, LinkRule.RATIO, LinkRule.RATIO_BURST)
    }
    assert lost[LinkRule.RATIO_BURST] < 0.06 < lost[LinkRule.RATIO] < lost[LinkRule.FAIR]


@pytest.mark.parametrize("rule", [LinkRule.SRPT, LinkRule.SMALL, LinkRule.INTENSE, LinkRule.CLASSES])
def test_the_small_job_goes_first_and_the_large_one_waits_for_it(rule):
    large, small = job(10, 4, "large"), job(10, 1, "small")
    found = throughput_ratios([large, small], rule, (0, 1), 0, LinkSettings(1, 0.0, class_bounds_s=(2.0,)))
    assert found == pytest.approx([14 / 15, 1])


def test_classes_that_do_not_part_jobs_are_fair():
    jobs, coarse = [job(10, 4), job(10, 1)], LinkSettings(5, 0.02, class_bounds_s=(9.0,))
    assert throughput_ratios(jobs, LinkRule.CLASSES, (0, 1), 7, coarse) == throughput_ratios(
        jobs, LinkRule.FAIR, (0, 1), 7, coarse
    )


PHASES = st.lists(st.builds(BurstPhase, st.floats(0, 1), st.floats(0.01, 1)), min_size=1, max_size=4)


@given(
    jobs=st.lists(PHASES, min_size=2, max_size=4),
    rule=st.sampled_from([rule for rule in LinkRule if rule is not LinkRule.OPTIMUM]),
    seed=st.integers(0, 9),
)
@settings(max_examples=60)
def test_no_job_is_faster_than_alone_and_the_link_carries_no_more_than_it_can(jobs, rule, seed):
    burst_jobs = [BurstJob(str(number), tuple(phases)) for number, phases in enumerate(jobs)]
    quiet = LinkSettings(100, 0.0, class_bounds_s=(0.5, 1.0))
    ratios = throughput_ratios(burst_jobs, rule, [0.0] * len(jobs), seed, quiet)
    assert all(0 <= ratio <= 1 + 1e-9 for ratio in ratios)
    used = sum(ratio * each.send_s / each.alone_s for ratio, each in zip(ratios, burst_jobs, strict=True))
    # Means are of completed iterations, of which the last may end long before others' where an order starves a job.
    assert used <= 1.1 or rule not in (LinkRule.FAIR, LinkRule.RATIO)


def test_the_optimum_of_two_jobs_loses_no_more_than_any_rule():
    jobs, many = [job(0.05, 0.04), job(0.03, 0.05)], LinkSettings(40, 0.0)
    mean = {rule: sum(throughput_ratios(jobs, rule, (0, 0.02), 0, many)) for rule in LinkRule}
    assert max(mean.values()) == mean[LinkRule.OPTIMUM]


def test_what_cannot_be_simulated_is_refused():
    with pytest.raises(UsageError, match="2 or 3 for the optimum, got 4"):
        throughput_ratios([job(1, 1)] * 4, LinkRule.OPTIMUM, (0, 0, 0, 0), 0)
    with pytest.raises(UsageError, match="send_s: expected"):
        job(1, 0)
