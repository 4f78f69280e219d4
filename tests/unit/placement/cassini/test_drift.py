import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.cassini.drift import corrections

SHIFTS = {"a": 0, "b": 50}
PERIODS = {"a": 100, "b": 100}


def test_jobs_that_lie_as_they_should_are_left_alone():
    assert corrections({"a": 1000, "b": 1050}, SHIFTS, PERIODS) == {}
    assert corrections({"a": 1000, "b": 2954}, SHIFTS, PERIODS, 0.05) == {}  # 4 late
    assert corrections({"a": 1000}, SHIFTS, PERIODS) == {}


def test_who_runs_ahead_waits_for_who_is_late():
    assert corrections({"a": 1000, "b": 1040}, SHIFTS, PERIODS) == {"b": 10}
    # b is late by ten: a waits, rather than b for ninety
    assert corrections({"a": 1000, "b": 1060}, SHIFTS, PERIODS) == {"a": 10}


def test_of_many_the_latest_is_waited_for():
    phases = {"a": 1000, "b": 1025, "c": 1062, "d": 1075}
    shifts = {"a": 0, "b": 25, "c": 50, "d": 75}
    periods = dict.fromkeys(phases, 100)
    assert corrections(phases, shifts, periods) == {"a": 12, "b": 12, "d": 12}


def test_circles_of_several_turns_are_compared_on_the_turn_that_fits_best():
    # 40 and 60 on a circle of 120: b may lie beside any of a's three iterations
    shifts, periods = {"a": 0, "b": 10}, {"a": 40, "b": 60}
    for turn in range(3):
        assert corrections({"a": 40 * turn, "b": 10}, shifts, periods) == {}
    assert corrections({"a": 0, "b": 5}, shifts, periods) == {"b": 5}


def test_periods_that_are_equal_but_for_the_tolerance_are_those_of_one_circle():
    shifts, periods = {"a": 407, "b": 206}, {"a": 416, "b": 408}
    for off in range(-12, 13):
        # b lies 201 before a, and so 215 after it: on b's own period that would be 207
        for phases in ({"a": 10_000, "b": 10_000 - 201 + off}, {"a": 10_000, "b": 10_000 + 215 + off}):
            assert corrections(phases, shifts, periods, 0.03) == {}
    assert corrections({"a": 10_000, "b": 10_215 - 20}, shifts, periods, 0.03) == {"b": 20}


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 10**6), min_size=2),
    st.data(),
)
def test_after_the_waits_all_jobs_of_one_period_lie_right(phases, data):
    period = data.draw(st.integers(100, 5000))
    shifts = {job: data.draw(st.integers(0, period - 1)) for job in phases}
    periods = dict.fromkeys(phases, period)
    waits = corrections(phases, shifts, periods, threshold=0)
    after = {job: phases[job] + waits.get(job, 0) for job in phases}
    assert len({(after[job] - shifts[job]) % period for job in phases}) == 1
    assert all(0 < wait < period for wait in waits.values())
    assert len(waits) < len(phases)  # one of them waits for nothing
    assert corrections(after, shifts, periods, threshold=0) == {}


def test_what_cannot_be():
    with pytest.raises(UsageError, match=r"threshold: expected .*, got 0\.6"):
        corrections({}, {}, {}, threshold=0.6)
    with pytest.raises(UsageError, match="job 'b'"):
        corrections({"a": 1, "b": 2}, {"a": 0}, {"a": 1, "b": 1})
