"""Delays, announcements, the service's clock, iteration starts, learned profiles, and the agent that uses them."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from queue import SimpleQueue
from time import monotonic_ns

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from collectives.agent import agent as agents
from collectives.agent.agent import Agent
from collectives.agent.announcements import (
    Announcer,
    Applied,
    IterationReport,
    Listener,
    ProfileReport,
    StreamError,
)
from collectives.agent.iteration_starts import LEAD_NS, IterationStarts
from collectives.agent.learned_profile import LOOKED_AT, REFINED_BY, LearnedProfile, began_to_send_ns
from collectives.agent.time_shift import EARLY_BY, HELD, LATE, RENEW_S, ServiceClock, TimeShifts, Timetable
from collectives.core.settings import GateSettings, Settings
from collectives.group.admission import AdmissionControl
from collectives.recording.operation import GroupLabel, InFlightOperation
from collectives.recording.records import Iteration, Operation
from mltcp.core.delay import Delay, Detach
from mltcp.core.errors import UsageError
from tests.eventually import eventually

WAIT_S = 20.0
MS = 1_000_000


# -- delays ------------------------------------------------------------------------------------------------------------


def delay_before(number, delay_ns, sequence=1):
    return Delay(sequence, delay_ns, group="g", number=number)


def shifts():
    outcomes = SimpleQueue()
    return TimeShifts(lambda delay, outcome: outcomes.put((delay.sequence, outcome))), outcomes


def test_only_the_operation_that_is_meant_is_held_and_only_once():
    found, outcomes = shifts()
    admission, group, other = AdmissionControl(found), GroupLabel("g", 0, 2), GroupLabel("h", 0, 2)
    found.add(delay_before(3, 30 * MS, sequence=7))
    operations = [
        InFlightOperation("all_reduce", each, 8) for each in (group, other, group, other, other, group, group)
    ]
    for each in operations:
        admission.admit(each)
    assert [each.number for each in operations] == [1, 1, 2, 2, 3, 3, 4]
    assert [each.held_ns >= 30 * MS for each in operations] == [False] * 5 + [True, False]
    assert outcomes.get(timeout=WAIT_S) == (7, HELD)
    assert outcomes.empty()


def test_a_delay_to_a_time_ends_at_that_time_whenever_its_operation_comes():
    found, outcomes = shifts()
    at_ns = monotonic_ns() + 200 * MS
    found.add(replace(delay_before(1, 0), at_ns=at_ns, period_ns=10**12))
    found.enter("g", 1)
    assert at_ns <= monotonic_ns() < at_ns + 10**11
    assert outcomes.get(timeout=WAIT_S) == (1, HELD)
    found.add(replace(delay_before(2, 0), at_ns=at_ns, period_ns=10**12))
    found.enter("g", 2)  # late: it does not wait for the next time
    assert monotonic_ns() < at_ns + 10**11


def test_an_operation_that_has_gone_is_late():
    found, outcomes = shifts()
    for number in (1, 2):
        found.enter("g", number)
    found.add(delay_before(2, 10**12))
    assert outcomes.get(timeout=WAIT_S) == (1, LATE)
    found.enter("g", 3)
    assert found.reached("g") == 3


TURNS = st.integers(-1000, 1000)


@given(st.integers(0, 10**12), st.integers(10, 10**9), TURNS, st.integers(1, 50), TURNS, st.data())
def test_a_timetable_holds_back_what_is_a_little_early(at_ns, period_ns, turn, every, iterations, data):
    table = Timetable("g", 100, every, at_ns, period_ns)
    early_ns = data.draw(st.integers(0, int(EARLY_BY * period_ns)))
    begins = 100 + iterations * every
    slot_ns = at_ns + turn * period_ns
    assert table.wait_ns("g", begins, slot_ns - early_ns) == early_ns
    late_ns = data.draw(st.integers(0, int((1 - EARLY_BY) * period_ns) - 1))
    assert table.wait_ns("g", begins, slot_ns + late_ns) == 0
    assert table.wait_ns("h", begins, slot_ns - early_ns) == 0
    within = data.draw(st.integers(1, every))
    assert within == every or table.wait_ns("g", begins + within, slot_ns - early_ns) == 0


def test_who_keeps_to_a_timetable_goes_on_time_and_a_hold_comes_first():
    found, outcomes = shifts()
    slot_ns = monotonic_ns() + 200 * MS
    found.follow_timetable(Timetable("g", 1, 2, slot_ns, 10**12))
    found.enter("g", 2)
    assert monotonic_ns() < slot_ns, "it begins no iteration"
    found.enter("g", 3)
    assert monotonic_ns() >= slot_ns
    found.follow_timetable(Timetable("g", 1, 2, monotonic_ns() + 90 * 10**9, 10**12))
    found.add(delay_before(5, 1))
    found.enter("g", 5)
    assert outcomes.get(timeout=WAIT_S) == (1, HELD)
    found.follow_timetable(None)
    found.enter("g", 7)
    assert monotonic_ns() < slot_ns + 60 * 10**9


def test_a_long_hold_ends_with_the_job():
    found, _ = shifts()
    found.add(delay_before(1, 10**15))
    thread = threading.Thread(target=found.enter, args=("g", 1))
    thread.start()
    found.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()


@given(st.lists(st.integers(1, 50), unique=True), st.lists(st.integers(1, 50), unique=True))
def test_each_hold_has_one_outcome_whenever_it_is_heard_of(early, late):
    """Delays `early` are added before the first operation, `late` after half of the operations."""
    found, outcomes = shifts()
    for number in early:
        found.add(delay_before(number, 0, sequence=number))
    for number in range(1, 26):
        found.enter("g", number)
    for number in set(late) - set(early):
        found.add(delay_before(number, 0, sequence=number))
    for number in range(26, 51):
        found.enter("g", number)
    heard = dict(outcomes.get() for _ in range(outcomes.qsize()))
    assert heard == {
        **dict.fromkeys(early, HELD),
        **{number: HELD if number > 25 else LATE for number in set(late) - set(early)},
    }


def test_a_hook_that_fails_harms_no_operation(caplog):
    def fail(delay, outcome):
        raise ValueError("broken")

    found = TimeShifts(fail)
    found.add(delay_before(1, 0))
    found.add(delay_before(2, 0, sequence=2))
    admission, group = AdmissionControl(found), GroupLabel("g", 0, 2)
    operations = [InFlightOperation("all_reduce", group, 8) for _ in range(3)]
    for each in operations:
        admission.admit(each)
    assert [each.number for each in operations] == [1, 2, 3]
    assert caplog.text.count("could not be held back") == 1


# -- announcements -----------------------------------------------------------------------------------------------------


def tcp_store(tmp_path):
    return dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)


def file_store(tmp_path):
    return dist.FileStore(str(tmp_path / "store"), 3)


@pytest.mark.parametrize("make", [tcp_store, file_store])
def test_every_rank_hears_and_is_heard(make, tmp_path):
    store = make(tmp_path)
    announcer, heard = Announcer(store, 3), SimpleQueue()
    listeners = [Listener(store, rank, lambda delay, rank=rank: heard.put((rank, delay))) for rank in (1, 2)]
    for sequence in (1, 2):
        delay = Delay(sequence, 5, "drift", 7, 9).before("g", 10 * sequence, 5)
        announcer.announce(delay)
        received = [heard.get(timeout=WAIT_S) for _ in listeners]
        assert sorted(received, key=lambda each: each[0]) == [(1, delay), (2, delay)]
    assert not announcer.all_acknowledged(1)
    listeners[0].acknowledge(1, HELD)
    eventually(lambda: announcer.late_ranks(1) == (2,))
    listeners[1].acknowledge(1, LATE)
    eventually(lambda: announcer.all_acknowledged(1))
    assert announcer.late_ranks(1) == (2,)
    announcer.forget(1)
    assert not announcer.all_acknowledged(1)
    listeners[0].close()
    assert not listeners[0]._thread.is_alive()
    announcer.close()
    listeners[1]._thread.join(WAIT_S)
    assert not listeners[1]._thread.is_alive()


def test_the_only_rank_waits_for_nobody(tmp_path):
    announcer = Announcer(dist.HashStore(), 1)
    announcer.announce(delay_before(1, 1))
    assert announcer.all_acknowledged(1)
    assert announcer.late_ranks(1) == ()


# -- the service's clock -----------------------------------------------------------------------------------------------


class Network:
    """Two clocks, and messages between them that take any time in each direction."""

    def __init__(self, offset_ns, delays):
        self.now_ns = 10**9
        self.offset_ns = offset_ns
        self._delays = iter(delays)

    def ask_ns(self):
        there_ns, back_ns = next(self._delays)
        self.now_ns += there_ns
        answer_ns = self.now_ns + self.offset_ns
        self.now_ns += back_ns
        return answer_ns


DELAYS = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=8, max_size=8)


@given(st.integers(-(10**18), 10**18), DELAYS)
def test_the_offset_is_wrong_by_no_more_than_half_the_quickest_round_trip(offset_ns, delays):
    network = Network(offset_ns, delays)
    clock = ServiceClock(lambda: network.now_ns)
    clock.renew(network.ask_ns)
    error_ns = clock.at(5) - (5 + offset_ns)
    assert abs(error_ns) <= min(there + back for there, back in delays) / 2 + 1
    assert clock.error_ns == min(there + back for there, back in delays) // 2


def test_the_offset_is_measured_now_and_then_and_kept_when_nobody_answers():
    network = Network(77, [(0, 0)] * 8)
    clock = ServiceClock(lambda: network.now_ns)
    assert clock.is_due
    clock.renew(network.ask_ns)
    assert not clock.is_due
    network.now_ns += int(RENEW_S * 1e9) + 1
    assert clock.is_due

    def nobody():
        raise StreamError("away")

    with pytest.raises(StreamError):
        clock.renew(nobody)
    assert clock.at(0) == 77


# -- iterations --------------------------------------------------------------------------------------------------------


def iteration(
    number,
    first=None,
    *,
    silent_ms=80,
    sending_ms=20,
    nbytes=1000,
    operations=3,
    group="g",
    held_ms=0,
    began_ns=None,
):
    """Operations of a job of 2 ranks; `first` is the number of the first of them."""
    began_ns = 10**9 * (number + 1) if began_ns is None else began_ns
    at_ns = began_ns + (silent_ms + held_ms) * MS
    ends_ns = at_ns + sending_ms * MS
    first = 1 + number * operations if first is None else first
    listed = tuple(
        Operation(
            "all_reduce", group, nbytes, nbytes, at_ns, ends_ns, 2, first + each, held_ms * MS * (each == 0)
        )
        for each in range(operations)
    )
    return Iteration(number, began_ns, ends_ns, listed)


SILENT_MS, TAKES_MS = st.integers(1, 500), 20


def three_iterations(operations, silent_ms, offset=0, held_ms=0):
    """The starts of three consecutive iterations, the last of which was held, and when it ended."""
    starts, at_ns = IterationStarts(2), 10**9
    for number in range(3):
        held = held_ms if number == 2 else 0
        found = iteration(
            number, 1 + offset + number * operations, silent_ms=silent_ms, operations=operations,
            held_ms=held, began_ns=at_ns,
        )  # fmt: skip
        at_ns = found.ended_ns
        starts.add(found)
    return starts, at_ns


@pytest.mark.slow
@given(st.integers(1, 40), SILENT_MS, st.integers(0, 200), st.integers(0, 10), st.integers(0, 10**10))
def test_the_next_start_begins_an_iteration_that_has_not_begun(operations, silent_ms, gone, offset, later_ns):
    starts, ended_ns = three_iterations(operations, silent_ms, offset)
    reached = offset + 3 * operations + gone
    found = starts.next_start(reached, ended_ns + later_ns)
    iterations, rest = divmod(found.number - 1 - offset, operations)
    assert (found.group, rest) == ("g", 0)
    assert found.number > reached
    # as far as three iterations that were alike can tell
    assert found.begins_ns == ended_ns + (silent_ms + (iterations - 3) * (silent_ms + TAKES_MS)) * MS


@given(SILENT_MS, st.integers(0, 300))
def test_it_is_the_first_that_all_ranks_learn_of_in_time(silent_ms, held_ms):
    starts, ended_ns = three_iterations(2, silent_ms, held_ms=held_ms)
    found = starts.next_start(6, ended_ns)
    assert found.begins_ns >= ended_ns + LEAD_NS
    assert found.begins_ns - (silent_ms + TAKES_MS) * MS < max(ended_ns + LEAD_NS, ended_ns + 1)


def test_a_job_that_is_late_is_held_soon_all_the_same():
    starts, ended_ns = three_iterations(2, 80)
    assert starts.next_start(6, ended_ns + 3600 * 10**9).number <= 6 + 1 + 2 * 2


def test_operations_of_some_ranks_only_begin_nothing():
    starts = IterationStarts(4)
    for number in range(3):
        starts.add(iteration(number))
    assert starts.next_start(10, 0) is None
    assert starts.group is None


def test_the_first_iteration_and_one_are_not_enough():
    starts = IterationStarts(2)
    starts.add(iteration(0))
    starts.add(iteration(1))
    assert starts.next_start(6, 0) is None


def test_the_operations_of_a_models_construction_are_not_those_of_an_iteration():
    starts = IterationStarts(2)
    for number, first in ((0, 1), (1, 12), (2, 19)):
        starts.add(iteration(number, first, operations=7))
    assert starts.next_start(22, 0).number == 26


@given(st.integers(0, 10**9), st.integers(0, 10**12), st.integers(1, 10**9), st.integers(0, 10**9))
def test_a_delay_to_a_time_is_kept_on_the_period_by_about_as_long_a_wait(
    begins_ns, at_ns, period_ns, delay_ns
):
    wait_ns = Delay(1, delay_ns, "", at_ns, period_ns).wait_ns(begins_ns)
    off_ns = (begins_ns + wait_ns - at_ns) % period_ns
    assert wait_ns >= 0
    assert abs(wait_ns - delay_ns) <= period_ns // 2 + 1
    assert off_ns == 0 or (wait_ns == 0 and off_ns <= period_ns // 2 + 1)
    assert Delay(1, 7).wait_ns(begins_ns) == 7


@pytest.mark.parametrize(("late_ms", "waits_ms"), [(-20, 20), (0, 0), (60, 0), (200, 0)])
def test_who_was_not_to_wait_and_is_late_goes_at_once(late_ms, waits_ms):
    assert Delay(1, 0, "", 1000 * MS, 412 * MS).wait_ns((1000 + late_ms) * MS) == waits_ms * MS


@given(st.integers(1, 40), SILENT_MS, st.integers(0, 10), st.integers(0, 300))
def test_a_timetable_is_of_the_operations_that_begin_iterations(operations, silent_ms, offset, held_ms):
    starts, _ = three_iterations(operations, silent_ms, offset, held_ms)
    period_ns = (silent_ms + TAKES_MS) * MS
    found = starts.timetable(5, period_ns)
    assert found == Timetable("g", 1 + offset + 2 * operations, operations, 5, period_ns)
    assert starts.timetable(5, 2 * period_ns) is None, "it is of other iterations"


def test_where_iterations_differ_in_their_operations_there_is_no_timetable():
    starts = IterationStarts(2)
    for number, first in enumerate((1, 4, 8, 11)):
        starts.add(iteration(number, first))
    assert starts.timetable(0, 100 * MS) is None
    assert IterationStarts(2).timetable(0, 100 * MS) is None


# -- profiles ----------------------------------------------------------------------------------------------------------


def learned(profile, iterations, **shape):
    """The profiles that were sent during these iterations, with the numbers of the iterations."""
    found = []
    for number in iterations:
        report = profile.add(iteration(number, **shape))
        found += [] if report is None else [(number, report)]
    return found


def test_a_profile_is_sent_when_it_is_learned_and_not_again():
    profile = LearnedProfile()
    found = learned(profile, range(100))
    assert [number for number, _ in found] == [2 + LOOKED_AT - 1]
    assert found[0][1] == ProfileReport(((80 * MS, 0), (20 * MS, 3 * 1000 * 8 * 50)))


@pytest.mark.parametrize("shape", [{"silent_ms": 160}, {"silent_ms": 40}, {"nbytes": 2000}])
def test_a_marked_change_is_sent_once(shape):
    profile = LearnedProfile()
    learned(profile, range(20))
    found = learned(profile, range(20, 60), **shape)
    assert len(found) == 1
    assert found[0][0] < 20 + LOOKED_AT
    assert profile.add(iteration(60, **shape)) is None


@pytest.mark.parametrize("shape", [{"sending_ms": 200}, {"silent_ms": 90}, {"held_ms": 500}])
def test_contention_noise_and_holds_are_no_change(shape):
    profile = LearnedProfile()
    learned(profile, range(2 + LOOKED_AT + REFINED_BY))
    assert learned(profile, range(60, 160), **shape) == []


def test_the_first_guess_is_refined_once_and_then_only_by_what_is_shorter():
    profile = LearnedProfile()
    first = learned(profile, range(8), silent_ms=84)
    found = learned(profile, range(8, 200))
    assert len(first) == 1
    assert [report.phases[0] for _, report in found] == [(80 * MS, 0)]
    assert found[0][0] == 7 + REFINED_BY
    assert learned(profile, range(200, 300), sending_ms=25) == []
    sooner = learned(profile, range(300, 500), sending_ms=15)
    assert [report.phases[1][0] for _, report in sooner] == [15 * MS]


def test_the_reference_point_is_the_first_sending():
    late = iteration(30, silent_ms=95)
    assert began_to_send_ns(late) == late.started_ns + 95 * MS
    assert began_to_send_ns(iteration(0, nbytes=0)) is None


def test_iterations_that_send_nothing_have_no_profile():
    assert learned(LearnedProfile(), range(30), nbytes=0) == []


# -- the agent ---------------------------------------------------------------------------------------------------------


class LocalService:
    """A service in this process."""

    def __init__(self):
        self.reports, self.opened = SimpleQueue(), SimpleQueue()
        self.there = True

    def open(self, job, ranks):
        if not self.there:
            raise StreamError("nobody")
        stream = LocalStream(self)
        self.opened.put(stream)
        return stream

    def next(self, kind):
        while True:
            report = self.reports.get(timeout=WAIT_S)
            if isinstance(report, kind):
                return report


class LocalStream:
    def __init__(self, service):
        self._service = service
        self.inbox = SimpleQueue()

    def clock_ns(self):
        return 0

    def send(self, report):
        self._service.reports.put(report)

    def decisions(self) -> Iterator[Delay | Detach]:
        yield from iter(self.inbox.get, None)

    def close(self):
        self.inbox.put(None)


class Ranks:
    """A job of two ranks in this process: rank 0 with its agent, and rank 1."""

    def __init__(self, monkeypatch):
        monkeypatch.setattr(agents, "REPORT_EVERY_S", 0.0)
        monkeypatch.setattr(agents, "RETRY_S", 0.01)
        monkeypatch.setattr(agents, "WAIT_FOR_RANKS_S", 0.0)
        self.service = LocalService()
        store = dist.HashStore()
        self.shifts = [TimeShifts(lambda delay, outcome: self.agent.outcome(delay, outcome))]
        self.listener = Listener(store, 1, lambda delay: self.shifts[1].add(delay))
        self.shifts.append(
            TimeShifts(lambda delay, outcome: self.listener.acknowledge(delay.sequence, outcome))
        )
        self.agent = Agent(self.service, "job", 2, self.shifts[0], Announcer(store, 2))
        self.number = 0

    def run(self, iterations, ranks=(0, 1)):
        for _ in range(iterations):
            found = iteration(self.number)
            for rank in ranks:
                for operation in found.operations:
                    self.shifts[rank].enter("g", operation.number)
            self.agent.iteration_ended(found)
            self.number += 1

    def close(self):
        self.agent.close()
        self.listener.close()


@pytest.fixture
def ranks(monkeypatch):
    found = Ranks(monkeypatch)
    yield found
    found.close()


def run_until(ranks, kind, among=(0, 1)):
    """Run iterations until the service has a report of this kind; each waits for the report of the previous one."""
    while True:
        ranks.run(1, among)
        report = ranks.service.reports.get(timeout=WAIT_S)
        while not isinstance(report, IterationReport | kind):
            report = ranks.service.reports.get(timeout=WAIT_S)
        if isinstance(report, kind):
            return report


def await_holds(ranks, which):
    """Wait until these ranks have a delay; the iterations of this test take no time and would be over before."""
    eventually(lambda: all(ranks.shifts[rank]._delays for rank in which))


def test_a_delay_is_kept_and_reported_with_the_iteration(ranks):
    stream = ranks.service.opened.get(timeout=WAIT_S)
    ranks.run(10)
    assert ranks.service.next(ProfileReport).phases[0] == (80 * MS, 0)
    ranks.service.next(IterationReport)
    stream.inbox.put(Delay(5, 1000))
    await_holds(ranks, (0, 1))
    applied = run_until(ranks, Applied)
    assert (applied.sequence, applied.late) == (5, ())
    assert 10 < applied.iteration < ranks.number


def test_what_an_iteration_was_held_back_is_not_in_its_reported_duration(ranks):
    ranks.service.opened.get(timeout=WAIT_S)
    ranks.agent.iteration_ended(iteration(0, held_ms=30))
    report = ranks.service.next(IterationReport)
    assert report.duration_ns == 100 * MS


def test_the_iterations_of_a_rank_alone_have_durations_though_it_sends_nothing():
    service = LocalService()
    agent = Agent(service, "job", 1, TimeShifts(lambda delay, outcome: None), Announcer(dist.HashStore(), 1))
    agent.iteration_ended(Iteration(3, 5 * MS, 105 * MS, ()))
    report = service.next(IterationReport)
    agent.close()
    assert (report.number, report.duration_ns) == (3, 100 * MS)


def test_a_rank_that_hears_too_late_is_in_the_report(ranks):
    stream = ranks.service.opened.get(timeout=WAIT_S)
    for number in range(1, 10**4):
        ranks.shifts[1].enter("g", number)  # rank 1 is far ahead, as it cannot be
    ranks.run(10, (0,))
    ranks.service.next(IterationReport)
    stream.inbox.put(Delay(1, 1000))
    await_holds(ranks, (0,))
    assert run_until(ranks, Applied, (0,)).late == (1,)


def test_delays_are_kept_one_after_the_other(ranks):
    stream = ranks.service.opened.get(timeout=WAIT_S)
    ranks.run(10)
    ranks.service.next(IterationReport)
    for sequence in (1, 2, 3):
        stream.inbox.put(Delay(sequence, 1000))
    found = [run_until(ranks, Applied) for _ in range(3)]
    assert [each.sequence for each in found] == [1, 2, 3]
    assert found[0].iteration < found[1].iteration < found[2].iteration


def test_after_a_delay_to_a_time_the_job_keeps_to_it_for_some_time(ranks):
    stream = ranks.service.opened.get(timeout=WAIT_S)
    ranks.run(10)
    ranks.service.next(IterationReport)
    stream.inbox.put(Delay(1, 1000, "", 5, 100 * MS))
    await_holds(ranks, (0, 1))
    (own,), (other,) = (each._delays.values() for each in ranks.shifts)
    assert (own.at_ns, own.period_ns) == (ranks.agent._clock.monotonic_at(5), 100 * MS)
    assert (other.delay_ns, other.period_ns) == (max(0, own.delay_ns - 25 * MS), 0)
    applied = run_until(ranks, Applied)
    ranks.run(1)
    eventually(lambda: ranks.shifts[0]._timetable is not None)
    found = ranks.shifts[0]._timetable
    at_ns = ranks.agent._clock.monotonic_at(5)
    assert (found.every, found.at_ns, found.period_ns) == (3, at_ns, 100 * MS)
    assert (found.number - 1) % 3 == 0
    assert ranks.shifts[1]._timetable is None
    ranks.number = applied.iteration + agents.TIMED_FOR
    ranks.run(1)
    eventually(lambda: ranks.shifts[0]._timetable is None)


def test_a_stream_that_breaks_is_begun_anew_with_the_profile(ranks):
    stream = ranks.service.opened.get(timeout=WAIT_S)
    ranks.run(10)
    first = ranks.service.next(ProfileReport)
    stream.inbox.put(None)
    ranks.service.opened.get(timeout=WAIT_S)
    assert ranks.service.next(ProfileReport) == first


def test_who_is_detached_stays_so(ranks):
    stream = ranks.service.opened.get(timeout=WAIT_S)
    stream.inbox.put(Detach("over"))
    eventually(lambda: ranks.agent._detached and ranks.agent._stream is None)
    ranks.run(20)
    assert ranks.service.opened.empty()


@pytest.mark.parametrize("address", ["nowhere", "unix:", "host:0"])
def test_bad_addresses_are_refused(address):
    with pytest.raises(UsageError, match=f"MLTCP_PLACEMENT: expected .*, got {address!r}"):
        Settings.from_environment({"MLTCP_PLACEMENT": address})


def test_settings():
    found = Settings.from_environment({"MLTCP_PLACEMENT": "unix:/run/p", "MLTCP_GATE": "unix:/run/g"})
    assert (found.placement, found.gate) == ("unix:/run/p", GateSettings("unix:/run/g"))
    assert (Settings.from_environment({}).placement, Settings.from_environment({}).gate) == ("", None)
