"""The control loop on counters that a test gives it."""

import socket

import pytest

from mltcp.control.aggressiveness import Aggressiveness
from mltcp.control.iteration import IterationTracker
from mltcp.core.errors import MltcpError
from mltcp.pacing.controller import IDLE_NS, IDLE_TICKS, PacingController
from mltcp.pacing.rate_law import Constants
from mltcp.pacing.sock_diag import FlowKey, Sample

LINE = 1e9
STEP_NS = 2_000_000
TOTAL = 1_000_000
GAP_NS = 20_000_000


class Counters:
    """The counters of flows, as the kernel would tell them."""

    def __init__(self):
        self.samples = {}
        self.forgotten = []

    def sample(self, flows):
        return [self.samples.get(flow) for flow in flows]

    def forget(self, flow):
        self.forgotten.append(flow)

    def grow(self, flow, acked=0, marked=0, retransmits=0, unacked=0):
        before = self.samples[flow]
        self.samples[flow] = Sample(
            before.acked_bytes + acked,
            before.delivered + 1,
            (before.delivered_ce + marked) & 0xFFFFFFFF,
            before.retransmits + retransmits,
            unacked,
        )


def flow(number):
    return FlowKey(socket.AF_INET, ("10.0.0.1", number), ("10.0.0.2", 1), number)


class Loop:
    def __init__(self, mltcp=True, jobs=1, flows=1, total=TOTAL, gap_ns=GAP_NS):
        self.counters = Counters()
        self.controller = PacingController(self.counters, LINE, mltcp, Constants(start_rate=1.0))
        self.now_ns = 10**9
        self.flows = {}
        for number in range(jobs):
            self.controller.add_job(number, Aggressiveness(), IterationTracker(total, gap_ns))
            self.flows[number] = [flow(100 * number + each) for each in range(flows)]
            for each in self.flows[number]:
                self.counters.samples[each] = Sample(0, 0, 0, 0)
            self.controller.add_flows(number, self.flows[number])
        self.tick()

    def tick(self, times=1):
        changed = {}
        for _ in range(times):
            self.now_ns += STEP_NS
            rates, self.gone = self.controller.tick(self.now_ns)
            changed |= rates
        return changed

    def job(self, number=0):
        return self.controller.jobs[number]


def test_bytes_of_all_flows_make_the_jobs_ratio():
    loop = Loop(flows=2)
    loop.counters.grow(loop.flows[0][0], acked=TOTAL // 4)
    loop.counters.grow(loop.flows[0][1], acked=TOTAL // 4)
    loop.tick()
    assert loop.job().bytes_ratio == 0.5
    assert loop.job().factor == pytest.approx(0.5 * 1.75 + 0.25)


def test_what_a_flow_had_sent_before_it_came_does_not_count():
    loop = Loop()
    late = flow(77)
    loop.counters.samples[late] = Sample(10**9, 5, 3, 2)
    loop.controller.add_flows(0, [late])
    loop.tick()
    assert (loop.job().acked_bytes, loop.job().marks, loop.job().retransmits) == (0, 0, 0)


@pytest.mark.parametrize("sign", ["marked", "retransmits"])
def test_a_mark_or_a_retransmission_lowers_the_rate(sign):
    loop = Loop()
    loop.counters.grow(loop.flows[0][0], acked=1000, **{sign: 1})
    assert loop.tick() == {0: 0.5}


def test_counters_that_wrap_around_count_on():
    loop = Loop()
    first = loop.flows[0][0]
    loop.counters.samples[first] = Sample(0, 0, 0xFFFFFFFF, 0)
    loop.controller.jobs[0].flows[first] = loop.counters.samples[first]
    loop.counters.grow(first, marked=1)
    loop.tick()
    assert loop.job().marks == 1


def test_an_unchanged_rate_is_not_reported():
    loop = Loop()
    loop.counters.grow(loop.flows[0][0], acked=1000)
    assert loop.tick() == {}


def test_after_the_gap_the_rate_is_set_for_the_next_iterations_first_bytes():
    loop = Loop()
    loop.counters.grow(loop.flows[0][0], acked=TOTAL)
    loop.tick()
    quiet_ticks = GAP_NS // STEP_NS
    assert loop.tick(quiet_ticks) == {}
    assert loop.tick() == {0: 0.25}  # F(0) of the line rate
    assert loop.tick(50) == {}  # and stays there until the job sends
    loop.counters.grow(loop.flows[0][0], acked=1000)
    assert loop.tick()[0] == pytest.approx((0.25 + 1) / 2)
    assert [record.bytes for record in loop.job().finished] == [TOTAL]


def test_a_silence_with_data_in_flight_is_no_pause():
    """A retransmission time-out: all that the job has sent but its last segment is acknowledged."""
    loop = Loop()
    first = loop.flows[0][0]
    loop.counters.grow(first, acked=TOTAL - 1000, unacked=1)
    loop.tick()
    assert loop.tick(3 * GAP_NS // STEP_NS) == {}
    loop.counters.grow(first, acked=1000)
    loop.tick(2 * GAP_NS // STEP_NS)
    loop.counters.grow(first, acked=1000, unacked=7)  # the next iteration, after a pause
    loop.tick()
    assert [record.bytes for record in loop.job().finished] == [TOTAL]


def test_plain_dcqcn_recovers_in_the_pause_and_knows_no_f():
    loop = Loop(mltcp=False)
    loop.counters.grow(loop.flows[0][0], acked=TOTAL, marked=1)
    assert loop.tick() == {0: 0.5}
    loop.tick(40)
    assert loop.job().law.current_bps > 0.99 * LINE
    assert loop.job().factor == 1.0


def test_flows_that_are_gone_are_told_and_forgotten():
    loop = Loop(flows=2)
    lost, kept = loop.flows[0]
    del loop.counters.samples[lost]
    loop.tick()
    assert loop.gone == [lost]
    assert list(loop.job().flows) == [kept]
    assert lost in loop.counters.forgotten


def test_jobs_do_not_mix():
    loop = Loop(jobs=3, flows=2)
    loop.counters.grow(loop.flows[1][0], acked=5000, marked=2)
    assert loop.tick()[1] == 0.5
    assert [loop.job(number).acked_bytes for number in range(3)] == [0, 5000, 0]


def test_sampling_makes_no_pauses():
    """With intervals of 10 ms, bytes in every one of them are one iteration, not many of 10 ms each."""
    tracker = IterationTracker()
    now_ns = 10**9
    records = []
    for _ in range(6):
        for _ in range(12):  # 120 ms of sending
            records.append(tracker.observe_interval(now_ns, now_ns + 10_000_000, 10_000))
            now_ns += 10_000_000
        for _ in range(20):  # 200 ms of silence
            records.append(tracker.observe_interval(now_ns, now_ns + 10_000_000, 0))
            now_ns += 10_000_000
    found = [record for record in records if record is not None]
    assert [record.bytes for record in found] == [120_000] * 5
    assert tracker.recognised
    assert tracker.total_bytes == 120_000


def test_an_interval_whose_counters_cannot_be_read_counts_with_the_next():
    whole, halved = Loop(), Loop()
    for loop in (whole, halved):
        loop.counters.grow(loop.flows[0][0], acked=1000, marked=1)
        loop.tick()
        loop.now_ns += STEP_NS

    def fail(flows):
        raise MltcpError("sock_diag: no")

    halved.counters.sample, sample = fail, halved.counters.sample
    with pytest.raises(MltcpError):
        halved.controller.tick(halved.now_ns)
    halved.counters.sample = sample
    for loop in (whole, halved):
        loop.counters.grow(loop.flows[0][0], acked=50_000)
        loop.tick()
    assert halved.controller.rates() == whole.controller.rates()
    assert whole.controller.jobs[0].law.current_bps < LINE
    assert halved.controller.jobs[0].law.current_bps == whole.controller.jobs[0].law.current_bps


# -- many flows ------------------------------------------------------------------------------------------------------


def test_of_a_job_with_many_flows_a_part_is_read_at_a_time_and_nothing_is_lost(monkeypatch):
    monkeypatch.setattr("mltcp.pacing.controller.MOST_READ", 8)
    loop = Loop(flows=20, total=0)
    loop.tick(2)  # from then on they count
    asked = []
    usual = loop.counters.sample
    monkeypatch.setattr(loop.counters, "sample", lambda flows: asked.append(len(flows)) or usual(flows))
    for _ in range(9):
        for each in loop.flows[0]:
            loop.counters.grow(each, acked=10, retransmits=1)
        loop.tick()
    # The last ones are read in the next rounds.
    loop.tick(6)
    assert max(asked) == 8
    assert loop.job().retransmits == 9 * 20
    assert loop.job().acked_bytes == 9 * 20 * 10


def test_jobs_with_few_flows_are_read_in_every_interval_beside_one_with_many(monkeypatch):
    monkeypatch.setattr("mltcp.pacing.controller.MOST_READ", 8)
    loop = Loop(jobs=3, flows=2)
    many = [flow(1000 + each) for each in range(100)]
    loop.counters.samples |= dict.fromkeys(many, Sample(0, 0, 0, 0))
    loop.controller.add_flows(0, many)
    loop.tick(100)
    for _ in range(5):
        loop.counters.grow(loop.flows[1][0], acked=7)
        loop.tick()
        assert loop.job(1).read_ns == loop.now_ns
    assert loop.job(1).acked_bytes == 35


def test_flows_that_close_while_others_are_read_are_forgotten(monkeypatch):
    monkeypatch.setattr("mltcp.pacing.controller.MOST_READ", 8)
    loop = Loop(flows=20)
    loop.tick(4)
    gone = []
    for each in loop.flows[0]:
        loop.counters.samples[each] = None
    for _ in range(8):
        loop.tick()
        gone += loop.gone
    assert sorted(gone, key=str) == sorted(loop.flows[0], key=str)
    assert not loop.job().flows
    assert not loop.job().unread


def test_where_idle_jobs_rest_they_are_read_seldom_until_they_send():
    loop = Loop(jobs=2)
    loop.controller = PacingController(loop.counters, LINE, constants=Constants(start_rate=1.0), rest=True)
    reads = dict.fromkeys(loop.flows, 0)
    for number, flows in loop.flows.items():
        loop.controller.add_job(number, Aggressiveness(), IterationTracker())
        loop.controller.add_flows(number, flows)
    sample = loop.counters.sample

    def counted(flows):
        for number, own in loop.flows.items():
            reads[number] += len(set(own) & set(flows))
        return sample(flows)

    loop.counters.sample = counted
    rounds = 10
    loop.tick(2 * IDLE_NS // STEP_NS)
    loop.counters.grow(loop.flows[0][0], acked=1000)
    loop.tick(IDLE_TICKS)
    asleep = reads[1]
    for _ in range(rounds * IDLE_TICKS):
        before = dict(reads)
        loop.counters.grow(loop.flows[0][0], acked=1000)
        loop.tick()
        assert reads[0] == before[0] + 1
    assert reads[1] - asleep == rounds
    loop.counters.grow(loop.flows[1][0], acked=5000)
    loop.tick(IDLE_TICKS)
    assert loop.job(1).acked_bytes == 5000
    before = reads[1]
    loop.tick(IDLE_TICKS)
    assert reads[1] == before + IDLE_TICKS  # awake again


def test_a_job_whose_iterations_are_known_never_rests():
    loop = Loop()
    loop.controller = PacingController(loop.counters, LINE, constants=Constants(start_rate=1.0), rest=True)
    job = loop.controller.add_job(0, Aggressiveness(), IterationTracker(TOTAL, GAP_NS))
    loop.controller.add_flows(0, loop.flows[0])
    loop.tick(2 + 2 * IDLE_NS // STEP_NS)
    assert job.tracker.recognised
    assert not job.idle(loop.now_ns)


STEPS, PAUSE_TICKS, COMPUTE_TICKS = 18, 5, 50


def rates_of_an_iteration(loop, number, reports):
    """The rate that each step of a ring of ten ranks begins with, of an iteration with computing before it."""
    if reports:
        loop.job().tracker.boundary(number, loop.now_ns)
        loop.counters.grow(loop.flows[0][0], acked=20_000)  # late
    loop.tick(COMPUTE_TICKS)
    rates = []
    for _ in range(STEPS):
        rates.append(loop.job().law.current_bps / LINE)
        loop.counters.grow(loop.flows[0][0], acked=100_000)
        loop.tick()
        loop.counters.grow(loop.flows[0][0], acked=100_000)
        loop.tick(1 + PAUSE_TICKS)
    return rates


@pytest.mark.parametrize("reports", [True, False])
def test_only_the_first_step_of_an_iteration_begins_slowly_where_the_program_reports_iterations(reports):
    loop = Loop(total=0, gap_ns=0)
    rates = [rates_of_an_iteration(loop, 64 + number, reports) for number in range(8)][-1]
    assert rates[0] == pytest.approx(0.25)
    assert (min(rates[1:]) > 0.9) == reports
