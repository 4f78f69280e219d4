import pytest
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


# -- two jobs on one link, of which the earlier to send gets more of it -----------------------------------------------


class Sender:
    """A job in steps of a millisecond: it computes, then sends; a delay is kept before it sends."""

    def __init__(self, name, silent_ms, sends_ms, lead):
        self.name, self.silent_ms, self.sends_ms, self.lead = name, silent_ms, sends_ms, lead
        self.number, self.started_ms, self.began_ms = 0, 0, None
        self.left = sends_ms
        self.held_until_ms = 0
        self.delay = None

    def wants(self, now_ms):
        if now_ms < self.started_ms + self.silent_ms:
            return False
        if self.delay is not None and self.delay[0] <= self.number and self.began_ms is None:
            self.held_until_ms = now_ms + self.delay[1]
            self.kept = self.delay[2], self.number
            self.delay = None
        if now_ms < self.held_until_ms:
            return False
        if self.began_ms is None:
            self.began_ms = now_ms
        return True


def run_beside(made, lead, share, later_ms, iterations=100, silent_ms=215, sends_ms=200):
    """The delays (iteration, ms) of two such jobs, and how long their last ten iterations took."""
    jobs = {name: Sender(name, silent_ms, sends_ms, lead) for name in "ab"}
    jobs["b"].started_ms = later_ms
    period_ms = silent_ms + sends_ms
    shifts = {"a": 0, "b": period_ms // 2 * MS}
    periods = dict.fromkeys("ab", period_ms * MS)
    delays, durations = [], {name: [] for name in "ab"}
    now_ms = 0
    while min(job.number for job in jobs.values()) < iterations:
        now_ms += 1
        sending = sorted((j for j in jobs.values() if j.wants(now_ms)), key=lambda j: j.began_ms)
        rates = [1.0] if len(sending) == 1 else [share, 1 - share]
        for job, rate in zip(sending, rates, strict=False):
            job.left -= rate
        for job in sending:
            if job.left > 0:
                continue
            held_ms = max(0, job.began_ms - job.started_ms - silent_ms)
            duration_ms = now_ms - job.started_ms
            durations[job.name].append(duration_ms)
            report = Report(job.number, NOW + job.began_ms * MS, (duration_ms - held_ms) * MS)
            made.note(job.name, report, NOW + now_ms * MS, "")
            kept = getattr(job, "kept", None)
            if kept is not None:
                made.applied(job.name, *kept)
                job.kept = None
            for name, each in made.delays(["a", "b"], shifts, periods, NOW + now_ms * MS).items():
                delays.append((jobs[name].number, each.delay_ns / MS))
                jobs[name].delay = jobs[name].number + lead - 1, each.delay_ns / MS, each.sequence
            job.number += 1
            job.started_ms, job.began_ms, job.left = now_ms, None, sends_ms
    return delays, durations


@pytest.mark.parametrize("lead", [2, 3, 4, 6])
@pytest.mark.parametrize("share", [0.5, 0.55, 0.65, 0.8])
@pytest.mark.parametrize("later_ms", [0, 30, 150, 280, 400])
def test_jobs_that_collide_are_told_apart_by_a_few_delays_however_late_they_are_kept(lead, share, later_ms):
    delays, durations = run_beside(Courses(0.03), lead, share, later_ms)
    assert len(delays) <= 8, delays
    assert max(durations["a"][-20:] + durations["b"][-20:]) <= 1.03 * 415


def test_delays_in_vain_become_rarer_and_one_look_in_place_starts_anew():
    made, now_ns = courses(), NOW + 10**12
    numbers = iter(range(1, 1000))

    def looks_until_a_delay(apart_ms):
        for looks in range(1, 100):
            number = next(numbers)
            note(made, "a", number, 100 * number, now_ns)
            note(made, "b", number, 100 * number + apart_ms, now_ns)
            if found := made.delays(["a", "b"], SHIFTS, PERIODS, now_ns):
                for job, each in found.items():
                    made.applied(job, each.sequence, number)
                return looks
        return None

    assert [looks_until_a_delay(20) for _ in range(6)] == [1, 1, 2, 4, 8, 16]
    note_in_place = next(numbers)
    note(made, "a", note_in_place, 100 * note_in_place, now_ns)
    note(made, "b", note_in_place, 100 * note_in_place + 50, now_ns)
    assert waits(made, now_ns) == {}
    assert looks_until_a_delay(20) == 1
