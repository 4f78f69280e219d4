import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.control.aggressiveness import ONE_Q16, Aggressiveness, Shape
from mltcp.control.iteration import (
    BOUNDARIES,
    BURSTS,
    FIRST_BOUNDARY,
    PAUSE_FLOOR_NS,
    IterationRecord,
    IterationTracker,
)
from mltcp.core.errors import UsageError

MS = 1_000_000
COMPUTE_NS = 220 * MS


class Flow:
    """Generates the acknowledgements of a flow step by step, and passes them to a tracker."""

    def __init__(self, total_bytes=0, gap_ns=0):
        self.tracker = IterationTracker(total_bytes, gap_ns)
        self.now_ns = 1
        self.records = []

    def ack(self, acked_bytes):
        record = self.tracker.observe(self.now_ns, acked_bytes)
        if record is not None:
            self.records.append(record)

    def send(self, bucket_bytes, acks=10, spacing_ns=MS):
        """A bucket, acknowledged in equal parts; ends at its last acknowledgement."""
        for k in range(acks):
            self.now_ns += spacing_ns if k else 0
            self.ack(bucket_bytes // acks)

    def pause(self, pause_ns):
        self.now_ns += pause_ns

    def iterate(self, iterations, buckets=(1_000_000,), pause_ns=COMPUTE_NS, intra_ns=0):
        """Iterations of a communication phase (buckets, `intra_ns` between them) and then a compute phase."""
        for _ in range(iterations):
            for k, bucket_bytes in enumerate(buckets):
                self.pause(intra_ns if k else 0)
                self.send(bucket_bytes)
            self.pause(pause_ns)

    @property
    def record_bytes(self):
        return [record.bytes for record in self.records]


def test_records_of_a_periodic_flow_are_exact():
    flow = Flow()
    flow.iterate(5)
    period_ns = 9 * MS + COMPUTE_NS
    known = [0, 1_000_000, 1_000_000, 1_000_000]
    assert flow.records == [
        IterationRecord(
            k, 1 + k * period_ns, 1 + k * period_ns + 9 * MS, 1_000_000, known[k], COMPUTE_NS // 2
        )
        for k in range(4)
    ]
    assert flow.tracker.bytes == 1_000_000
    assert flow.tracker.start_ns == 1 + 4 * period_ns
    assert flow.tracker.iteration == 4


def test_bytes_ratio_and_factor_follow_the_iteration():
    flow, linear = Flow(), Aggressiveness()
    flow.iterate(1)
    flow.send(1_000_000)
    assert (flow.tracker.ratio_q16(), flow.tracker.factor(linear)) == (0, ONE_Q16)
    flow.pause(COMPUTE_NS)
    factors = []
    for _ in range(11):
        flow.ack(100_000)
        factors.append(flow.tracker.factor(linear))
        flow.now_ns += MS
    tenths = [k * ONE_Q16 // 10 for k in range(1, 11)]
    assert factors == [linear.fixed(x) for x in [*tenths, ONE_Q16]]
    flow.pause(COMPUTE_NS)
    flow.ack(0)
    assert flow.tracker.factor(linear) == ONE_Q16 // 4
    assert flow.tracker.factor(Aggressiveness(Shape.ONE)) == ONE_Q16


@pytest.mark.parametrize("start_up_bytes", [1000, 5_000_000])
@pytest.mark.parametrize("start_up_ns", [0, 20 * MS, 300 * MS, 3000 * MS, 60_000 * MS])
def test_learns_within_three_iterations_of_any_start_up(start_up_bytes, start_up_ns):
    flow = Flow()
    flow.send(start_up_bytes)
    flow.pause(start_up_ns)
    flow.iterate(3)
    flow.ack(0)
    assert flow.tracker.recognised
    assert flow.tracker.total_bytes == 1_000_000
    assert flow.tracker.gap_ns == COMPUTE_NS // 2


BUCKETS = {
    "two equal": (500_000, 500_000),
    "three equal": (300_000,) * 3,
    "twelve equal": (100_000,) * 12,
    "unequal": (100_000, 700_000, 700_000, 50_000),
    "alike in part": (100_000, 2_500_000, 2_500_000, 2_500_000, 300_000),
}


@pytest.mark.parametrize("buckets", BUCKETS.values(), ids=BUCKETS.keys())
@pytest.mark.parametrize("intra_ns", [2 * MS, 12 * MS, COMPUTE_NS // 3], ids=["2ms", "12ms", "third"])
@pytest.mark.parametrize("start_up_ns", [0, 3000 * MS])
def test_pauses_between_buckets_do_not_split_an_iteration(buckets, intra_ns, start_up_ns):
    flow = Flow()
    if start_up_ns:
        flow.send(1000)
        flow.pause(start_up_ns)
    flow.iterate(3, buckets, intra_ns=intra_ns)
    settled = len(flow.records) + 1
    flow.iterate(100, buckets, intra_ns=intra_ns)
    assert flow.record_bytes[settled:] == [sum(buckets)] * 99
    assert flow.tracker.total_bytes == sum(buckets)
    assert COMPUTE_NS // 3 < flow.tracker.gap_ns < COMPUTE_NS


@pytest.mark.parametrize("seed", range(20))
def test_a_job_that_jitters_is_never_lost(seed):
    dice = random.Random(seed)
    flow = Flow()
    buckets = [dice.randrange(50_000, 500_000) for _ in range(dice.randrange(1, 9))]
    lengths = []
    for _ in range(200):
        for k, bucket_bytes in enumerate(buckets):
            flow.pause(dice.randrange(COMPUTE_NS // 3) if k else 0)
            flow.send(bucket_bytes)
        lengths.append(sum(bucket_bytes // 10 * 10 for bucket_bytes in buckets))
        flow.pause(int(COMPUTE_NS * dice.uniform(0.9, 1.2)))
    flow.ack(0)
    steady = lengths[10:]
    assert flow.record_bytes[-len(steady) :] == steady


def test_a_bulk_flow_is_never_recognised():
    dice = random.Random(7)
    flow = Flow()
    for _ in range(20_000):
        flow.pause(dice.randrange(PAUSE_FLOOR_NS))
        flow.ack(dice.randrange(1, 65_536))
        assert not flow.tracker.recognised
        assert flow.tracker.factor(Aggressiveness()) == ONE_Q16
    assert flow.records == []


def test_a_bulk_flow_of_a_job_whose_total_is_given_is_never_recognised():
    flow = Flow(total_bytes=1_000_000)
    flow.send(50_000_000, acks=5000)
    assert not flow.tracker.recognised
    assert flow.tracker.factor(Aggressiveness()) == ONE_Q16


@pytest.mark.parametrize("seed", range(5))
def test_a_bulk_flow_with_random_time_outs_is_hardly_ever_recognised(seed):
    """Nothing is periodic about it, but chance makes some counts agree."""
    dice = random.Random(seed)
    flow = Flow()
    recognised = 0
    for _ in range(20_000):
        timed_out = dice.random() < 1 / 200
        flow.pause(int(5 * MS + dice.expovariate(1 / (50 * MS))) if timed_out else MS // 5)
        flow.ack(1500)
        recognised += flow.tracker.recognised
    assert recognised < 0.1 * 20_000


@pytest.mark.parametrize("factor", [0.3, 0.7, 1.5, 1.9, 3])
def test_a_change_of_total_is_learned_anew(factor):
    changed = int(1_000_000 * factor) // 10 * 10
    flow = Flow()
    flow.iterate(10)
    flow.iterate(7, buckets=(changed,))
    flow.ack(0)
    assert flow.tracker.recognised
    assert flow.tracker.total_bytes == changed
    assert flow.record_bytes == [1_000_000] * 10 + [changed] * 7


def test_a_slow_drift_of_total_is_followed_without_a_miss():
    flow = Flow()
    flow.iterate(2)
    for k in range(40):
        flow.iterate(1, buckets=(1_000_000 + 20_000 * k,))
    flow.ack(0)
    assert flow.tracker.total_bytes == 1_780_000
    assert flow.tracker.misses == 0


@pytest.mark.parametrize("factor", [0.3, 0.6, 1.7, 5])
def test_a_change_of_compute_time_is_survived(factor):
    flow = Flow()
    flow.iterate(10)
    flow.iterate(20, pause_ns=int(COMPUTE_NS * factor))
    settled = len(flow.records) - 10
    flow.iterate(20, pause_ns=int(COMPUTE_NS * factor))
    assert flow.record_bytes[settled:] == [1_000_000] * 30
    assert flow.tracker.total_bytes == 1_000_000
    assert flow.tracker.gap_ns < COMPUTE_NS * factor


def test_the_gap_follows_a_drift_of_compute_time_by_eighths():
    flow = Flow()
    flow.iterate(2)
    flow.iterate(1, pause_ns=260 * MS)
    flow.iterate(1, pause_ns=201 * MS)
    flow.iterate(1, pause_ns=441 * MS)
    flow.iterate(1, pause_ns=1)
    gaps_ns = [record.gap_ns for record in flow.records[1:]]
    # Pauses of 220, 220 + 40/8 = 225, 225 - 24/8 = 222 ms; 441 is followed (222 + 219/8), 1000 would not be.
    assert gaps_ns == [110 * MS, 112_500_000, 111 * MS, 124_687_500]
    flow.tracker.observe(flow.now_ns + 1000 * MS, 0)
    assert flow.tracker.gap_ns == 124_687_500


def test_acknowledgements_of_nothing_change_nothing():
    flow = Flow()
    for _ in range(10):
        flow.iterate(1, pause_ns=COMPUTE_NS // 2)
        flow.ack(0)
        flow.pause(COMPUTE_NS // 2)
    flow.ack(0)
    assert flow.record_bytes == [1_000_000] * 10
    assert flow.tracker.total_bytes == 1_000_000
    assert flow.tracker.misses == 0
    assert flow.tracker.recognised


@pytest.mark.parametrize("before", [1, 2, 5, 50])
def test_a_checkpoint_between_iterations_breaks_nothing(before):
    flow = Flow()
    flow.iterate(before)
    flow.pause(10_000 * MS)
    flow.iterate(10)
    flow.ack(0)
    assert flow.record_bytes == [1_000_000] * (before + 10)
    assert flow.tracker.total_bytes == 1_000_000
    assert flow.tracker.gap_ns == COMPUTE_NS // 2


def test_a_pause_within_an_iteration_splits_that_one_only():
    flow = Flow()
    flow.iterate(5)
    flow.send(400_000)
    flow.pause(10_000 * MS)
    flow.send(600_000)
    flow.pause(COMPUTE_NS)
    flow.iterate(5)
    assert flow.record_bytes == [1_000_000] * 5 + [400_000, 600_000] + [1_000_000] * 4
    assert flow.tracker.total_bytes == 1_000_000
    assert flow.tracker.gap_ns == COMPUTE_NS // 2
    assert flow.tracker.misses == 0


def test_checkpoints_at_regular_intervals_are_no_iterations():
    flow = Flow()
    for _ in range(6):
        flow.iterate(20)
        flow.pause(10_000 * MS)
    assert flow.record_bytes == [1_000_000] * 119
    assert flow.tracker.total_bytes == 1_000_000


def test_a_given_gap_needs_no_floor():
    flow = Flow(gap_ns=MS)
    for _ in range(4):
        flow.send(1_000_000, spacing_ns=MS)
        flow.pause(MS + 1)
    assert flow.record_bytes == [1_000_000] * 3
    assert flow.tracker.recognised
    assert flow.tracker.total_bytes == 1_000_000
    assert flow.tracker.gap_ns == MS


def test_a_given_total_finds_its_gap():
    flow = Flow(total_bytes=900_000)
    flow.send(7000)
    flow.pause(3000 * MS)
    flow.iterate(2, buckets=(300_000,) * 3, intra_ns=COMPUTE_NS // 3)
    assert flow.tracker.recognised
    flow.iterate(10, buckets=(300_000,) * 3, intra_ns=COMPUTE_NS // 3)
    assert flow.record_bytes[-10:] == [900_000] * 10
    assert flow.tracker.gap_ns == COMPUTE_NS // 2


def test_a_given_total_finds_a_gap_that_shrank():
    flow = Flow(total_bytes=1_000_000)
    flow.iterate(5)
    flow.iterate(5, pause_ns=COMPUTE_NS // 4)
    flow.ack(0)
    assert flow.tracker.recognised
    assert flow.tracker.gap_ns == COMPUTE_NS // 8
    assert flow.record_bytes[-1] == 1_000_000


def test_with_both_given_it_is_recognised_at_once():
    flow = Flow(total_bytes=1_000_000, gap_ns=60 * MS)
    flow.ack(500_000)
    assert flow.tracker.recognised
    assert flow.tracker.ratio_q16() == ONE_Q16 // 2


def test_a_clock_that_steps_back_makes_no_pause():
    tracker = IterationTracker(gap_ns=10 * MS)
    assert tracker.observe(100 * MS, 10) is None
    assert tracker.observe(99 * MS, 10) is None
    assert tracker.observe(109 * MS, 10) is None
    assert tracker.observe(200 * MS, 10) == IterationRecord(0, 100 * MS, 109 * MS, 30, 0, 10 * MS)


@pytest.mark.parametrize("name", ["total_bytes", "gap_ns"])
def test_negative_values_are_refused(name):
    with pytest.raises(UsageError) as error:
        IterationTracker(**{name: -1})
    assert str(error.value) == f"{name}: expected a number of at least 0 (0: learn it), got -1"


PAUSES_NS = st.one_of(
    st.integers(0, 2 * PAUSE_FLOOR_NS),
    st.sampled_from([10 * MS, 73 * MS, COMPUTE_NS, COMPUTE_NS + 1, 3000 * MS]),
    st.integers(0, 20_000 * MS),
)
SIZES = st.one_of(st.sampled_from([0, 1000, 1000, 2000]), st.integers(0, 2**32))
ACKS = st.lists(st.tuples(PAUSES_NS, SIZES), max_size=120)
GIVEN = st.tuples(st.sampled_from([0, 0, 1000, 2**33]), st.sampled_from([0, 0, 1, 60 * MS]))


@pytest.mark.slow
@given(GIVEN, ACKS)
def test_no_byte_is_lost_and_no_iteration_skipped(given_values, acks):
    flow = Flow(*given_values)
    sent = 0
    for pause_ns, acked_bytes in acks:
        flow.pause(pause_ns)
        flow.ack(acked_bytes)
        sent += acked_bytes
        assert sum(flow.record_bytes) + flow.tracker.bytes == sent
    assert [record.iteration for record in flow.records] == list(range(len(flow.records)))
    assert all(record.bytes > 0 and record.start_ns <= record.end_ns for record in flow.records)
    assert all(before.end_ns < after.start_ns for before, after in pairwise(flow.records))


@given(GIVEN, ACKS)
def test_given_values_are_never_altered(given_values, acks):
    total_bytes, gap_ns = given_values
    flow = Flow(total_bytes, gap_ns)
    for pause_ns, acked_bytes in acks:
        flow.pause(pause_ns)
        flow.ack(acked_bytes)
        assert flow.tracker.total_bytes == total_bytes or not total_bytes
        assert flow.tracker.gap_ns == gap_ns or not gap_ns
    assert all(record.total_bytes == total_bytes for record in flow.records if total_bytes)
    assert all(record.gap_ns == gap_ns for record in flow.records if gap_ns)


@given(GIVEN, ACKS)
def test_factor_is_in_range_and_one_unless_recognised(given_values, acks):
    flow, linear = Flow(*given_values), Aggressiveness()
    for pause_ns, acked_bytes in acks:
        flow.pause(pause_ns)
        flow.ack(acked_bytes)
        factor = flow.tracker.factor(linear)
        assert linear.intercept_q16 <= factor <= linear.intercept_q16 + linear.slope_q16
        if not flow.tracker.recognised:
            assert factor == ONE_Q16


@given(
    st.integers(10_000, 10**9),
    st.integers(12 * MS, 10_000 * MS),
    st.lists(st.integers(0, 100), min_size=1, max_size=12),
)
def test_any_job_with_short_pauses_within_is_learned(bucket_bytes, pause_ns, intra_percent):
    """Equal buckets with pauses of up to a third of the compute phase, which is the hardest case."""
    flow = Flow()
    buckets = len(intra_percent)
    for _ in range(5):
        for percent in intra_percent:
            flow.pause(pause_ns // 3 * percent // 100)
            flow.ack(bucket_bytes)
        flow.pause(pause_ns - pause_ns // 3 * intra_percent[0] // 100)
    flow.pause(pause_ns)
    flow.ack(1)
    assert flow.tracker.total_bytes == buckets * bucket_bytes
    assert flow.record_bytes[-1] == buckets * bucket_bytes


# -- small traffic -----------------------------------------------------------------------------------------------------


def iterate_with_small_traffic(flow, iterations, period_ns, small_bytes=1000, pause_ns=COMPUTE_NS):
    """Iterations of 5 MB, in whose compute phases a little is sent every `period_ns`."""
    for _ in range(iterations):
        flow.send(5_000_000, acks=50)
        until_ns = flow.now_ns + pause_ns
        while flow.now_ns + period_ns < until_ns:
            flow.pause(period_ns)
            flow.ack(small_bytes)
        flow.now_ns = until_ns


@pytest.mark.parametrize("period_ns", [MS, 4 * MS, 6 * MS, 12 * MS, 30 * MS])
def test_small_traffic_does_not_hide_the_pauses(period_ns):
    flow = Flow()
    iterate_with_small_traffic(flow, 8, period_ns)
    assert flow.tracker.recognised
    learned = [record for record in flow.records if record.total_bytes]
    assert len(learned) >= 5
    small = 1000 * (COMPUTE_NS // period_ns)
    for record in learned:
        assert 5_000_000 <= record.bytes <= 5_000_000 + small
        assert 5_000_000 <= record.total_bytes <= 5_000_000 + small
        assert abs(record.end_ns - record.start_ns - 49 * MS) <= 6 * MS


@pytest.mark.parametrize("total_bytes", [0, 5_000_000])
@pytest.mark.parametrize("gap_ns", [0, 50 * MS])
def test_small_traffic_beside_values_that_are_given(total_bytes, gap_ns):
    flow = Flow(total_bytes, gap_ns)
    iterate_with_small_traffic(flow, 6, 4 * MS)
    assert flow.tracker.recognised
    assert all(record.bytes < 5_100_000 for record in flow.records[1:])
    assert len(flow.records) >= 4


def test_traffic_that_is_not_small_is_an_iteration_of_its_own_kind():
    flow = Flow()
    iterate_with_small_traffic(flow, 8, 4 * MS, small_bytes=50_000)
    assert not flow.tracker.recognised


def test_a_flow_that_wakes_begins_the_iteration_at_once():
    flow = Flow(5_000_000, 50 * MS)
    iterate_with_small_traffic(flow, 3, 4 * MS)
    before = flow.tracker.iteration
    flow.now_ns += MS
    record = flow.tracker.observe(flow.now_ns, 0, begins=True)
    assert record is not None
    assert flow.tracker.iteration == before + 1
    assert flow.tracker.observe(flow.now_ns + 1, 100_000) is None


def test_a_flow_that_wakes_while_others_send_begins_nothing():
    flow = Flow(5_000_000, 50 * MS)
    flow.iterate(2, buckets=(5_000_000,))
    flow.send(1_000_000)
    assert flow.tracker.observe(flow.now_ns + 1, 0, begins=True) is None


@given(st.data())
def test_small_traffic_changes_neither_the_sum_nor_the_order(data):
    flow = Flow()
    sent = 0
    for _ in range(data.draw(st.integers(1, 60))):
        flow.pause(data.draw(st.integers(0, 300 * MS)))
        acked = data.draw(st.sampled_from((0, 1, 1000, 20_000, 500_000)))
        sent += acked
        flow.ack(acked)
    assert sum(flow.record_bytes) + flow.tracker.bytes == sent == flow.tracker.seen_bytes
    assert all(record.start_ns <= record.end_ns for record in flow.records)
    assert all(first.end_ns <= second.start_ns for first, second in pairwise(flow.records))


class ReportingFlow(Flow):
    """A flow whose program reports, when it sends next, that another iteration has begun."""

    def __init__(self):
        super().__init__()
        self.iteration = 0

    def train(self, iterations, bursts, pause_ns):
        for _ in range(iterations):
            for number, burst_bytes in enumerate(bursts):
                self.pause(pause_ns)
                if not number:
                    self.report(self.iteration)
                self.send(burst_bytes)
            self.iteration += 1

    def report(self, iteration):
        if iteration:
            record = self.tracker.boundary(FIRST_BOUNDARY + iteration % BOUNDARIES, self.now_ns)
            self.records += [record] if record is not None else []


@given(
    st.lists(st.integers(2, 100).map(lambda n: 10_000 * n), min_size=1, max_size=12),
    st.integers(1, 300).map(lambda n: n * MS),
)
def test_bursts_are_no_iterations_where_the_program_reports_these(bursts, pause_ns):
    flow = ReportingFlow()
    flow.train(3, bursts, pause_ns)
    before = len(flow.records)
    flow.train(2 * BOUNDARIES, bursts, pause_ns)
    assert flow.record_bytes[before:] == [sum(bursts)] * 2 * BOUNDARIES
    assert (flow.tracker.total_bytes, flow.tracker.recognised) == (sum(bursts), True)
    assert flow.tracker.ratio_q16() == ONE_Q16


def test_total_bytes_are_known_after_one_reported_iteration():
    flow = ReportingFlow()
    flow.train(1, [200_000, 500_000], COMPUTE_NS)
    flow.train(1, [200_000, 500_000], COMPUTE_NS)
    assert flow.tracker.total_bytes == 0
    flow.pause(COMPUTE_NS)
    flow.report(2)
    assert flow.tracker.total_bytes == 700_000
    flow.send(350_000)
    assert flow.tracker.ratio_q16() == ONE_Q16 // 2


def test_a_process_that_is_behind_ends_no_iteration():
    flow = ReportingFlow()
    flow.train(4, [300_000], COMPUTE_NS)
    number = flow.tracker.iteration
    for late in (3, 2, 1):
        flow.report(late)
    flow.report(BOUNDARIES + 3)  # the number of iteration 3, once more
    assert flow.tracker.iteration == number


def test_numbers_that_report_nothing_change_nothing():
    flow, silent = Flow(), Flow()
    for _ in range(5):
        flow.iterate(1)
        silent.iterate(1)
        assert flow.tracker.boundary(6, flow.now_ns) is None
    assert (flow.records, flow.tracker.total_bytes) == (silent.records, silent.tracker.total_bytes)


def test_pauses_count_again_when_a_program_has_ceased_to_report():
    flow = ReportingFlow()
    flow.train(5, [200_000, 500_000], COMPUTE_NS)
    flow.iterate(8, buckets=(400_000,))
    assert flow.record_bytes[-3:] == [400_000] * 3
    assert flow.tracker.total_bytes == 400_000


def test_another_size_is_learned_from_two_iterations():
    flow = ReportingFlow()
    flow.train(4, [700_000], COMPUTE_NS)
    flow.train(1, [100_000], COMPUTE_NS)
    flow.report(flow.iteration)
    assert flow.tracker.total_bytes == 700_000
    flow.train(1, [100_000], COMPUTE_NS)
    flow.pause(COMPUTE_NS)
    flow.report(flow.iteration)
    assert flow.tracker.total_bytes == 100_000


# -- bursts ------------------------------------------------------------------------------------------------------------

BURSTS_BYTES = (100_000, 300_000, 200_000)


def test_the_ratio_is_that_of_the_burst():
    flow = ReportingFlow()
    flow.train(6, BURSTS_BYTES, 10 * MS)
    flow.pause(10 * MS)
    flow.report(6)
    for number, size in enumerate(BURSTS_BYTES):
        flow.pause(10 * MS if number else 0)
        flow.send(size // 2)
        assert flow.tracker.burst_ratio == pytest.approx(0.5, abs=1e-4)
        flow.send(size // 2)
        assert flow.tracker.burst_ratio == 1 or size != BURSTS_BYTES[-1]
    assert flow.tracker.total_bytes == sum(BURSTS_BYTES)


def test_a_burst_ends_where_it_did_though_no_silence_tells():
    flow = ReportingFlow()
    flow.train(6, BURSTS_BYTES, 10 * MS)
    flow.pause(10 * MS)
    flow.report(6)
    flow.send(sum(BURSTS_BYTES[:2]) + BURSTS_BYTES[2] // 4, acks=11)
    assert flow.tracker.burst_ratio == pytest.approx(0.25, abs=1e-2)


def send_evenly(flow, waits_at=None, wait_ns=0):
    """An iteration in ten acknowledgements, of which the job waits after one; its bytes_ratio is the iteration's."""
    for sent in range(10):
        flow.ack(100_000)
        assert flow.tracker.burst_ratio == pytest.approx((sent + 1) / 10, abs=1e-4)
        flow.pause(wait_ns if sent == waits_at else MS)


def test_of_one_burst_the_ratio_is_that_of_the_iteration():
    flow = Flow()
    flow.iterate(4)
    send_evenly(flow)


def test_a_process_that_is_not_scheduled_for_a_moment_does_not_end_a_burst():
    flow = Flow()
    flow.iterate(4)
    send_evenly(flow, 3, 20 * MS)  # a quarter of the pause for which it computes is 55 ms
    flow.pause(COMPUTE_NS)
    send_evenly(flow)


def test_a_silence_that_does_not_recur_ends_no_burst():
    flow = Flow()
    flow.iterate(4)
    for waits_at in (2, 4, 6, 8, 3):
        send_evenly(flow, waits_at, 90 * MS)
        flow.pause(COMPUTE_NS)


def test_what_is_sent_while_the_job_computes_is_the_begin_of_the_next_burst():
    flow = ReportingFlow()
    flow.train(6, (300_000, 2_000, 300_000), 10 * MS)
    flow.pause(10 * MS)
    flow.report(6)
    flow.send(300_000)
    flow.pause(10 * MS)
    flow.send(2_000)
    flow.pause(10 * MS)
    flow.send(150_000)
    assert flow.tracker.burst_ratio == pytest.approx(0.5, abs=1e-4)


def test_bursts_after_the_last_that_is_told_apart_are_one():
    flow = ReportingFlow()
    sizes = (100_000,) * (BURSTS + 11)
    flow.train(6, sizes, 10 * MS)
    flow.pause(10 * MS)
    flow.report(6)
    for number, size in enumerate(sizes):
        flow.pause(10 * MS if number else 0)
        flow.send(size)
        if number > BURSTS:
            assert flow.tracker.burst_ratio == pytest.approx((number + 1 - BURSTS) / 11, abs=0.1)
    assert flow.tracker.burst_ratio == 1
