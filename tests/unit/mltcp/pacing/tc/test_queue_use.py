"""The use of queues over periods in which packets of 64 KiB can tell it."""

from mltcp.pacing.tc.rate_split import MOST_SAMPLES, QueueUse, QueueUseMeter

PACKET = 65536


def test_at_a_high_rate_every_sample_is_a_period():
    meter = QueueUseMeter()
    for _ in range(3):
        use = meter.add(10 * PACKET, {1: 6 * PACKET, 2: 2 * PACKET, 3: 0}, {1: 5000, 2: 0, 3: 0})
        assert use == {1: QueueUse(0.6, 5000), 2: QueueUse(0.2, 0), 3: QueueUse(0, 0)}


def test_at_a_low_rate_a_period_lasts_until_each_queue_in_use_could_send_two_packets():
    meter = QueueUseMeter()
    samples = [{1: PACKET, 2: 0}, {1: 0, 2: 0}, {1: 0, 2: PACKET}, {1: PACKET, 2: 0}]
    found = [meter.add(PACKET, sent, {1: 1000 * (at % 2), 2: 3000}) for at, sent in enumerate(samples)]
    assert found[:3] == [None] * 3
    assert found[3] == {1: QueueUse(0.5, 500), 2: QueueUse(0.25, 3000)}


def test_a_queue_that_held_packets_back_in_fewer_than_half_of_the_samples_is_not_limited():
    meter = QueueUseMeter()
    backlogs = (9000, 0, 0)
    found = [meter.add(PACKET * 2 / 3, {1: PACKET // 2}, {1: backlog}) for backlog in backlogs]
    assert found == [None, None, {1: QueueUse(0.75, 0)}]


def test_a_pause_neither_counts_nor_makes_the_use_before_it_forgotten():
    meter = QueueUseMeter()
    assert meter.add(PACKET, {1: PACKET}, {1: 0}) is None
    for _ in range(2 * MOST_SAMPLES):
        assert meter.add(PACKET, {1: 0}, {1: 0}) is None
    assert meter.add(PACKET, {1: 0}, {1: 400}) == {1: QueueUse(0.5, 200)}


def test_a_period_ends_however_low_the_rate_is():
    meter = QueueUseMeter()
    found = [meter.add(1.0, {1: 1}, {1: 2}) for _ in range(MOST_SAMPLES)]
    assert found == [None] * (MOST_SAMPLES - 1) + [{1: QueueUse(1.0, 2)}]
