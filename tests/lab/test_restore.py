"""The daemon's changes to an interface are undone exactly, wherever it was killed; changes of others stay."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from bench.lab.network import namespaces
from mltcp.core.errors import MltcpError, NotAvailableError
from mltcp.daemon.journal import Journal, restore
from mltcp.pacing.tc.htb_qdisc import OTHERS, HtbQdisc
from mltcp.pacing.tc.qdisc_change import QdiscChange
from mltcp.pacing.tc.qdiscs import SavedQdisc, root_of
from tests.lab.daemons import namespace_with_link

pytestmark = pytest.mark.lab

LINE_BPS = 1_000_000_000
JOB = 16
KILLS = int(os.environ.get("MLTCP_TEST_KILLS", "20"))
TBF = "qdisc add dev eth0 root handle 7: tbf rate 1gbit burst 64kb limit 1mb"
REPLACEABLE = [
    TBF,
    "qdisc add dev eth0 root handle 7: tbf rate 2gbit burst 64kb limit 1mb peakrate 3gbit mtu 1540",
    "qdisc add dev eth0 root handle 7: tbf rate 100gbit burst 1mb limit 4mb",
    "qdisc add dev eth0 root handle 7: pfifo limit 77",
    "qdisc add dev eth0 root handle 7: bfifo limit 7777",
    "qdisc add dev eth0 root handle 7: pfifo_fast",
]


@pytest.fixture
def inside():
    """Runs a function inside a namespace with a link."""
    with namespace_with_link() as name:
        yield lambda act: namespaces.inside(name, act)


def tc(arguments):
    return subprocess.run(["tc", *arguments.split()], capture_output=True, text=True, check=True).stdout


def ip(arguments):
    subprocess.run(["ip", *arguments.split()], check=True)


def shown(interface="eth0"):
    kinds = ("-d qdisc", "class", "filter")
    return "\n".join(tc(f"{kind} show dev {interface}") for kind in kinds)


@contextmanager
def tree_on(interface, journal, replace=True):
    tree = HtbQdisc(interface, LINE_BPS, journal, replace)
    try:
        yield tree
    finally:
        tree.close()


# -- to the letter -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("former", REPLACEABLE)
def test_a_replaced_qdisc_is_back_with_its_handle_and_options(inside, tmp_path, former):
    def act():
        tc(former)
        before = shown()
        with Journal.locked(tmp_path / "journal") as journal, tree_on("eth0", journal) as tree:
            tree.install()
            tree.add_class(JOB, 1e6)
            during = shown()
            lines = restore(journal)
            return before, during, shown(), lines, journal.pending()

    before, during, after, lines, pending = inside(act)
    assert " 7: " not in during
    assert after == before
    assert lines == [f"the HTB qdisc on eth0: removed; {former.split()[7]} is back"]
    assert pending == []


def test_the_kernels_default_of_several_queues_is_back(inside, tmp_path):
    def act():
        ip("link add ifb7 numtxqueues 4 type ifb")
        ip("link set ifb7 up")
        before = shown("ifb7")
        with Journal.locked(tmp_path / "journal") as journal, tree_on("ifb7", journal, False) as tree:
            tree.install()
            restore(journal)
        return before, shown("ifb7")

    before, after = inside(act)
    assert before.count("parent :") == 4
    assert after == before


@pytest.mark.parametrize(
    "commands",
    [
        ["qdisc add dev eth0 root handle 7: htb"],
        ["qdisc add dev eth0 root handle 7: mq"],
        [
            "qdisc add dev eth0 root handle 7: stab overhead 20 linklayer atm tbf rate 1gbit burst 64kb limit 1mb"
        ],
        [TBF, "qdisc add dev eth0 parent 7:1 handle 8: pfifo limit 5"],
    ],
)
def test_what_could_not_be_put_back_is_refused_even_if_it_may_be_replaced(inside, tmp_path, commands):
    def act():
        for command in commands:
            tc(command)
        before = shown()
        with Journal.locked(tmp_path / "journal") as journal, tree_on("eth0", journal) as tree:
            with pytest.raises(
                NotAvailableError, match="7: with classes or other parts, which could not be restored"
            ):
                tree.install()
            assert journal.pending() == []
        return before, shown()

    before, after = inside(act)
    assert after == before


class _Refused(HtbQdisc):
    """A tree of which the kernel takes the root only."""

    def _put_own_classes(self, route, index):
        raise MltcpError("traffic control: no room")


def test_a_tree_that_the_kernel_takes_only_half_of_is_taken_back(inside, tmp_path):
    def act():
        tc(TBF)
        before = shown()
        with Journal.locked(tmp_path / "journal") as journal:
            tree = _Refused("eth0", LINE_BPS, journal, replace=True)
            with pytest.raises(MltcpError, match="no room"):
                tree.install()
            tree.close()
            return before, shown(), journal.pending()

    before, after, pending = inside(act)
    assert after == before
    assert pending == []


def test_a_root_with_filters_is_more_than_its_options(inside):
    def act():
        tc("qdisc add dev eth0 root handle 7: htb")
        bare = root_of("eth0").has_children
        tc("filter add dev eth0 parent 7: u32 match u32 0 0 classid 7:1")
        return bare, root_of("eth0").has_children

    assert inside(act) == (False, True)


def test_an_interface_that_was_renamed_is_restored_under_its_new_name(inside, tmp_path):
    def act():
        before = shown()
        with Journal.locked(tmp_path / "journal") as journal, tree_on("eth0", journal) as tree:
            tree.install()
            for arguments in ("eth0 down", "eth0 name nic0", "nic0 up"):
                ip(f"link set {arguments}")
            restore(journal)
        return before, shown("nic0")

    before, after = inside(act)
    assert after == before


def test_an_interface_that_was_made_anew_is_not_touched(inside, tmp_path):
    def act():
        with Journal.locked(tmp_path / "journal") as journal, tree_on("eth0", journal) as tree:
            tree.install()
            ip("link del eth0")
            ip("link add eth0 type veth peer name eth1")
            tc(TBF)
            before = shown()
            return before, restore(journal), shown()

    before, lines, after = inside(act)
    assert after == before
    assert lines == ["the HTB qdisc on eth0: the interface is gone, and its qdisc with it"]


def test_one_change_that_cannot_be_undone_keeps_no_other_from_it(inside, tmp_path):
    def act():
        before = shown()
        with Journal.locked(tmp_path / "journal") as journal, tree_on("eth0", journal) as tree:
            tree.install()
            tree_on_lo = HtbQdisc("lo", LINE_BPS, journal)
            tree_on_lo.install()
            tree_on_lo.close()
            (entry,) = (entry for entry in journal.pending() if entry.change.interface == "lo")
            journal.undone(entry.number, "taken over by the next")
            # The kernel knows no such kind: lo stays as it is, and pending.
            journal.record(QdiscChange("lo", 1, SavedQdisc("nosuchkind", 0x70000, "")))
            lines = restore(journal)
            return before, lines, shown(), len(journal.pending())

    before, lines, after, pending = inside(act)
    assert lines[0].startswith("the HTB qdisc on lo: not undone: ")
    assert lines[1] == "the HTB qdisc on eth0: removed; the kernel's default is back"
    assert after == before
    assert pending == 1


# -- killed ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("former", [None, TBF])
def test_noted_but_not_done_is_no_change(inside, tmp_path, former):
    def act():
        if former:
            tc(former)
        before, root = shown(), root_of("eth0")
        with Journal.locked(tmp_path / "journal") as journal:
            journal.record(QdiscChange("eth0", root.index, root.saved() if former else None))
        with Journal.locked(tmp_path / "journal") as journal:
            return before, restore(journal), shown()

    before, (line,), after = inside(act)
    assert after == before
    assert "left alone" not in line


@pytest.mark.parametrize("former", [None, TBF])
def test_killed_anywhere_it_is_as_before_or_taken_over(inside, tmp_path, former):
    """SIGKILL while trees are made, changed and undone; every second time the next daemon takes over first."""
    source = random.Random(7)

    def act():
        if former:
            tc(former)
        before = shown()
        for number in range(KILLS):
            _killed_after(source.uniform(0.0, 0.03), lambda: _make_and_undo(tmp_path / "journal"))
            with Journal.locked(tmp_path / "journal") as journal, tree_on("eth0", journal) as tree:
                if number % 2:
                    tree.install()
                    tree.add_class(JOB, 1e6)
                    assert "6d6c:2 " in shown()
                    assert shown().count("bytecode") == 1
                assert not any("left alone" in line or "not undone" in line for line in restore(journal))
            assert shown() == before

    inside(act)


def _killed_after(seconds, act):
    """Run `act` in a child again and again until it is killed, so long after it has begun."""
    begun, beginning = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(beginning, b"x")
            while True:
                act()
        finally:
            os._exit(1)
    os.close(beginning)
    assert os.read(begun, 1) == b"x"
    os.close(begun)
    time.sleep(seconds)  # the moment of death, nothing is waited for
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "it failed before it was killed"


def _make_and_undo(path):
    with Journal.locked(path) as journal, tree_on("eth0", journal) as tree:
        tree.install()
        tree.add_class(JOB, 1e8)
        tree.change_rates({JOB: 2e8})
        restore(journal)


def test_a_half_built_tree_is_completed(inside, tmp_path):
    def act():
        with Journal.locked(tmp_path / "journal") as journal:
            with tree_on("eth0", journal) as tree:
                tree.install()
                tc(f"class del dev eth0 classid 6d6c:{OTHERS}")
                tc(f"class add dev eth0 parent 6d6c:1 classid 6d6c:{JOB:x} htb rate 1mbit")
            with tree_on("eth0", journal) as successor:
                successor.install()
                queues = tc("qdisc show dev eth0")
                restore(journal)
        return queues

    queues = inside(act)
    assert f"parent 6d6c:{OTHERS} limit 1000p" in queues
    assert f"parent 6d6c:{JOB:x} limit 10000p" in queues


def test_a_successor_brings_its_own_line_rate_and_no_second_classifier(inside, tmp_path):
    def act():
        with Journal.locked(tmp_path / "journal") as journal:
            for line_rate_bps in (LINE_BPS, 4 * LINE_BPS):
                tree = HtbQdisc("eth0", line_rate_bps, journal)
                tree.install()
                tree.close()
            found = tc("class show dev eth0 classid 6d6c:1"), tc("filter show dev eth0").count("bytecode")
            restore(journal)
        return found

    top, classifiers = inside(act)
    assert "rate 4Gbit ceil 4Gbit" in top
    assert classifiers == 1


FOLLOWS = """
import subprocess, sys
from pathlib import Path
from mltcp.daemon.journal import Journal
from mltcp.pacing.tc.htb_qdisc import HtbQdisc

def speed(megabits):
    command = f"ethtool -s tap7 speed {megabits} duplex full autoneg off"
    subprocess.run(command.split(), check=True)

speed(2500)
with Journal.locked(Path(sys.argv[1])) as journal:
    tree = HtbQdisc("tap7", None, journal)
    tree.install()
    print(tree.line_rate_bps)
    speed(10000)
    print(tree.state(), tree.line_rate_bps)
    print(subprocess.run("tc class show dev tap7 classid 6d6c:1".split(), capture_output=True, text=True).stdout)
    tree.remove()
"""


@pytest.mark.skipif(shutil.which("ethtool") is None, reason="ethtool is missing")
def test_a_link_that_is_negotiated_anew_is_followed(tmp_path):
    with namespace_with_link() as name:
        for arguments in ("tuntap add dev tap7 mode tap", "link set tap7 up"):
            namespaces.inside(name, lambda arguments=arguments: ip(arguments))
        # /sys shows the interfaces of the namespace that it was mounted in: `ip netns exec` mounts it anew.
        command = ["ip", "netns", "exec", name, sys.executable, "-c", FOLLOWS, tmp_path / "journal"]
        done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second, top = done.stdout.strip().splitlines()
    assert (first, second) == ("2500000000", "paced 10000000000")
    assert "rate 10Gbit ceil 10Gbit" in top


# -- the default class -------------------------------------------------------------------------------------------------


def test_where_the_interface_has_no_queue_all_else_passes_nevertheless(inside, tmp_path):
    def act():
        for arguments in (
            "link add ifb7 type ifb",
            "link set ifb7 txqueuelen 0 up",
            "addr add 10.78.0.1/24 dev ifb7",
        ):
            ip(arguments)
        ip("neigh add 10.78.0.2 lladdr 02:00:00:00:00:02 dev ifb7")
        with Journal.locked(tmp_path / "journal") as journal, tree_on("ifb7", journal, False) as tree:
            tree.install()
            before = tree.statistics()[OTHERS].packets
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                for _ in range(20):
                    sender.sendto(bytes(100), ("10.78.0.2", 9))
            after = tree.statistics()[OTHERS]
            restore(journal)
        return after.packets - before, after.drops

    assert inside(act) == (20, 0)


# -- TCP ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "is_paced"), [(socket.SO_PRIORITY, True), (socket.SO_MARK, True), (None, False)]
)
def test_a_tcp_connection_gets_the_rate_of_its_class(tmp_path, option, is_paced):
    rate_bps, count = 40_000_000, 2_000_000
    enough_bps = (0.8 if is_paced else 1.5) * rate_bps
    with namespace_with_link() as here, namespace_with_link() as there:
        _connect(here, there)
        listener = namespaces.inside(there, lambda: socket.create_server(("10.79.0.2", 0)))
        with listener, Journal.locked(tmp_path / "journal") as journal:

            def send():
                with tree_on("wan", journal, False) as tree:
                    tree.install()
                    tree.add_class(JOB, rate_bps)
                    # A machine that holds up the sender or the receiver makes it slower, never faster.
                    found_bps = [_rate_bps(listener, option, count)]
                    while found_bps[-1] <= enough_bps and len(found_bps) < 5:
                        found_bps.append(_rate_bps(listener, option, count))
                    statistics = tree.statistics()
                    restore(journal)
                    return statistics, found_bps

            statistics, found_bps = namespaces.inside(here, send)
    used, idle = (JOB, OTHERS) if is_paced else (OTHERS, JOB)
    assert statistics[used].sent_bytes > count > 100 * statistics[idle].sent_bytes
    assert statistics[JOB].drops == 0
    assert found_bps[-1] > enough_bps
    assert not is_paced or max(found_bps) < 1.02 * rate_bps


def _connect(here, there):
    """A link, wan, from one namespace to another."""
    for own, other, address in ((here, there, 1), (there, None, 2)):

        def wire(own=own, other=other, address=address):
            if other:
                ip(f"link add wan type veth peer name wan netns {other}")
            ip(f"addr add 10.79.0.{address}/24 dev wan")
            ip("link set wan up")

        namespaces.inside(own, wire)


def _rate_bps(listener, option, count):
    """The rate of a connection of this thread's namespace, from its first byte to the arrival of the last."""
    ended_s = []

    def receive():
        accepted, _ = listener.accept()
        with accepted:
            while accepted.recv(1 << 16):
                pass
            ended_s.append(time.monotonic())

    receiver = threading.Thread(target=receive)
    receiver.start()
    with socket.socket() as sender:
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        if option is not None:
            sender.setsockopt(socket.SOL_SOCKET, option, 0x6D6C0000 | JOB)
        sender.connect(listener.getsockname())
        began_s = time.monotonic()
        sender.sendall(bytes(count))
        sender.shutdown(socket.SHUT_WR)
        receiver.join()
    return 8 * count / (ended_s[0] - began_s)
