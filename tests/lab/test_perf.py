"""`mltcp-bench perf` between hosts of a lab: ECN where a control needs it, and a host gone without a word."""

import json
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from bench.lab.lab import Lab
from bench.lab.link import Link
from bench.lab.network import namespaces
from bench.lab.topology import dumbbell
from bench.perf import messages
from bench.perf.messages import GREETING
from bench.perf.plan import PORT, PerfPlan
from tests.eventually import eventually
from tests.lab.controls_under_test import own_controls

pytestmark = pytest.mark.lab

LOST_S = 6
_WITH_LOST_S = (
    f"from bench.perf import side; side.LOST_S = {LOST_S}; from bench.cli.main import main; exit(main())"
)
BENCH = [sys.executable, "-c", _WITH_LOST_S, "perf"]
"""`mltcp-bench perf` that takes a host for lost after a few seconds instead of half a minute."""
QUEUE_BYTES, MARKING_BYTES = 300_000, 40_000


@pytest.fixture(scope="module")
def hosts():
    """Two hosts without ECN of their own accord; their namespaces, and the server's address."""
    link = Link(100_000_000, QUEUE_BYTES, MARKING_BYTES)
    with Lab(dumbbell(1, 2, link), sysctls={"net.ipv4.tcp_ecn": 2}) as lab:
        server, client = lab.topology.hosts_of(0)[:2]
        yield lab.namespace(server.name), lab.namespace(client.name), server.address


@contextmanager
def serving(place):
    process = namespaces.inside(
        place, lambda: subprocess.Popen([*BENCH, "-s"], stdout=subprocess.PIPE, text=True)
    )
    try:
        assert "listening" in process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def start(place, address, *arguments):
    command = [*BENCH, "-c", address, "--json", *arguments]
    return namespaces.inside(
        place, lambda: subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    )


def end(process):
    shown, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    return json.loads(shown)["end"]


def test_a_control_that_needs_ecn_has_it_and_its_neighbours_do_not(hosts):
    server, client, address = hosts
    with own_controls() as controls, serving(server):
        dctcp = controls.own["bpf_dctcp"]
        controls.load([dctcp])
        tests = [
            start(client, address, "-t", "2", *more)
            for more in (["-C", dctcp, "-P", "2"], ["-C", "reno"], [])
        ]
        asked, other, default = (end(each) for each in tests)
        for found, ecn in ((asked, True), (other, False), (default, False)):
            (direction,) = found["directions"]
            assert (direction["sender"]["ecn"], direction["receiver"]["ecn"]) == (ecn, ecn)
        assert asked["directions"][0]["sender"]["marks"] > 0
        assert asked["control_client"] == asked["control_server"] == [dctcp]
        assert default["control_server"] == default["control_client"] != [dctcp]


def test_a_test_without_a_control_has_the_hosts_while_the_server_listens_for_ecn(hosts):
    """A control that needs ECN is Reno on a connection without; what was accepted so is the host's again."""
    server, client, address = hosts
    with own_controls() as controls, serving(server):
        dctcp = controls.own["bpf_dctcp"]
        controls.load([dctcp])
        with namespaces.inside(client, lambda: socket.create_connection((address, PORT))) as waiting:
            messages.send(waiting, {"greeting": GREETING, "plan": PerfPlan(control=dctcp).document()})
            assert messages.receive(waiting)["ok"]
            found = end(start(client, address, "-t", "0.2"))
        assert found["control_server"] == found["control_client"]


def _children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()


@pytest.mark.parametrize("flag", [[], ["-R"]])
def test_a_host_that_is_gone_without_a_word_is_noticed_on_both_sides(hosts, flag):
    """No packet of the other side comes any more, not even the end of a connection."""
    server, client, address = hosts
    sender = server if flag else client
    with serving(server) as process:
        before = _bytes_sent(sender)
        test = start(client, address, "-t", "600", "--bytes", "100K", "--compute", "0.05", *flag)
        eventually(lambda: _bytes_sent(sender) > before + 200_000)
        assert _children(process.pid)
        _blackhole(client, address, "add")
        try:
            _, told = test.communicate(timeout=90)
            assert test.returncode == 1
            assert len(told.splitlines()) == 1
            eventually(lambda: not _children(process.pid))
        finally:
            _blackhole(client, address, "del")


def _bytes_sent(place):
    """By the interfaces of a namespace, all together."""
    return namespaces.netlink(place, lambda route: sum(_sent(link) for link in route.get_links()))


def _sent(link):
    return link.get_attr("IFLA_STATS64")["tx_bytes"]


def _blackhole(place, address, verb):
    route = ["ip", "route", verb, "blackhole", f"{address}/32"]
    namespaces.inside(place, lambda: subprocess.run(route, check=True))
