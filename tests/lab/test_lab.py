"""The lab in the real kernel: what it connects, how fast, what it marks and counts, what stays of it."""

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from scapy.layers.inet import ICMP, IP, TCP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from bench.lab import bottleneck, ownership
from bench.lab.lab import Lab
from bench.lab.link import Link
from bench.lab.network import namespaces, wiring
from bench.lab.ownership import clean_stale
from bench.lab.topology import LabHost, LabSwitch, Topology, Trunk, dumbbell
from mltcp.core.errors import MltcpError, NotAvailableError, UsageError
from mltcp.core.quantities import parse_rate_bps
from tests.eventually import eventually

pytestmark = pytest.mark.lab

REPOSITORY = Path(__file__).resolve().parents[2]
PORT = 5001
NOT_ECT, ECT1, ECT0, CE = 0, 1, 2, 3
ETH_P_IP = 0x0800
SLOW_BPS = 1_000_000
FRAME_BYTES = 1000
PATIENCE_S = 60


def in_host(lab, name, action):
    return namespaces.inside(lab.namespace(name), action)


def connection(lab, client, server, congestion=b"reno"):
    """Two connected TCP sockets, one in each host."""
    address = next(host.address for host in lab.topology.hosts if host.name == server)
    with contextlib.closing(in_host(lab, server, socket.socket)) as listener:
        listener.settimeout(PATIENCE_S)
        # A connection of a moment ago may still be in TIME_WAIT there.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, PORT))
        listener.listen()
        one = in_host(lab, client, socket.socket)
        one.settimeout(PATIENCE_S)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion)
        one.connect((address, PORT))
        other, _ = listener.accept()
        other.settimeout(PATIENCE_S)
        return one, other


def can_connect(lab, client, server):
    one, other = connection(lab, client, server)
    with one, other:
        one.sendall(b"hello")
        return other.recv(5) == b"hello"


def transfer(lab, client, server, size):
    """Seconds that ``size`` bytes take over TCP, as the receiver sees it."""
    one, other = connection(lab, client, server)
    sender = threading.Thread(target=lambda: (one.sendall(bytes(size)), one.shutdown(socket.SHUT_WR)))
    with one, other:
        started = time.monotonic()
        sender.start()
        received = 0
        while chunk := other.recv(1 << 18):
            received += len(chunk)
        took = time.monotonic() - started
        sender.join()
    assert received == size
    return took


def tcp_info_u32(sock, offset):
    return struct.unpack_from("=I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), offset)[0]


def rto_us(sock):
    return tcp_info_u32(sock, 8)


def await_the_labs_rto(one, other):
    """Exchange data until the retransmission timeout is that of the lab, which the host's shortest never is.

    The first round trips count the most, and may be long on a busy machine.
    """

    def is_the_labs():
        one.sendall(b"x" * 3000)
        other.recv(3000, socket.MSG_WAITALL)
        return 5_000 <= rto_us(one) < 100_000

    eventually(is_the_labs)


def packet_socket(lab, name, protocol):
    sock = in_host(
        lab, name, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(protocol))
    )
    sock.bind(("eth0", protocol))
    sock.settimeout(PATIENCE_S)
    return sock


def frame(lab, ecn, number=0, dscp=46):
    source, target = lab.topology.hosts_of(0)[:2]
    packet = Ether(src=source.mac, dst=target.mac) / IP(
        src=source.address, dst=target.address, tos=dscp << 2 | ecn
    )
    # Nobody answers an answer.
    packet = packet / ICMP(type="echo-reply") / Raw(struct.pack(">I", number))
    return bytes(packet / Raw(bytes(FRAME_BYTES - len(packet))))


def exchange(lab, frames, count):
    """Send frames from rank 0 to rank 1 of job 0 in one burst; the first ``count`` that arrive."""
    with packet_socket(lab, "j0r1", ETH_P_IP) as receiver, packet_socket(lab, "j0r0", 0) as sender:
        for each in frames:
            sender.send(each)
        return [receiver.recv(65535) for _ in range(count)]


def ecn_of(data):
    return IP(data[14:]).tos & 3


def has_valid_checksum(data):
    header = IP(data[14:])
    stated, header.chksum = header.chksum, None
    return IP(bytes(header)).chksum == stated


def slow_link(threshold_bytes, queue_bytes=200_000):
    return Link(SLOW_BPS, queue_bytes, threshold_bytes)


def namespaces_of(lab_id):
    return namespaces.names(f"{ownership.PREFIX}{lab_id}-")


def is_gone(lab_id):
    return not namespaces_of(lab_id) and not (ownership.RECORDS / f"{lab_id}.owner").exists()


class TestConnections:
    def test_every_rank_reaches_every_other_also_of_other_jobs(self):
        with Lab(dumbbell(2, 3, Link(parse_rate_bps("100mbit"), 100_000))) as lab:
            for server in ("j0r1", "j0r2", "j1r0", "j1r2"):
                assert can_connect(lab, "j0r0", server)

    def test_a_tree_of_two_tiers_counts_each_trunk_by_itself(self):
        fast = Link(parse_rate_bps("100mbit"), 100_000)
        hosts = (LabHost("a", "leaf0", 0, 0), LabHost("b", "leaf1", 0, 1), LabHost("c", "spine", 1, 0))
        trunks = (Trunk("up0", "leaf0", "spine", fast), Trunk("up1", "leaf1", "spine", fast))
        with Lab(
            Topology(hosts, (LabSwitch("leaf0"), LabSwitch("leaf1"), LabSwitch("spine")), trunks)
        ) as lab:
            lab.start_measuring()
            transfer(lab, "a", "b", 50_000)
            use = lab.measurement()
            assert use.direction("leaf0", "spine").bytes == use.direction("spine", "leaf1").bytes > 50_000
            transfer(lab, "c", "b", 50_000)
            assert (
                lab.measurement().direction("leaf0", "spine").bytes == use.direction("leaf0", "spine").bytes
            )

    def test_interfaces_carry_no_frame_above_the_mtu(self):
        with Lab(dumbbell(1, 2, Link(parse_rate_bps("100mbit"), 200_000, mtu=1400))) as lab:
            assert in_host(lab, "j0r0", lambda: wiring.active_offloads("eth0")) == set()
            for port in ("trunk", "j0r0"):
                assert in_host(lab, "left", lambda port=port: wiring.active_offloads(port)) == set()
            one, other = connection(lab, "j0r0", "j0r1")
            with packet_socket(lab, "j0r1", ETH_P_IP) as tap, one, other:
                one.sendall(bytes(100_000))
                sizes, total = [], 0
                while total < 100_000:
                    sizes.append(len(tap.recv(65535)))
                    total += max(0, sizes[-1] - 66)
            assert max(sizes) == 1414

    def test_hosts_have_no_ipv6_and_the_retransmission_time_out_of_a_data_centre(self):
        for where in (None, "route"):
            with Lab(dumbbell(1, 2, Link(parse_rate_bps("100mbit"), 100_000)), rto_min_by=where) as lab:
                assert in_host(lab, "j0r0", Path("/proc/thread-self/net/if_inet6").read_text) == ""
                one, other = connection(lab, "j0r0", "j0r1")
                with one, other:
                    await_the_labs_rto(one, other)

    def test_settings_can_be_overridden_and_wrong_ones_leave_nothing(self):
        topology = dumbbell(1, 2, Link(parse_rate_bps("100mbit"), 100_000))
        setting = "net.ipv4.tcp_slow_start_after_idle"
        with Lab(topology, sysctls={setting: 0}) as lab:
            assert (
                in_host(lab, "j0r0", Path("/proc/sys/net/ipv4/tcp_slow_start_after_idle").read_text) == "0\n"
            )
        lab = Lab(topology, sysctls={setting: "often"})
        with pytest.raises(UsageError, match=f"refuses {setting} = 'often'"):
            lab.__enter__()
        assert is_gone(lab.id)


class TestRate:
    @pytest.mark.parametrize(
        ("threshold_bytes", "acks_first"), [(None, False), (40_000, False), (None, True)]
    )
    def test_a_bulk_transfer_fills_the_link_and_no_more(self, threshold_bytes, acks_first):
        rate_bps = parse_rate_bps("100mbit")
        link = Link(rate_bps, 150_000, threshold_bytes, acks_first=acks_first)
        with Lab(dumbbell(1, 2, link)) as lab:
            lab.start_measuring()
            size = 15_000_000
            took = transfer(lab, "j0r0", "j0r1", size)
            carried = lab.measurement().direction("left", "right")
        assert carried.bytes * 8 / (took * rate_bps) <= 1.01
        # Other programs may hold the sender up, but not for all of the transfer: its fullest 50 ms count.
        bins = carried.bytes_by_job[0]
        fullest = max(sum(bins[first : first + 10]) for first in range(len(bins) - 9))
        assert fullest * 8 >= 0.95 * 0.05 * rate_bps
        # They hold what the rate allows in 50 ms, and the shaper's burst, because what is carried is counted; on a busy
        # machine it may be counted late, so that a single bin has more.
        assert fullest <= link.rate_bytes_per_s * 0.05 * 1.1 + link.burst_bytes

    def test_the_queue_holds_what_it_should_and_counts_what_it_drops(self):
        with Lab(dumbbell(1, 2, slow_link(None, queue_bytes=20_000))) as lab:
            lab.start_measuring()
            sent = 60
            # The shaper's burst (3 frames) goes at once, 20 wait; a slow machine lets some more through.
            arrived = exchange(lab, [frame(lab, NOT_ECT, number) for number in range(sent)], 20)
            deadline = time.monotonic() + PATIENCE_S
            while (use := lab.measurement().direction("left", "right")).packets + use.drops < sent:
                assert time.monotonic() < deadline
        assert len(arrived) == 20
        assert use.packets + use.drops == sent
        assert use.drops >= 10
        assert use.packets >= 22

    def test_links_too_fast_for_tbf_are_shaped_by_htb_with_a_queue_in_bytes(self):
        with Lab(dumbbell(1, 2, Link(parse_rate_bps("40gbit"), 400_000))) as lab:

            def described(route):
                index = route.link_lookup(ifname="trunk")[0]
                kinds = {
                    q.get_attr("TCA_KIND"): q.get_attr("TCA_OPTIONS") for q in route.get_qdiscs(index=index)
                }
                (shaped,) = route.get_classes(index=index)
                return kinds, shaped.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_RATE64")

            kinds, rate = namespaces.netlink(lab.namespace("left"), described)
            assert rate == 5_000_000_000
            assert set(kinds) == {"htb", "bfifo", "clsact"}
            assert kinds["bfifo"]["limit"] == 400_000
            assert can_connect(lab, "j0r0", "j0r1")


class TestOrder:
    @pytest.mark.parametrize("acks_first", [False, True])
    def test_a_segment_without_data_overtakes_others_only_where_asked_for(self, acks_first):
        waiting = 30
        with Lab(dumbbell(1, 2, Link(SLOW_BPS, 200_000, acks_first=acks_first))) as lab:
            source, target = lab.topology.hosts_of(0)[:2]
            start = Ether(src=source.mac, dst=target.mac) / IP(src=source.address, dst=target.address)
            # All of one flow: processors that receive different flows let them overtake each other.
            empty, full, longer = (bytes(start / TCP(flags="A") / Raw(bytes(size))) for size in (0, 900, 946))
            arrived = exchange(lab, [longer] * waiting + [full, empty], waiting + 2)
        sizes = [len(each) for each in arrived]
        assert sizes[-1 if acks_first else -2] == len(full)
        # A slow machine lets some of them through before the last ones are sent.
        assert sizes.index(len(empty)) < waiting if acks_first else sizes[-1] == len(empty)

    @pytest.mark.parametrize("classes", [1, 4, 8])
    def test_a_high_traffic_class_overtakes_a_low_one_and_has_its_own_marks_where_there_are_queues(
        self, classes
    ):
        low, waiting = 0, 30
        link = Link(SLOW_BPS, 200_000, 10 * FRAME_BYTES, classes=classes)
        with Lab(dumbbell(1, 2, link)) as lab:
            frames = [frame(lab, ECT0, number, dscp=low) for number in range(waiting)]
            last = frame(lab, ECT0, waiting, dscp=56)  # CS7
            lab.start_measuring()
            arrived = exchange(lab, [*frames, last], waiting + 1)
            use = lab.measurement().direction("left", "right")
        marks = [ecn_of(data) == CE for data in arrived]
        place = [IP(data[14:]).tos >> 2 for data in arrived].index(56)
        # Low frames that found ten before them are marked; a slow machine lets some through before the last is sent.
        assert marks[place - 1 if place == waiting else -1]
        assert use.marks == sum(marks)
        assert (place < waiting, marks[place]) == ((False, True) if classes == 1 else (True, False))


class TestMarks:
    @pytest.mark.parametrize("ect", [ECT0, ECT1])
    def test_ecn_capable_packets_over_the_threshold_arrive_marked_and_otherwise_unchanged(self, ect):
        threshold_frames, sent = 10, 40
        with Lab(dumbbell(1, 2, slow_link(threshold_frames * FRAME_BYTES))) as lab:
            frames = [frame(lab, ect, number) for number in range(sent)]
            lab.start_measuring()
            arrived = exchange(lab, frames, sent)
            use = lab.measurement().direction("left", "right")
        marks = [ecn_of(data) == CE for data in arrived]
        # After ten frames the virtual queue is at its threshold at most; it drains one frame in 8 ms while
        # all forty are sent.
        assert marks[:threshold_frames] == [False] * threshold_frames
        assert marks[-1]
        assert use.marks == sum(marks)
        assert all(map(has_valid_checksum, arrived))
        for before, after in zip(frames, arrived, strict=True):
            assert IP(after[14:]).tos >> 2 == IP(before[14:]).tos >> 2
            assert after[34:] == before[34:]

    def test_within_a_ramp_marks_are_drawn_and_above_it_all_are_marked(self):
        sent, never, always = 100, 10, 90
        marks = {}
        for probability in (0.0, 0.5):
            link = Link(
                SLOW_BPS,
                sent * FRAME_BYTES,
                never * FRAME_BYTES,
                ecn_highest_bytes=always * FRAME_BYTES,
                ecn_probability=probability,
            )
            with Lab(dumbbell(1, 2, link)) as lab:
                frames = [frame(lab, ECT0, number) for number in range(sent)]
                lab.start_measuring()
                arrived = exchange(lab, frames, sent)
                marks[probability] = [ecn_of(data) == CE for data in arrived]
                assert lab.measurement().marks == sum(marks[probability])
        assert not any(marks[0.0][:always])
        assert not any(marks[0.5][:never])
        # The queue grows from frame to frame, but for what is sent meanwhile: a quarter of all at most.
        assert 3 < sum(marks[0.5][never:always]) < 0.5 * (always - never)

    def test_packets_that_are_not_ecn_capable_or_marked_already_are_never_changed(self):
        with Lab(dumbbell(1, 2, slow_link(5 * FRAME_BYTES))) as lab:
            frames = [frame(lab, ecn, number) for number, ecn in enumerate([NOT_ECT] * 20 + [CE] * 20)]
            lab.start_measuring()
            assert exchange(lab, frames, len(frames)) == frames
            assert lab.measurement().marks == 0

    def test_without_a_threshold_nothing_is_marked(self):
        with Lab(dumbbell(1, 2, slow_link(None))) as lab:
            frames = [frame(lab, ECT0, number) for number in range(40)]
            lab.start_measuring()
            assert exchange(lab, frames, len(frames)) == frames
            assert lab.measurement().marks == 0

    def test_below_the_threshold_nothing_is_marked(self):
        with Lab(dumbbell(1, 2, slow_link(40 * FRAME_BYTES))) as lab:
            frames = [frame(lab, ECT0, number) for number in range(40)]
            assert exchange(lab, frames, len(frames)) == frames

    def test_tcp_asks_for_marks_where_the_link_marks_and_heeds_them(self):
        rate_bps, threshold_bytes = parse_rate_bps("100mbit"), 30_000
        with Lab(dumbbell(1, 2, Link(rate_bps, 300_000, threshold_bytes))) as lab:
            lab.start_measuring()
            transfer(lab, "j0r0", "j0r1", 5_000_000)
            marked = lab.measurement().direction("left", "right")
        assert marked.marks > 0
        with Lab(
            dumbbell(1, 2, Link(rate_bps, 300_000, threshold_bytes)), sysctls={"net.ipv4.tcp_ecn": 0}
        ) as lab:
            lab.start_measuring()
            transfer(lab, "j0r0", "j0r1", 5_000_000)
            assert lab.measurement().marks == 0, "a flow without ECN has nothing to mark"

    def test_the_kernels_own_marks_are_used_where_it_has_them_and_refused_clearly_where_not(self):
        lab = Lab(dumbbell(1, 2, slow_link(10 * FRAME_BYTES)), ecn_by="kernel")
        if not bottleneck.kernel_can_mark():
            with pytest.raises(NotAvailableError, match="CONFIG_NET_SCH_FQ_CODEL"):
                lab.__enter__()
            assert is_gone(lab.id)
            return
        with lab:
            lab.start_measuring()
            arrived = exchange(lab, [frame(lab, ECT0, number) for number in range(40)], 40)
            assert lab.measurement().marks == sum(ecn_of(data) == CE for data in arrived) > 0


class TestCounts:
    def test_hand_made_frames_are_counted_exactly(self):
        with Lab(dumbbell(2, 2, slow_link(None))) as lab:
            lab.start_measuring()
            arrived = exchange(lab, [frame(lab, NOT_ECT, number) for number in range(25)], 25)
            use = lab.measurement()
        there, back = use.direction("left", "right"), use.direction("right", "left")
        assert (there.packets, there.bytes, there.unbinned_bytes, there.drops) == (25, 25_000, 0, 0)
        assert {job: sum(bins) for job, bins in there.bytes_by_job.items()} == {0: 25_000, 1: 0}
        assert (back.packets, back.bytes) == (0, 0)
        assert [struct.unpack(">I", data[42:46])[0] for data in arrived] == list(range(25))

    def test_bins_of_all_jobs_add_up_and_a_new_measurement_begins_at_nothing(self):
        with Lab(dumbbell(2, 2, Link(parse_rate_bps("100mbit"), 100_000))) as lab:
            lab.start_measuring()
            transfer(lab, "j0r0", "j0r1", 1_000_000)
            transfer(lab, "j1r0", "j1r1", 2_000_000)
            use = lab.measurement()
            for direction in use.directions:
                binned = sum(sum(bins) for bins in direction.bytes_by_job.values())
                assert binned + direction.unbinned_bytes == direction.bytes
            jobs = use.direction("left", "right").bytes_by_job
            assert 1_000_000 < sum(jobs[0]) < 1_500_000 < 2_000_000 < sum(jobs[1]) < 3_000_000
            assert len(jobs[0]) == use.duration_ns // use.bin_ns + 1
            # One after the other: no later byte of job 0 than the first burst of job 1, FIN packets apart.
            first_of_1 = next(bin for bin, carried in enumerate(jobs[1]) if carried)
            assert sum(jobs[0][first_of_1 + 1 :]) < 1000
            lab.start_measuring()
            assert lab.measurement().direction("left", "right").bytes < 1000


class TestTwoLabs:
    def test_at_once_have_the_same_addresses_and_do_not_meet(self):
        topology = dumbbell(1, 2, Link(parse_rate_bps("100mbit"), 100_000))
        with Lab(topology) as first:
            with Lab(topology) as second:
                assert first.id != second.id
                first.start_measuring()
                second.start_measuring()
                transfer(first, "j0r0", "j0r1", 100_000)
                assert first.measurement().direction("left", "right").bytes > 100_000
                assert second.measurement().direction("left", "right").bytes == 0
                assert can_connect(second, "j0r0", "j0r1")
            assert is_gone(second.id)
            assert can_connect(first, "j0r0", "j0r1")

    def test_the_callers_own_namespace_sees_no_interface(self):
        before = interface_names()
        with Lab(dumbbell(2, 2, Link(parse_rate_bps("100mbit"), 100_000))) as lab:
            # Of others there may be new ones: the kernel makes some when a module is loaded.
            new = interface_names() - before
            for name in namespaces_of(lab.id):
                assert not new & namespaces.inside(name, interface_names)


def interface_names():
    return {name for _, name in socket.if_nameindex()}


OWNER = textwrap.dedent(
    """
    import json, subprocess, sys
    from bench.lab.lab import Lab
    from bench.lab.link import Link
    from bench.lab.network.namespaces import enter
    from bench.lab.topology import dumbbell
    from mltcp.core.signals import exit_on_sigterm
    exit_on_sigterm()
    with Lab(dumbbell(1, 2, Link(10**8, 10**5))) as lab:
        host = lab.namespace("j0r0")
        sleeper = subprocess.Popen(["sleep", "1000"], preexec_fn=lambda: enter(host), start_new_session=True)
        print(json.dumps([lab.id, sleeper.pid]), flush=True)
        sys.stdin.read()
    """
)


@contextlib.contextmanager
def another_owner():
    """A process that owns a lab with a process in it: the owner, the lab, a descriptor of the one in it."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        text=True,
    )
    try:
        lab_id, sleeper = json.loads(owner.stdout.readline())
        with os.fdopen(os.pidfd_open(sleeper)) as inhabitant:
            yield owner, lab_id, inhabitant
    finally:
        owner.kill()
        owner.wait()
        owner.stdin.close()
        owner.stdout.close()
        clean_stale()


def has_ended(inhabitant):
    return bool(select.select([inhabitant], [], [], PATIENCE_S)[0])


class TestCleanUp:
    def test_after_an_exception_no_namespace_and_no_process_is_left(self):
        lab = Lab(dumbbell(1, 2, Link(10**8, 10**5)))
        host, children = lab.namespace("j0r0"), []

        def fail_in_the_lab():
            with lab:
                children.append(
                    subprocess.Popen(["sleep", "1000"], preexec_fn=lambda: namespaces.enter(host))
                )
                raise RuntimeError("a job failed")

        with pytest.raises(RuntimeError, match="a job failed"):
            fail_in_the_lab()
        (child,) = children
        assert child.wait(PATIENCE_S) == -signal.SIGKILL
        assert is_gone(lab.id)

    def test_after_a_failure_in_the_middle_of_building_nothing_is_left(self):
        # A queue that the kernel accepts on no link: the shaper is refused when all namespaces are there.
        lab = Lab(dumbbell(1, 2, Link(10**8, 10**5)))
        object.__setattr__(lab.topology.trunks[0].link, "rate_bps", 0)
        with pytest.raises((MltcpError, ZeroDivisionError)):
            lab.__enter__()
        assert is_gone(lab.id)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_an_owner_that_is_told_to_stop_removes_its_lab(self, number):
        with another_owner() as (owner, lab_id, inhabitant):
            assert len(namespaces_of(lab_id)) == 4
            owner.send_signal(number)
            assert owner.wait(PATIENCE_S) != 0
            assert is_gone(lab_id)
            assert has_ended(inhabitant)

    def test_a_killed_owners_lab_is_removed_with_its_processes_when_the_next_lab_starts(self):
        with another_owner() as (owner, lab_id, inhabitant):
            with ownership._locked():  # a test beside this one may start a lab, too
                owner.kill()
                owner.wait()
                assert len(namespaces_of(lab_id)) == 4, "nobody was there to remove it"
            with Lab(dumbbell(1, 2, Link(10**8, 10**5))):
                assert is_gone(lab_id)
                assert has_ended(inhabitant)

    def test_the_lab_of_a_living_owner_is_not_touched(self):
        with another_owner() as (_, lab_id, _):
            assert lab_id not in clean_stale()
            with Lab(dumbbell(1, 2, Link(10**8, 10**5))):
                pass
            assert len(namespaces_of(lab_id)) == 4

    def test_a_forked_child_does_not_take_its_parents_lab_away(self):
        with Lab(dumbbell(1, 2, Link(10**8, 10**5))) as lab:
            child = os.fork()
            if child == 0:
                lab.close()
                os._exit(0)
            os.waitpid(child, 0)
            assert can_connect(lab, "j0r0", "j0r1")
        assert is_gone(lab.id)

    def test_closing_twice_is_no_error(self):
        with Lab(dumbbell(1, 2, Link(10**8, 10**5))) as lab:
            lab.close()
        assert is_gone(lab.id)


class TestNamespaces:
    def test_an_unknown_one_is_named_and_not_made(self):
        with pytest.raises(UsageError, match="network namespace 'mltcp-lab-none' does not exist"):
            namespaces.inside("mltcp-lab-none", lambda: None)
        assert "mltcp-lab-none" not in namespaces.names("")

    def test_what_the_kernel_refuses_is_said_in_its_words(self):
        with Lab(dumbbell(1, 2, Link(10**8, 10**5))) as lab:
            with pytest.raises(MltcpError, match=r"j0r0: the kernel refused a request: .*") as caught:
                namespaces.netlink(
                    lab.namespace("j0r0"), lambda route: route.link("set", index=4711, state="up")
                )
            assert "\n" not in str(caught.value)

    def test_unknown_hosts_are_refused_with_the_known_ones(self):
        with Lab(dumbbell(1, 2, Link(10**8, 10**5))) as lab:
            with pytest.raises(UsageError, match="expected one of j0r0, j0r1, left, right, got 'j1r0'"):
                lab.namespace("j1r0")

    def test_the_calling_thread_stays_where_it_is(self):
        before = os.readlink("/proc/thread-self/ns/net")
        with Lab(dumbbell(1, 2, Link(10**8, 10**5))) as lab:
            with pytest.raises(ZeroDivisionError):
                in_host(lab, "j0r0", lambda: 1 // 0)
            assert in_host(lab, "j0r0", lambda: os.readlink("/proc/thread-self/ns/net")) != before
            assert os.readlink("/proc/thread-self/ns/net") == before


def test_shaper_statistics_of_an_interface_without_a_shaper_are_zero():
    assert namespaces.in_scratch(
        lambda route: bottleneck.queue_statistics(route, 1)
    ) == bottleneck.QueueStatistics(0, 0)
