"""The holding range: the formula by itself, and against the model."""

from statistics import fmean

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mltcp.control.fluid import closed_form_shift
from mltcp.core.errors import UsageError
from placement.simulator.network.laws.holding import HeldPair, bound, linear_range, newcomer_share
from placement.simulator.network.laws.network_law import WINDOW_CONTROLS, Control, WindowLaw
from placement.simulator.network.laws.run import RunSettings, simulate
from placement.simulator.network.laws.workload import ModelLink, one_burst

PERIOD_S, LINE_S = 0.386, 0.166
LINKS = {"18 packets": ModelLink(), "74 packets": ModelLink(1e9, 1e6, 150e3)}
SHARES = st.floats(0, 0.45)


@given(
    share=SHARES,
    part=st.floats(0, 1),
    line=st.floats(0.1, 0.49),
    recovery_s=st.floats(0, 0.01),
    period_s=st.floats(0.1, 10),
)
def test_both_jobs_lose_what_they_must(share, part, line, recovery_s, period_s):
    largest = HeldPair(period_s, line * period_s, 0.0, share, recovery_s).largest_mismatch
    assume(part * largest <= 1)
    pair = HeldPair(period_s, line * period_s, part * largest, share, recovery_s)
    assume(pair.overlap_s > 0)
    lost_by_fast = (1 - share) * pair.overlap_s + recovery_s
    assert pair.held_period_s == pytest.approx(period_s + lost_by_fast)
    assert pair.held_period_s == pytest.approx((1 + pair.mismatch) * period_s + share * pair.overlap_s)
    assert pair.overlap_s * (1 - share) <= pair.line_s * (1 + 1e-9)
    assert pair.mean_slowdown >= bound(pair.mismatch) - 1e-12


@given(share=SHARES, mismatch=st.floats(0, 1))
def test_the_range_ends_where_the_formula_says(share, mismatch):
    pair = HeldPair(1.0, 0.3, mismatch, share)
    assert pair.is_held == (mismatch <= (1 - 2 * share) / (1 - share) * 0.3)
    if not pair.is_held:
        with pytest.raises(UsageError, match="mismatch: expected at most"):
            _ = pair.overlap_s


def test_a_newcomer_that_gets_half_holds_nothing():
    assert HeldPair(1.0, 0.3, 0.0, 0.5).largest_mismatch == 0
    assert not HeldPair(1.0, 0.3, 0.0, 0.5).is_held
    assert not HeldPair(1.0, 0.6, 0.0, 0.1).is_held  # they do not fit
    assert newcomer_share(2, 14) == 0.125
    with pytest.raises(UsageError, match="windows: expected numbers above 0"):
        newcomer_share(0, 14)


def test_without_any_share_the_bound_is_reached():
    assert (
        HeldPair(1.0, 0.3, 0.05, 0.0).mean_slowdown
        == pytest.approx((1.05 + 1) / 2)
        == pytest.approx(bound(0.05))
    )
    # The figures of docs/theory.md: 5 % with shares of 0.14 and of 0.08, and no recovery.
    assert HeldPair(1.0, 0.43, 0.05, 0.14).mean_slowdown == pytest.approx(1.0345, abs=1e-3)
    assert HeldPair(1.0, 0.43, 0.05, 0.05).mean_slowdown == pytest.approx(1.0277, abs=1e-3)


@given(slope=st.floats(0.1, 10), intercept=st.floats(0.05, 2))
def test_the_linear_range_is_the_largest_shift(slope, intercept):
    shifts = [closed_form_shift(k / 4000, 1.0, slope, intercept) for k in range(4001)]
    assert linear_range(1.0, 1.0, slope, intercept) == pytest.approx(max(shifts), rel=1e-4)


def test_the_linear_range_refuses_zero():
    assert linear_range(LINE_S, PERIOD_S, 1.75, 0.25) == pytest.approx(0.2054, abs=1e-4)
    with pytest.raises(UsageError, match="slope: expected a number above 0"):
        linear_range(1.0, 1.0, 0.0, 0.25)


def run_pair(link, law, mismatch, iterations=40):
    """The periods of the fast and the slow job over the second half, and how long they overlap in an iteration."""
    slow_s = (1 + mismatch) * PERIOD_S
    jobs = [one_burst(LINE_S, PERIOD_S - LINE_S), one_burst(LINE_S, slow_s - LINE_S)]
    settings = RunSettings(iterations, noise_s=0, overhead_s=0, starts_s=(0.19, 0.0))
    outcome = simulate(link, jobs, law, settings)
    fast, slow = (job[iterations // 2 :] for job in outcome.jobs)
    overlaps = []
    for each in fast:
        begin_s = each.begin_s + PERIOD_S - LINE_S
        during = [other.end_s - begin_s for other in slow if 0 < other.end_s - begin_s < PERIOD_S / 2]
        overlaps.append(during[0] if during else 0.0)
    return fmean(each.duration_s for each in fast), fmean(each.duration_s for each in slow), fmean(overlaps)


def measured_share(link, law, mismatch):
    fast_s, slow_s, overlap_s = run_pair(link, law, mismatch)
    assert fast_s == pytest.approx(slow_s, rel=2e-3)
    return (slow_s - (1 + mismatch) * PERIOD_S) / overlap_s


@pytest.mark.parametrize(
    ("base", "name"),
    [(Control.RENO, "18 packets"), (Control.RENO, "74 packets"), (Control.DCTCP, "74 packets")],
)
def test_the_model_is_held_as_the_formula_says(base, name):
    """With the share of a mismatch of 3 %: periods within 0.5 %, overlaps within a fifth or 1.2 % of the period."""
    link, law = LINKS[name], WindowLaw.remaining(base)
    share = measured_share(link, law, 0.03)
    for mismatch in (0.01, 0.02, 0.05, 0.08):
        pair = HeldPair(PERIOD_S, LINE_S, mismatch, share)
        fast_s, slow_s, overlap_s = run_pair(link, law, mismatch)
        assert pair.is_held
        assert fast_s == pytest.approx(pair.held_period_s, rel=5e-3)
        assert slow_s == pytest.approx(pair.held_period_s, rel=5e-3)
        assert overlap_s == pytest.approx(pair.overlap_s, rel=0.2, abs=0.012 * PERIOD_S)


@pytest.mark.parametrize("law", [WindowLaw.paper, WindowLaw.remaining], ids=lambda law: law.__name__)
@pytest.mark.parametrize("base", WINDOW_CONTROLS, ids=lambda base: base.label)
def test_no_law_holds_beyond_the_range(base, law):
    share = measured_share(LINKS["18 packets"], law(base), 0.02)
    mismatch = 1.1 * HeldPair(PERIOD_S, LINE_S, 0.0, share).largest_mismatch
    fast_s, slow_s, _ = run_pair(LINKS["18 packets"], law(base), mismatch)
    assert slow_s / fast_s > 1.01


@pytest.mark.parametrize("base", WINDOW_CONTROLS, ids=lambda base: base.label)
@pytest.mark.parametrize("mismatch", [0.0, 0.02, 0.05])
def test_nothing_is_below_the_bound(base, mismatch):
    fast_s, slow_s, _ = run_pair(LINKS["18 packets"], WindowLaw.remaining(base), mismatch)
    mean = (fast_s / PERIOD_S + slow_s / PERIOD_S / (1 + mismatch)) / 2
    assert mean > bound(mismatch) - 2e-3  # the bucket's burst counts as sent
    assert mean < bound(mismatch) + 0.03
