"""DCQCN's rate law against its equations, and the properties that pacing relies on."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from mltcp.pacing.rate_law import CONSTANTS, Constants, RateLaw

LINE = 1e9
PAPER = Constants(
    alpha_gain=1 / 256,
    fast_recovery_steps=5,
    additive_increase=0.001,
    hyper_increase=0.01,
    timer=0.001,
    alpha_timer=0.001,
)


def stepped(law, marks, factor=1.0, interval_s=0.001, sent_bytes=0):
    return [law.step(interval_s, marked, sent_bytes, factor) for marked in marks]


def test_a_mark_halves_the_first_time_because_alpha_begins_at_one():
    law = RateLaw(LINE, PAPER)
    assert law.step(0.001, True, 0) == LINE / 2
    assert law.target_bps == LINE
    assert law.alpha == 1.0


def test_a_decrease_is_by_half_of_alpha_as_it_was_before():
    law = RateLaw(LINE, PAPER)
    law.alpha = 0.5
    law.step(0.001, True, 0)
    assert law.current_bps == LINE * 0.75
    assert law.alpha == pytest.approx(0.5 * (1 - 1 / 256) + 1 / 256)


def test_alpha_decays_by_g_in_each_period_without_a_mark():
    law = RateLaw(LINE, PAPER)
    stepped(law, [False] * 10)
    assert law.alpha == pytest.approx((1 - 1 / 256) ** 10)


def test_fast_recovery_halves_the_distance_five_times_and_leaves_the_target():
    law = RateLaw(LINE, PAPER)
    law.step(0.001, True, 0)
    law.target_bps = 0.8 * LINE
    rates = stepped(law, [False] * 5)
    expected, current = [], LINE / 2
    for _ in range(5):
        current = (current + 0.8 * LINE) / 2
        expected.append(current)
    assert rates == pytest.approx(expected)
    assert law.target_bps == 0.8 * LINE


@pytest.mark.parametrize("factor", [0.25, 1.0, 2.0])
def test_the_sixth_event_adds_f_times_the_additive_step_to_the_target(factor):
    law = RateLaw(LINE, PAPER)
    law.step(0.001, True, 0)
    law.target_bps = 0.8 * LINE
    stepped(law, [False] * 5, factor)
    before = law.current_bps
    law.step(0.001, False, 0, factor)
    assert law.target_bps == pytest.approx(0.8 * LINE + factor * 0.001 * LINE)
    assert law.current_bps == pytest.approx((before + law.target_bps) / 2)


def test_both_counters_beyond_fast_recovery_make_the_increase_hyper():
    law = RateLaw(LINE, dataclasses.replace(PAPER, byte_counter=0.001, fast_recovery_steps=1))
    law.step(0.001, True, 0)
    law.target_bps = 0.5 * LINE
    full = round(LINE / 8 * 0.001)
    stepped(law, [False], sent_bytes=full)  # both at 1: fast recovery
    assert law.target_bps == 0.5 * LINE
    law.step(0.001, False, full)  # timer 2, then bytes 2: additive, then hyper by one step
    assert law.target_bps == pytest.approx((0.5 + 0.001 + 0.01) * LINE)


def test_a_long_interval_counts_as_the_events_that_lie_in_it():
    one, many = RateLaw(LINE, PAPER), RateLaw(LINE, PAPER)
    for law in (one, many):
        law.step(0.001, True, 0)
        law.target_bps = 0.6 * LINE
    one.step(0.020, False, 0, 0.5)
    stepped(many, [False] * 20, 0.5)
    assert one.current_bps == pytest.approx(many.current_bps)
    assert one.alpha == pytest.approx(many.alpha)


def test_an_iteration_starts_at_f_of_zero_and_aims_at_the_line_rate():
    law = RateLaw(LINE)
    stepped(law, [True] * 5)
    law.start(0.25)
    assert (law.current_bps, law.target_bps) == (0.25 * LINE, LINE)
    law.start()
    assert law.current_bps == LINE


@given(
    st.lists(st.tuples(st.booleans(), st.floats(0.0001, 1), st.floats(0.01, 4)), max_size=60),
    st.sampled_from([1e6, 3e8, 4e11]),
)
def test_the_rate_stays_between_the_least_and_the_line_rate(steps, line_rate_bps):
    law = RateLaw(line_rate_bps)
    for marked, interval_s, factor in steps:
        rate = law.step(interval_s, marked, 1000, factor)
        assert 0.001 * line_rate_bps <= rate <= line_rate_bps
        assert 0 <= law.alpha <= 1
        assert rate <= law.target_bps or marked or rate == 0.001 * line_rate_bps


@given(st.lists(st.booleans(), max_size=80), st.floats(0.25, 1), st.floats(1, 2))
def test_a_job_with_the_larger_f_is_never_slower_under_the_same_marks(marks, small, large):
    behind, ahead = RateLaw(LINE), RateLaw(LINE)
    for marked in marks:
        assert behind.step(0.002, marked, 0, small) <= ahead.step(0.002, marked, 0, large) * (1 + 1e-12)


def test_the_law_is_the_same_at_every_line_rate():
    marks = [True, False, False, True, *[False] * 12, True, False]
    slow, fast = RateLaw(1e8), RateLaw(4e11)
    assert stepped(slow, marks) == pytest.approx([rate / 4000 for rate in stepped(fast, marks)])


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_out_of_range_is_refused_with_what_is_allowed(name):
    low, high = CONSTANTS[name]
    with pytest.raises(UsageError, match=f"^{name}: expected a number between {low:g} and {high:g}, got "):
        Constants(**{name: high * 2 + 1})
