from hypothesis import given
from hypothesis import strategies as st

from placement.service.drifting import APPLY_WITHIN_NS, Courses, Report

MS = 10**6
SHIFTS = {"a": 0, "b": 50 * MS}
PERIODS = {"a": 100 * MS, "b": 100 * MS}
NOW = 10**18


def courses():
    return Courses(0.05)


def note(made, job, number, at_ms, now_ns=NOW + 10**9):
    return made.note(job, Report(number, NOW + round(at_ms * MS), 100 * MS), now_ns, "")


def waits(made, now_ns=NOW + 10**9):
    return {job: each.delay_ns / MS for job, each in made.delays(["a", "b"], SHIFTS, PERIODS, now_ns).items()}


def test_nothing_is_decided_until_all_have_reported_anew():
    made = courses()
    note(made, "a", 1, 0)
    assert waits(made) == {}
    note(made, "b", 1, 70)
    assert waits(made) == {"a": 20}
    assert waits(made) == {}


def test_a_delay_that_is_never_confirmed_is_taken_as_lost():
    made = courses()
    note(made, "a", 1, 0)
    note(made, "b", 1, 70)
    assert waits(made) == {"a": 20}
    later = NOW + APPLY_WITHIN_NS
    assert not note(made, "a", 2, 100, later)
    assert note(made, "a", 3, 200, later + 2 * 10**9)


def test_only_the_confirmation_that_is_awaited_counts():
    made = courses()
    note(made, "a", 1, 0)
    note(made, "b", 1, 70)
    assert waits(made)
    made.applied("a", 7, 2)
    assert not note(made, "a", 2, 100)
    made.applied("a", 1, 5)
    assert not note(made, "a", 4, 200), "it began before the delay"
    assert note(made, "a", 5, 320)


def test_sequences_rise_over_a_new_stream():
    made = courses()
    for sequence in (1, 2):
        note(made, "a", 1, 0)
        note(made, "b", sequence, 100 * sequence - 30)
        assert made.delays(["a", "b"], SHIFTS, PERIODS, NOW)["a"].sequence == sequence
        made.forget("a")


@given(st.integers(0, 99), st.integers(0, 99))
def test_after_the_delays_the_jobs_lie_as_they_should(first, second):
    made = courses()
    note(made, "a", 1, 1 + first)
    note(made, "b", 1, 1 + second)
    delays = waits(made)
    apart = (second + delays.get("b", 0)) - (first + delays.get("a", 0))
    off = (apart - 50) % 100
    assert min(off, 100 - off) <= 5
    assert len(delays) < 2
