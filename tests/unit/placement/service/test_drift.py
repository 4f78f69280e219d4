from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.agent.time_shift import Timetable
from mltcp.core.delay import Delay
from placement.service.drift import ALLOWANCE, APPLY_WITHIN_NS, RETIMED, IterationTiming, JobTimelines

MS = 10**6
SHIFTS = {"a": 0, "b": 50 * MS}
PERIODS = {"a": 100 * MS, "b": 100 * MS}
NOW = 10**18


def courses():
    return JobTimelines(0.05)


def note(made, job, number, at_ms, now_ns=NOW + 10**9):
    return made.note(job, IterationTiming(number, NOW + round(at_ms * MS), 100 * MS), now_ns, "")


def waits(made, now_ns=NOW + 10**9):
    found = made.delays(["a", "b"], SHIFTS, PERIODS, now_ns)
    return {job: each.delay_ns / MS for job, each in found.items() if each.delay_ns}


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
        note(made, "b", 1, 70)
        found = made.delays(["a", "b"], SHIFTS, PERIODS, NOW)
        assert {job: each.sequence for job, each in found.items()} == {"a": sequence, "b": sequence}
        made.forget("a")
        made.forget("b")


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


LONGEST_MS = 415 * (1 + ALLOWANCE + RETIMED) + 1
"""The longest period after a collision: one sent during the collision is too long, and corrected soon after it."""


class Sender:
    """A job in steps of a millisecond that computes, then sends; like an agent, it applies a delay before it sends."""

    def __init__(self, silent_ms, sends_ms, later_ms=0, keeps_time=True):
        self.silent_ms, self.sends_ms, self.keeps_time = silent_ms, sends_ms, keeps_time
        self.number, self.started_ms, self.began_ms = 0, later_ms, None
        self.left, self.held_ms, self.early_ms = sends_ms, 0, 0
        self.hold = self.kept = self.table = None
        self.durations = []

    def wants(self, now_ms):
        if now_ms < self.started_ms + self.silent_ms + self.held_ms:
            return False
        if self.hold is not None and self.hold[0] <= self.number and self.began_ms is None:
            _, delay, self.table = self.hold
            self.held_ms = delay.wait_ns(now_ms * MS) // MS
            self.hold, self.kept = None, (delay.sequence, self.number)
            return self.wants(now_ms)
        if self.began_ms is None:
            if self.keeps_time and self.table and self.table.wait_ns("", 0, now_ms * MS) > 0:
                self.early_ms += 1
                return False
            self.began_ms = now_ms
        return True

    def end(self, now_ms):
        """End the iteration, and return its report."""
        taken_ms = now_ms - self.started_ms
        report = IterationTiming(
            self.number, NOW + self.began_ms * MS, (taken_ms - self.held_ms - self.early_ms) * MS
        )
        self.durations.append(taken_ms)
        self.number += 1
        self.started_ms, self.began_ms, self.left = now_ms, None, self.sends_ms
        self.held_ms = self.early_ms = 0
        return report

    def keep(self, sent, now_ms, notice_ms):
        """Choose the next iteration that is far enough ahead, at the present pace."""
        delay = Delay(sent.sequence, sent.delay_ns, "", sent.at_ns - NOW, sent.period_ns)
        pace_ms = self.durations[-1] if self.durations else self.silent_ms + self.sends_ms
        number, begins_ms = self.number, self.started_ms + self.silent_ms
        while begins_ms < now_ms + notice_ms:
            number, begins_ms = number + 1, begins_ms + pace_ms
        table = Timetable("", 0, 1, delay.at_ns, delay.period_ns)
        waits_ns = delay.wait_ns(begins_ms * MS)
        self.hold = number, replace(delay, delay_ns=waits_ns), table


def run_beside(made, notice_ms, share, later_ms, shorter_ms=0, keeps_time=True):
    """How often one of two such jobs was delayed in 100 iterations, and how long their last 40 took.

    Without company, the first takes 415 ms less `shorter_ms`, the second 415 ms.
    """
    iterations, silent_ms, sends_ms = 100, 215, 200
    jobs = {
        "a": Sender(silent_ms - shorter_ms, sends_ms, keeps_time=keeps_time),
        "b": Sender(silent_ms, sends_ms, later_ms, keeps_time),
    }
    period_ms = silent_ms + sends_ms
    shifts = {"a": 0, "b": period_ms // 2 * MS}
    periods = {"a": (period_ms - shorter_ms) * MS, "b": period_ms * MS}
    delays, now_ms = 0, 0
    while min(job.number for job in jobs.values()) < iterations:
        now_ms += 1
        sending = sorted(
            (name for name, job in jobs.items() if job.wants(now_ms)), key=lambda name: jobs[name].began_ms
        )
        rates = [1.0] if len(sending) == 1 else [share, 1 - share]
        for name, rate in zip(sending, rates, strict=False):
            jobs[name].left -= rate
        for name in sending:
            job = jobs[name]
            if job.left > 0:
                continue
            made.note(name, job.end(now_ms), NOW + now_ms * MS, "")
            if job.kept is not None:
                made.applied(name, *job.kept)
                job.kept = None
            for held, sent in made.delays(["a", "b"], shifts, periods, NOW + now_ms * MS).items():
                jobs[held].keep(sent, now_ms, notice_ms)
                delays += 1
    return delays, [taken for job in jobs.values() for taken in job.durations[-40:]]


@pytest.mark.slow
@pytest.mark.parametrize("notice_ms", [20, 50, 250])
@pytest.mark.parametrize("share", [0.5, 0.55, 0.65, 0.8])
@pytest.mark.parametrize("later_ms", [0, 30, 150, 280, 400])
def test_jobs_that_collide_are_told_apart_at_once_however_late_delays_are_kept(notice_ms, share, later_ms):
    delays, durations = run_beside(JobTimelines(0.03), notice_ms, share, later_ms)
    assert delays <= 8
    assert max(durations) <= LONGEST_MS


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 0.65])
@pytest.mark.parametrize("shorter_ms", [5, 10])
def test_who_is_faster_alone_than_on_the_circle_keeps_to_its_time(share, shorter_ms):
    delays, durations = run_beside(JobTimelines(0.03), 50, share, 30, shorter_ms)
    assert delays <= 6
    assert max(durations) <= LONGEST_MS
    adrift, _ = run_beside(JobTimelines(0.03), 50, share, 30, shorter_ms, keeps_time=False)
    assert adrift > 2 * delays


def test_who_was_told_a_period_in_a_collision_is_told_another_once_it_lies_right():
    made = courses()

    def look(number, at_ms, taken_ms):
        now_ns = NOW + round(at_ms * MS) + MS
        for job, shift_ns in SHIFTS.items():
            began_ns = NOW + round(at_ms * MS) + shift_ns % (100 * MS)
            made.note(job, IterationTiming(number, began_ns, round(taken_ms * MS)), now_ns + 100 * MS, "")
        return decided(number, now_ns)

    def decided(number, now_ns):
        told = made.delays(["a", "b"], SHIFTS, PERIODS, now_ns)
        for job, each in told.items():
            made.applied(job, each.sequence, number + 1)
        return told

    note(made, "a", 1, 0)
    made.note("b", IterationTiming(1, NOW + 70 * MS, 102 * MS), NOW + 10**9, "")
    told = decided(1, NOW)
    assert {job: each.period_ns for job, each in told.items()} == dict.fromkeys("ab", 102.5 * MS)
    told = [look(number, 102.5 * number, 100) for number in range(2, 20)]
    # four durations tell how fast they are now; nobody is held back for it, and it is said once
    assert [bool(each) for each in told] == [False] * 3 + [True] + [False] * 14
    for each in told[3].values():
        assert (each.delay_ns, each.period_ns) == (0, 100.5 * MS)


def test_delays_in_vain_become_rarer_and_one_look_in_place_starts_anew():
    made, now_ns = courses(), NOW + 10**12
    numbers, spare = iter(range(1, 1000)), []

    def looks_until_a_delay(apart_ms):
        for looks in range(1, 100):
            number = next(numbers)
            note(made, "a", number, 100 * number, now_ns)
            note(made, "b", number, 100 * number + apart_ms, now_ns)
            if found := made.delays(["a", "b"], SHIFTS, PERIODS, now_ns):
                spare.append(found["b"].delay_ns / MS)
                for job, each in found.items():
                    made.applied(job, each.sequence, number)
                return looks
        return None

    assert [looks_until_a_delay(20) for _ in range(6)] == [1, 1, 2, 4, 4, 4]
    assert [each - spare[0] for each in spare] == pytest.approx([0, *[50 * 1.005] * 5])
    note_in_place = next(numbers)
    note(made, "a", note_in_place, 100 * note_in_place, now_ns)
    note(made, "b", note_in_place, 100 * note_in_place + 50, now_ns)
    assert waits(made, now_ns) == {}
    assert looks_until_a_delay(20) == 1
