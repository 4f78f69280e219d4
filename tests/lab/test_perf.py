"""`mltcp-bench perf` between hosts of a lab: ECN where a control needs it, and a host gone without a word."""

import json
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from bench.lab.lab import Lab
from bench.lab.link import Link
from bench.lab.network import namespaces
from bench.lab.topology import dumbbell
from bench.perf.side import LOST_S
from tests.lab.controls_under_test import own_controls

pytestmark = pytest.mark.lab

BENCH = [sys.executable, "-m", "bench.cli", "perf"]
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


def _children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()


def _until(condition, patience_s):
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.mark.parametrize("flag", [[], ["-R"]])
def test_a_host_that_is_gone_without_a_word_is_noticed_on_both_sides(hosts, flag):
    """No packet of the other side comes any more, not even the end of a connection."""
    server, client, address = hosts
    with serving(server) as process:
        test = start(client, address, "-t", "600", "--bytes", "100K", "--compute", "0.05", *flag)
        _until(lambda: _children(process.pid), 20)
        time.sleep(0.5)
        _blackhole(client, address, "add")
        try:
            _, told = test.communicate(timeout=3 * LOST_S)
            assert test.returncode == 1
            assert len(told.splitlines()) == 1
            _until(lambda: not _children(process.pid), 3 * LOST_S)
        finally:
            _blackhole(client, address, "del")


def _blackhole(place, address, verb):
    route = ["ip", "route", verb, "blackhole", f"{address}/32"]
    namespaces.inside(place, lambda: subprocess.run(route, check=True))
