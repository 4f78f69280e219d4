"""The division of a job's rate over queues, with queues that are simulated by their demand."""

import pytest

from mltcp.pacing.tc.rate_split import QueueUse, RateSplit

QUEUES = range(1, 5)


def send(split, demands):
    """One period: a queue sends what it has or what it may, and holds back 100 kB a flow whose share is short."""
    use = {}
    for queue, share in split.shares.items():
        wanted, flows = demands.get(queue, (0.0, 0))
        short = wanted > share
        use[queue] = QueueUse(min(wanted, share), 100_000 * flows if short else 0)
    split.observe(use)
    return sum(each.used for each in use.values())


def settle(split, demands, periods=30):
    return [send(split, demands) for _ in range(periods)]


def greedy(**flows):
    return {int(name[1:]): (10.0, count) for name, count in flows.items()}


@pytest.mark.parametrize(
    ("demands", "shares"),
    [
        (greedy(q2=1), {2: 1.0}),
        (greedy(q1=1, q2=1, q3=1, q4=1), {1: 0.25, 2: 0.25, 3: 0.25, 4: 0.25}),
        (greedy(q1=3, q4=1), {1: 0.75, 4: 0.25}),
        (greedy(q1=1) | {3: (0.1, 1)}, {1: 0.9}),
    ],
)
def test_greedy_flows_get_the_jobs_rate_together_in_proportion_to_the_flows_of_each_queue(demands, shares):
    split = RateSplit(QUEUES)
    sent = settle(split, demands)
    assert sent[-1] == pytest.approx(1.0, abs=0.01)
    assert {queue: split.shares[queue] for queue in shares} == pytest.approx(shares, abs=0.01)
    assert split.active == set(demands)


def test_a_flow_that_moves_is_not_starved_and_its_rate_moves_within_few_periods():
    split = RateSplit(QUEUES)
    settle(split, greedy(q1=1))
    assert split.shares[3] == split.floor == 1 / 8
    sent = settle(split, greedy(q3=1), periods=5)
    assert sent[0] == pytest.approx(1 / 8)
    assert sent[1:] == pytest.approx([1.0] * 4)
    assert split.shares[1] == split.floor


def test_one_of_two_flows_moves_and_the_job_exceeds_its_rate_by_no_more_than_the_floor():
    split = RateSplit(QUEUES)
    settle(split, greedy(q1=1, q2=1))
    sent = settle(split, greedy(q1=1, q2=1, q3=1))
    assert max(sent) <= 1.0 + split.floor
    assert split.shares[3] == pytest.approx(1 / 3, abs=0.01)


def test_a_pause_changes_nothing():
    split = RateSplit(QUEUES)
    settle(split, greedy(q1=3, q4=1))
    before = dict(split.shares)
    settle(split, {})
    assert split.shares == before
    assert split.active == {1, 4}


def test_a_job_below_its_rate_can_grow_in_every_queue_in_proportion():
    split = RateSplit(QUEUES)
    settle(split, {1: (0.3, 1), 2: (0.1, 1)})
    assert split.shares[1] == pytest.approx(0.75)
    assert split.shares[2] == pytest.approx(0.25)


def test_before_the_first_packets_each_queue_has_the_whole_rate():
    split = RateSplit(QUEUES)
    assert split.shares == dict.fromkeys(QUEUES, 1.0)
    assert split.active == set(QUEUES)


def test_a_single_queue_has_the_whole_rate_always():
    split = RateSplit([1])
    settle(split, greedy(q1=2))
    settle(split, {})
    assert split.shares == {1: 1.0}


def test_where_all_is_held_back_and_nothing_was_sent_the_rate_goes_to_what_is_held_back():
    split = RateSplit(QUEUES)
    settle(split, greedy(q1=1))
    for _ in range(30):
        split.observe({2: QueueUse(0.0, 300_000), 4: QueueUse(0.0, 100_000)})
    assert {queue: split.shares[queue] for queue in (2, 4)} == pytest.approx({2: 0.75, 4: 0.25}, abs=0.01)
    assert split.active == {2, 4}


def test_of_other_queues_known_ones_keep_their_shares_and_new_ones_begin_idle():
    split = RateSplit(QUEUES)
    settle(split, greedy(q1=1, q2=1))
    split.follow(range(1, 9))
    assert split.floor == 1 / 16
    assert [split.shares[queue] for queue in (1, 2, 3, 8)] == pytest.approx([0.5, 0.5, 1 / 8, 1 / 16])
    sent = settle(split, greedy(q1=1, q8=1), periods=10)
    assert max(sent) <= 1.0 + split.floor
    assert sent[-1] == pytest.approx(1.0, abs=0.01)


def test_of_other_queues_all_have_the_whole_rate_until_the_first_packets():
    split = RateSplit(QUEUES)
    split.follow(range(3, 7))
    assert split.shares == dict.fromkeys(range(3, 7), 1.0)
