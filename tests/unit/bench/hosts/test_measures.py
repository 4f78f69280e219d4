"""Counters, clock offsets, placement and the use of the link, computed from known readings."""

import os
import socket
import threading
import time
from multiprocessing.connection import wait

import pytest

from bench.hosts.connection import measured_offset
from bench.hosts.hosts_file import RemoteHost
from bench.hosts.measures import (
    FlowMeter,
    flows_of,
    host_facts,
    parse_connections,
    parse_interface,
    parse_paired_lines,
    read_counters,
)
from bench.hosts.messages import Clock, Measurement
from bench.hosts.placement import in_order, two_sided
from bench.hosts.provider import BIN_NS, SideMeasurement, link_use, spread
from bench.hosts.remote_rank import RemoteRank
from bench.workloads.rank import RankLost
from mltcp.core.errors import UsageError

DEV = """\
Inter-|   Receive                     |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 100 2 0 1 0 0 0 0 200 3 0 4 0 0 0 0
  eth0: 5 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
"""
A, B, C, D = (RemoteHost(name, f"10.0.0.{at}", "eth0", 1 + (name == "b")) for at, name in enumerate("abcd"))


def test_interface_counters():
    received, sent = parse_interface(DEV, "lo")
    assert (received[0], received[3], sent[0], sent[1], sent[3]) == (100, 1, 200, 3, 4)
    with pytest.raises(UsageError, match="'eth7'"):
        parse_interface(DEV, "eth7")


def test_protocol_counters():
    text = "Ip: A B\nIp: 1 2\nTcp: RetransSegs InErrs\nTcp: 7 0\n"
    assert parse_paired_lines(text, "Tcp") == {"RetransSegs": 7, "InErrs": 0}
    assert parse_paired_lines(text, "IpExt") == {}


def test_facts_of_this_host():
    facts = host_facts("here", "127.0.0.1", "lo", ())
    assert facts.mtu >= 1500
    assert facts.processors >= 1
    with pytest.raises(UsageError, match="interface: expected one of lo"):
        host_facts("here", "127.0.0.1", "none0", ())


def test_half_of_the_ranks_on_each_side_where_most_slots_are_free():
    placed = two_sided((A, B, C, D), (2, 2))
    assert [[host.name for host in ranks] for ranks in placed] == [["b", "c"], ["a", "d"]]
    with pytest.raises(
        UsageError, match="expected 3 on the second half of the hosts for 3 jobs of 2 ranks, got 2"
    ):
        two_sided((A, B, C, D), (2, 2, 2))
    assert [(host.name, slot) for host, slot in in_order((A, B), 3)] == [("a", 0), ("b", 0), ("b", 1)]


@pytest.mark.parametrize("ahead_s", [0.0, 3600.0, -12.5])
def test_a_clock_that_is_ahead_by_seconds_is_measured(ahead_s):
    ahead_ns = round(ahead_s * 1e9)

    def read():
        return Clock(time.monotonic_ns() + ahead_ns, time.time_ns() - ahead_ns)

    found = measured_offset(read)
    # Half of the round trip bounds the error, however busy the machine is.
    assert found.monotonic_s == pytest.approx(ahead_s, abs=found.round_trip_s)
    assert found.realtime_s == pytest.approx(-ahead_s, abs=found.round_trip_s + 0.1)


def test_bytes_between_samples_fall_into_the_bins_that_they_span():
    bins = [0.0] * 4
    spread([(0, 0.0), (BIN_NS, 0.0), (3 * BIN_NS, 100.0), (3 * BIN_NS + BIN_NS // 2, 130.0)], bins)
    assert bins == pytest.approx([0.0, 50.0, 50.0, 30.0])


def test_the_use_of_the_link_is_on_the_launchers_clock_by_the_jobs_own_numbers():
    samples = ((5_000_000_000, (0, 0)), (5_000_000_000 + BIN_NS, (1448, 2896)))
    left = SideMeasurement(Measurement(9, 9, 1, 2, 0, 3, (0, 1), samples), ahead_s=4.0)
    right = SideMeasurement(Measurement(9, 9, 0, 5, 0, 3, (), ()), ahead_s=0.0)
    use = link_use(
        [left], [right], [2, 0, 1], epoch_ns=1_000_000_000, duration_ns=2 * BIN_NS, rate_bps=10**9, mtu=1500
    )
    forth, back = use.directions
    assert {job: list(bins) for job, bins in forth.bytes_by_job.items()} == {
        2: [1514, 0, 0],
        0: [3028, 0, 0],
        1: [0, 0, 0],
    }
    assert (use.marks, use.drops, back.bytes) == (7, 1, 0)


def test_the_meter_counts_what_a_connection_has_sent():
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
        with ours, theirs:
            (flow,) = [
                each for each in flows_of(os.getpid(), ["127.0.0.1"], []) if each.local == ours.getsockname()
            ]
            assert flows_of(os.getpid(), ["127.0.0.1"], [server.getsockname()[1]]) != [flow]
            meter = FlowMeter({4: [flow], 7: []})
            ours.sendall(b"x" * 5000)
            assert len(theirs.recv(5000, socket.MSG_WAITALL)) == 5000
            samples = meter.stop()
    assert meter.jobs == (4, 7)
    assert samples[-1][1][0] - samples[0][1][0] == 5000
    assert all(counts[1] == 0 for _, counts in samples)


def test_only_established_connections():
    header = "  sl  local_address rem_address   st\n"
    line = "   0: 0100007F:1F90 0200007F:0016 {} 00000000:00000000 00:00000000 00000000  0 0 77 1\n"
    (found,) = parse_connections(header + line.format("01") + line.format("0A"))
    assert (found.local, found.remote, found.inode) == (("127.0.0.1", 8080), ("127.0.0.2", 22), 77)


def test_counters_of_loopback_grow_with_its_traffic():
    before = read_counters("lo")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x" * 1000, ("127.0.0.1", 9))
    assert read_counters("lo").sent_bytes - before.sent_bytes >= 1000


def test_messages_of_a_remote_rank_are_waited_for_and_end():
    rank = RemoteRank(lambda message: None, lambda: None)
    assert wait([rank], 0) == []
    threading.Thread(target=lambda: (rank.said("one"), rank.ended(-9))).start()
    assert wait([rank], 60) == [rank]
    assert rank.recv() == "one"
    rank.join()
    for _ in range(2):
        with pytest.raises(EOFError):
            rank.recv()
    assert rank.exitcode == -9
    rank.close()


def test_a_lost_host_is_told_once_and_ends_the_waiting():
    killed = []
    rank = RemoteRank(lambda message: None, lambda: killed.append(True))
    rank.kill()
    rank.lost("host a: its agent has ended")
    rank.join()
    rank.kill()
    assert killed == [True]
    assert rank.recv() == RankLost("host a: its agent has ended")
    rank.close()
