"""The tree on a real interface: rates, marks, and changes that lose nothing."""

import secrets
import socket
import time

import pytest

from bench.lab.network import namespaces, sysctls
from mltcp.core.errors import MltcpError
from mltcp.daemon.journal import Journal
from mltcp.pacing.tc.htb_qdisc import OTHERS, HtbQdisc
from mltcp.pacing.tc.messages import ClassGoneError, burst_bytes
from mltcp.pacing.tc.qdiscs import HANDLE, class_use
from tests.eventually import eventually
from tests.lab.moments import at_a_moment, most_between

pytestmark = pytest.mark.lab

JOB = 16
LINE_BPS = 1_000_000_000
SO_SNDBUFFORCE = 32
HEADER_BYTES = 42
"""The headers of a datagram on Ethernet."""


@pytest.fixture
def namespace():
    name = f"mltcptest-htb{secrets.token_hex(4)}"
    namespaces.create(name)
    try:
        # No packets but the test's: IPv6 would look for routers.
        namespaces.inside(name, lambda: sysctls.apply(sysctls.for_switch()))
        namespaces.netlink(name, _make_link)
        yield name
    finally:
        namespaces.remove(name)


def _make_link(route):
    """eth0, and eth1 as a place from which nothing answers: datagrams sent to it are counted, and that is all."""
    route.link("set", index=1, state="up")
    route.link("add", ifname="eth0", kind="veth", peer={"ifname": "eth1"})
    for name in ("eth0", "eth1"):
        route.link("set", index=route.link_lookup(ifname=name)[0], state="up")
    index = route.link_lookup(ifname="eth0")[0]
    route.addr("add", index=index, address="10.77.0.1", prefixlen=24)
    route.neigh("add", ifindex=index, dst="10.77.0.2", lladdr="02:00:00:00:00:02", state=0x80)


@pytest.fixture
def in_namespace(namespace, tmp_path):
    """Runs a function of a tree that is installed on eth0, inside the namespace."""

    def run(act, **options):
        def inside():
            with Journal.locked(tmp_path / "journal") as journal:
                tree = HtbQdisc("eth0", LINE_BPS, journal, **options)
                tree.install()
                try:
                    return act(tree)
                finally:
                    tree.remove()
                    tree.close()

        return namespaces.inside(namespace, inside)

    return run


def datagrams(count, size=1000, priority=None, mark=None):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 64 << 20)
        if priority is not None:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, priority)
        if mark is not None:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
        for _ in range(count):
            sender.sendto(bytes(size), ("10.77.0.2", 9))


def bytes_of(tree):
    """What the job has sent and what it has queued."""
    statistics = tree.statistics()[JOB]
    return statistics.sent_bytes + statistics.backlog_bytes


ELSEWHERE, NOWHERE = {"mark": 0x00110000}, {"mark": 0}


@pytest.mark.parametrize(
    ("options", "sockopts", "expected"),
    [
        ({}, {"priority": HANDLE | JOB}, JOB),
        ({}, {"mark": HANDLE | JOB}, JOB),
        ({}, {}, OTHERS),
        ({}, {"mark": 0x1234}, OTHERS),
        ({}, {"mark": HANDLE | 999}, OTHERS),  # of no job
        ({}, {"priority": HANDLE | 999}, OTHERS),
        ({}, {"priority": 6}, OTHERS),
        (ELSEWHERE, {"mark": 0x00110000 | JOB}, JOB),
        (ELSEWHERE, {"mark": HANDLE | JOB}, OTHERS),
        (ELSEWHERE, {"priority": HANDLE | JOB}, JOB),
        (NOWHERE, {"mark": HANDLE | JOB}, OTHERS),
        (NOWHERE, {"priority": HANDLE | JOB}, JOB),
    ],
)
def test_priority_or_mark_choose_the_class_and_all_else_is_in_the_default_one(
    in_namespace, options, sockopts, expected
):
    def act(tree):
        tree.add_class(JOB, 100e6)
        before = tree.statistics()
        datagrams(10, **sockopts)

        def grown():
            after = tree.statistics()
            return {minor: after[minor].packets - before[minor].packets for minor in (JOB, OTHERS)}

        # The class has a rate: the last ones are sent a moment later.
        eventually(lambda: sum(grown().values()) >= 10)
        return grown()

    grown = in_namespace(act, **options)
    assert grown == {expected: 10, JOB + OTHERS - expected: 0}


def test_a_change_of_rate_loses_no_packet_and_resets_no_queue(in_namespace):
    count, size = 3000, 1000

    def act(tree):
        tree.add_class(JOB, 1e6)
        datagrams(count, size, priority=HANDLE | JOB)
        seen = [tree.statistics()[JOB]]
        for number in range(200):
            tree.change_rates({JOB: 1e6 + 4e6 * (number % 7)})
            if number % 20 == 0:
                seen.append(tree.statistics()[JOB])
        tree.change_rates({JOB: LINE_BPS})
        deadline_s = time.monotonic() + 20
        while tree.statistics()[JOB].packets < count and time.monotonic() < deadline_s:
            time.sleep(0.01)
        return [*seen, tree.statistics()[JOB]]

    seen = in_namespace(act)
    frame = size + HEADER_BYTES
    assert seen[0].backlog_bytes > 0.9 * count * frame
    assert all(each.drops == 0 for each in seen)
    for each in seen:
        # What was sent and what is queued are all there was, at any time (the two are not read in one instant).
        assert abs(each.sent_bytes + each.backlog_bytes - count * frame) <= 200 * frame
    assert seen[-1].packets == count
    assert seen[-1].backlog_bytes == 0


def test_a_class_sends_at_its_rate(in_namespace):
    def act(tree):
        def sent():
            return class_use(tree.index)[HANDLE | JOB].sent_bytes

        tree.add_class(JOB, 8e6)  # 1 MB/s
        datagrams(3000, priority=HANDLE | JOB)  # 3 s, of which the next lines take a part
        first = at_a_moment(sent)
        time.sleep(0.5)
        last = at_a_moment(sent)
        return (last.found - first.found) / most_between(first, last)

    assert in_namespace(act) == pytest.approx(1e6, rel=0.15)


@pytest.mark.parametrize("rate_bps", [1e6, 3e8, 25e9, 400e9])
def test_rates_up_to_400_gbit_are_what_was_asked_for(in_namespace, namespace, rate_bps):
    def act(tree):
        tree.add_class(JOB, 5e6)
        tree.change_rates({JOB: rate_bps})
        return namespaces.netlink(namespace, lambda route: _rate_of(route, HANDLE | JOB))

    assert in_namespace(act) == pytest.approx(rate_bps, rel=1e-6)


def _rate_of(route, handle):
    index = route.link_lookup(ifname="eth0")[0]
    (found,) = (each for each in route.get_classes(index=index) if each["handle"] == handle)
    options = found.get_attr("TCA_OPTIONS")
    return 8 * (options.get_attr("TCA_HTB_RATE64") or options.get_attr("TCA_HTB_PARMS")["rate"])


def test_a_class_or_interface_that_is_gone_is_said_to_be(in_namespace, namespace):
    def act(tree):
        tree.add_class(JOB, 1e6)
        tree.remove_class(JOB)
        tree.remove_class(JOB)
        namespaces.netlink(namespace, lambda route: route.link("del", ifname="eth0"))
        with pytest.raises(ClassGoneError):
            tree.change_rates({JOB: 1e6})
        with pytest.raises(MltcpError):
            tree.add_class(JOB, 1e6)
        return tree.state()

    assert in_namespace(act) == "absent"


def test_a_tree_that_a_killed_daemon_left_is_taken_over_with_its_queues(in_namespace):
    count, size = 500, 1000

    def act(tree):
        tree.add_class(JOB, 1e6)
        datagrams(count, size, priority=HANDLE | JOB)
        successor = HtbQdisc("eth0", LINE_BPS, tree._journal)
        successor.install()
        # Now and then a packet leaves the queue between the two counters of one reading.
        eventually(lambda: bytes_of(successor) == count * (size + HEADER_BYTES))
        drops = successor.statistics()[JOB].drops
        successor.close()
        return drops, tree.classes()

    assert in_namespace(act) == (0, {JOB})


def test_many_classes_are_changed_at_once(in_namespace):
    def act(tree):
        for minor in range(JOB, JOB + 100):
            tree.add_class(minor, 1e6)
        tree.change_rates({minor: 1e6 * minor for minor in range(JOB, JOB + 100)})
        return tree.classes()

    assert in_namespace(act) == set(range(JOB, JOB + 100))


def test_bursts_cover_a_late_timer_and_two_frames():
    assert burst_bytes(1e6) == 62 + 3200
    assert burst_bytes(400e9) == 25_000_000 + 3200
