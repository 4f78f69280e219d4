"""Computed bytes of operations against the bytes acknowledged on their connections."""

import fcntl
import struct
import termios
import time

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import collectives
from collectives.group.torch_version import all_gather_single, reduce_scatter_single
from collectives.recording.records import REDUCE_SEGMENT_BYTES, sent_bytes
from mltcp.pacing.tcp_info import tcp_info
from tests.unit.collectives.ranks import run_ranks

pytestmark = pytest.mark.slow

MIB = 1 << 20
# Half of it in elements is divided by all numbers of ranks that are measured.
PAYLOAD = MIB // 480 * 480
HEADERS_BYTES = 500
ROOTED = ("broadcast", "reduce", "gather", "scatter")
SIZES = st.integers(2, 64)


# -- by the formula ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "root", "expected"),
    [
        ("all_reduce", 0, [1800] * 4),
        ("reduce_scatter", 0, [1800] * 4),
        ("all_gather", 0, [3600] * 4),
        ("all_to_all", 0, [900] * 4),
        ("broadcast", 0, [2400, 1200, 0, 0]),
        ("broadcast", 3, [1200, 0, 0, 2400]),
        ("reduce", 1, [1200, 900, 1200, 1200]),
        ("gather", 2, [1200, 1200, 0, 1200]),
        ("scatter", 2, [0, 0, 900, 0]),
        ("send", 0, [1200] * 4),
        ("recv", 0, [0] * 4),
        ("barrier", 0, [288] * 4),
        ("an_operation_of_the_future", 0, [0] * 4),
    ],
)
def test_what_four_ranks_send_for_1200_bytes(name, root, expected):
    assert [sent_bytes(name, 1200, rank, 4, root) for rank in range(4)] == expected


def test_a_broadcast_among_eight_is_a_binomial_tree():
    assert [sent_bytes("broadcast", 1, rank, 8) for rank in range(8)] == [3, 2, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("size", "mib", "root", "expected_mib"),
    [(2, 8, 0, [6, 10]), (3, 8, 0, [6, 9, 9]), (3, 8, 2, [9, 9, 7]), (4, 12, 0, [10, 13, 13, 13])],
)
def test_a_large_reduce_sends_more_than_a_reduce_scatter_and_a_gather(size, mib, root, expected_mib):
    sent = [sent_bytes("reduce", mib * MIB, rank, size, root) for rank in range(size)]
    assert sent == [each * MIB for each in expected_mib]


@given(SIZES, st.integers(0, 10**12), st.data())
def test_every_other_rank_gets_a_broadcast_once(size, nbytes, data):
    root = data.draw(st.integers(0, size - 1))
    total = sum(sent_bytes("broadcast", nbytes, rank, size, root) for rank in range(size))
    assert total == (size - 1) * nbytes


@given(SIZES, st.integers(0, 10**12), st.data())
def test_a_reduce_sends_at_least_what_it_must_and_less_than_twice_that(size, nbytes, data):
    root = data.draw(st.integers(0, size - 1))
    sent = [sent_bytes("reduce", nbytes, rank, size, root) for rank in range(size)]
    # The ranks' partial sums: n - 1 additions of the whole payload have to travel, and the results but the root's.
    must = (size - 1) * nbytes
    slack = 2 * size * size
    assert must - slack <= sum(sent) <= (size + 1) * nbytes + slack
    if nbytes <= 2 * size * REDUCE_SEGMENT_BYTES and nbytes % (2 * size) == 0:
        assert sent == [nbytes - nbytes // size * (rank == root) for rank in range(size)]


@given(st.sampled_from(["all_reduce", "broadcast", "reduce", "all_to_all", "scatter", "send", "barrier"]))
def test_alone_a_rank_sends_nothing(name):
    assert sent_bytes(name, 10**9, 0, 1) == 0


# -- by the kernel -----------------------------------------------------------------------------------------------------


def zeros(nbytes):
    return torch.zeros(nbytes // 4)


def calls(rank, ranks, root):
    """Every way to ask for an operation, each with a payload of PAYLOAD as Operation.bytes counts it."""
    part = PAYLOAD // ranks
    following = (root + 1) % ranks

    def list_of(nbytes):
        return [zeros(nbytes) for _ in range(ranks)]

    def send():
        if rank == root:
            dist.send(zeros(PAYLOAD), following)
        elif rank == following:
            dist.recv(zeros(PAYLOAD), root)

    def coalesced():
        with dist._coalescing_manager(group=dist.group.WORLD):
            reduce_scatter_single(zeros(part // 2), zeros(PAYLOAD // 2))
            reduce_scatter_single(zeros(part // 2), zeros(PAYLOAD // 2))

    at_root = rank == root
    return {
        "all_reduce": lambda: dist.all_reduce(zeros(PAYLOAD)),
        "broadcast": lambda: dist.broadcast(zeros(PAYLOAD), root),
        "reduce": lambda: dist.reduce(zeros(PAYLOAD), root),
        "reduce, large": lambda: dist.reduce(zeros(PAYLOAD * 16), root),
        "all_gather of a list": lambda: dist.all_gather(list_of(PAYLOAD), zeros(PAYLOAD)),
        "all_gather_single": lambda: all_gather_single(zeros(PAYLOAD * ranks), zeros(PAYLOAD)),
        "gather": lambda: dist.gather(zeros(PAYLOAD), list_of(PAYLOAD) if at_root else None, root),
        "scatter": lambda: dist.scatter(zeros(part), list_of(part) if at_root else None, root),
        "reduce_scatter of a list": lambda: dist.reduce_scatter(zeros(part), list_of(part)),
        "reduce_scatter_single": lambda: reduce_scatter_single(zeros(part), zeros(PAYLOAD)),
        "reduce_scatter_single, coalesced": coalesced,
        "all_to_all of lists": lambda: dist.all_to_all(list_of(part), list_of(part)),
        "all_to_all_single": lambda: dist.all_to_all_single(zeros(PAYLOAD), zeros(PAYLOAD)),
        "send": send,
        "barrier": dist.barrier,
    }


def measured(rank, ranks):
    """For each call and root: the name, and what the record and the kernel say that this rank sent."""
    # Ranks wait for each other on connections of their own, so as not to be counted.
    waiting = dist.new_group()
    descriptors = [each.descriptor for each in collectives.connections()]
    assert len(descriptors) == ranks - 1
    seen = []
    rows = []
    collectives.on_operation(seen.append)
    for root in range(ranks):
        for label, call in calls(rank, ranks, root).items():
            if root > 0 and not label.startswith((*ROOTED, "send")):
                continue
            dist.barrier(waiting)
            before = acknowledged(descriptors)
            dist.barrier(waiting)
            del seen[:]
            call()
            recorded = sum(operation.sent_bytes for operation in seen)
            dist.barrier(waiting)
            rows.append((f"{label}, root {root}, rank {rank}", recorded, acknowledged(descriptors) - before))
    return rows


def acknowledged(descriptors):
    """bytes_acked of all of them, once nothing is on the way."""
    deadline_s = time.monotonic() + 10
    while any(struct.unpack("i", fcntl.ioctl(each, termios.TIOCOUTQ, bytes(4)))[0] for each in descriptors):
        assert time.monotonic() < deadline_s, "the peers do not acknowledge"
        time.sleep(0.0005)
    return sum(tcp_info(each).acked_bytes for each in descriptors)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_the_record_of_an_operation_says_what_the_connections_carried(ranks):
    for rows in run_ranks(measured, ranks):
        for what, recorded, acked in rows:
            exactly = what.startswith("barrier")
            tolerance = 0 if exactly else max(0.02 * recorded, HEADERS_BYTES)
            assert abs(acked - recorded) <= tolerance, (what, recorded, acked)


def of_one_iteration(rank, ranks):
    """Records of all kinds of calls in an iteration, without their times, and whether their times are in order."""
    with collectives.iteration():
        for root in range(ranks):
            for call in calls(rank, ranks, root).values():
                call()
    operations = collectives.iterations()[-1].operations
    in_order = all(0 < each.submitted_ns <= each.completed_ns for each in operations if each.name != "send")
    return [(each.name, each.bytes, each.sent_bytes, each.group) for each in operations], in_order


def with_and_without_a_hook(rank, ranks):
    alone = of_one_iteration(rank, ranks)
    remove = collectives.on_operation(lambda operation: None)
    hooked = of_one_iteration(rank, ranks)
    remove()
    return alone, hooked, of_one_iteration(rank, ranks)


def test_records_are_the_same_whether_something_attends_to_operations_or_not():
    for alone, hooked, again in run_ranks(with_and_without_a_hook, 2):
        assert alone == hooked == again
        assert alone[1]
