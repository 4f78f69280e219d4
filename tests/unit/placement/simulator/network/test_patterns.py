"""Collectives: the bytes of each worker, what each worker knows in the end, and their chunks."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mltcp.core.errors import UsageError
from placement.simulator.network.patterns import (
    IterationPlan,
    all_to_all,
    broadcast,
    gather,
    point_to_point,
    reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    scatter,
    together,
    tree_all_reduce,
)

SYMMETRIC = {
    ring_all_reduce: lambda n: 2 * (n - 1) / n,
    ring_reduce_scatter: lambda n: (n - 1) / n,
    ring_all_gather: lambda n: (n - 1) / n,
    all_to_all: lambda n: (n - 1) / n,
}
KNOWN = (ring_all_reduce, tree_all_reduce, ring_all_gather, all_to_all)

workers = st.permutations(range(12)).flatmap(lambda each: st.integers(1, 12).map(lambda count: each[:count]))
sizes = st.floats(1, 1e12)


def bytes_by(messages, end):
    found = defaultdict(float)
    for message in messages:
        found[getattr(message, end)] += message.size_bytes
    return found


def flat(rounds):
    return [message for messages in rounds for message in messages]


def known_after(rounds, of):
    """Whose data each worker has got, if each message carries all that its sender had before the round."""
    known = {worker: {worker} for worker in of}
    for messages in rounds:
        before = {worker: set(data) for worker, data in known.items()}
        for message in messages:
            known[message.target] |= before[message.source]
    return known


@given(st.sampled_from(list(SYMMETRIC)), workers, sizes)
@settings(max_examples=40, deadline=None)
def test_each_worker_sends_and_gets_its_share(collective, of, size):
    messages = flat(collective(of, size))
    share = SYMMETRIC[collective](len(of)) * size
    for end in ("source", "target"):
        found = bytes_by(messages, end)
        assert set(found) == (set(of) if len(of) > 1 else set())
        assert all(value == pytest.approx(share, rel=1e-12) for value in found.values())


@given(st.sampled_from(KNOWN), workers)
@settings(max_examples=40, deadline=None)
def test_every_worker_hears_of_every_other(collective, of):
    known = known_after(collective(of, 1.0), of)
    assert all(data == set(of) for data in known.values())


@given(workers)
@settings(max_examples=20, deadline=None)
def test_a_ring_reduces_block_by_block(of):
    """With the blocks as the algorithm passes them on: (i - r) mod n from worker i in round r."""
    count = len(of)
    held = {worker: [{worker} for _ in of] for worker in of}
    for number, messages in enumerate(ring_all_reduce(of, 1.0)):
        before = {worker: [set(block) for block in blocks] for worker, blocks in held.items()}
        for message in messages:
            block = (of.index(message.source) - number) % count
            held[message.target][block] |= before[message.source][block]
    assert all(block == set(of) for blocks in held.values() for block in blocks)


@given(workers, sizes)
@settings(max_examples=40, deadline=None)
def test_two_trees_balance_the_load(of, size):
    rounds = tree_all_reduce(of, size)
    count = len(of)
    sent, got = (bytes_by(flat(rounds), end) for end in ("source", "target"))
    assert sum(sent.values()) == pytest.approx(2 * (count - 1) * size, rel=1e-12)
    assert all(sent[worker] == pytest.approx(got[worker]) for worker in of)
    # Half of the data up in the tree where it is a leaf, and up and to two below it in the other.
    assert all(value <= 2 * size * (1 + 1e-12) for value in sent.values())
    assert len(rounds) <= 2 * (count.bit_length() + 1)


@given(workers, sizes)
@settings(max_examples=20, deadline=None)
def test_rooted_collectives(of, size):
    root, count = of[0], len(of)
    assert all(root in data for data in known_after(broadcast(of, size), of).values())
    assert known_after(reduce(of, size), of)[root] == set(of)
    for collective, end in ((broadcast, "target"), (reduce, "source")):
        assert bytes_by(flat(collective(of, size)), end) == dict.fromkeys(of[1:], size)
    for collective, end in ((scatter, "target"), (gather, "source")):
        assert bytes_by(flat(collective(of, size)), end) == dict.fromkeys(of[1:], size / count)


@given(
    st.sampled_from([ring_all_reduce, tree_all_reduce, all_to_all]),
    st.integers(1, 7),
    st.integers(1, 5),
    st.integers(1, 3),
)
@settings(max_examples=30, deadline=None)
def test_chunks_and_connections_change_no_byte(collective, count, chunks, connections):
    rounds = collective(range(count), 840.0)
    whole = IterationPlan(count)
    whole.collective(rounds, compute_ns=7)
    cut = IterationPlan(count, chunks, connections)
    cut.collective(rounds, compute_ns=7)
    found = []
    for plan in (whole, cut):
        traffic = plan.traffic()
        assert sum(step.compute_ns for step in traffic.steps) == 7
        by_pair = defaultdict(float)
        for step in traffic.steps:
            for message in step.messages:
                assert message.connection < connections
                by_pair[message.source, message.target] += message.size_bytes
        found.append(by_pair)
    assert found[0] == pytest.approx(found[1], rel=1e-12)
    if count > 1:
        assert len(cut.traffic().steps) == chunks * len(rounds)


def test_chunks_follow_each_other_through_the_rounds():
    plan = IterationPlan(2, chunks=3)
    begun = plan.compute(5)
    last = plan.collective(ring_all_reduce(range(2), 6.0), [begun])
    steps = plan.traffic().steps
    assert [step.after for step in steps] == [(), (0,), (1,), (1,), (3, 2), (3,), (5, 4)]
    assert (last, {message.size_bytes for step in steps[1:] for message in step.messages}) == (6, {1.0})


def test_a_collective_of_one_worker_still_computes():
    plan = IterationPlan(1, chunks=4)
    plan.collective(ring_all_reduce([0], 1e9), compute_ns=3)
    assert [(step.compute_ns, step.messages) for step in plan.traffic().steps] == [(3, ())]


def test_groups_run_together_round_by_round():
    rounds = together([ring_reduce_scatter([0, 1, 2], 3.0), point_to_point(3, 4, 9.0)])
    assert [len(messages) for messages in rounds] == [4, 3]


@pytest.mark.parametrize("arguments", [(0,), (2, 0), (2, None, 0)])
def test_a_plan_needs_workers_chunks_and_connections(arguments):
    with pytest.raises(UsageError, match="expected 1 or more"):
        IterationPlan(*arguments)


def test_a_step_waits_for_earlier_ones_only():
    with pytest.raises(UsageError, match="step 0: after: expected earlier steps"):
        IterationPlan(1).compute(1, [0])
