"""Events of traffic control: ours are told from those of a process that has the same number in another namespace."""

import os
import socket
from contextlib import contextmanager

import pytest
from pyroute2 import IPRoute

from bench.lab.network import namespaces
from bench.lab.network.namespaces import namespace_with_link
from mltcp.daemon.journal import Journal
from mltcp.pacing import netlink
from mltcp.pacing.tc.events import TcEvents
from mltcp.pacing.tc.htb_qdisc import HtbQdisc, with_route
from mltcp.pacing.tc.qdiscs import HANDLE

pytestmark = pytest.mark.lab

JOB = 16
LINE_BPS = 1_000_000_000


@pytest.fixture
def namespace():
    with namespace_with_link() as name:
        yield name


@contextmanager
def stranger(uppers):
    """pyroute2 over a socket whose port is that of this process with the first of these upper bits that is free.

    With upper bits of 0 it is the port that the kernel gives of itself.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, socket.NETLINK_ROUTE) as theirs:
        port = next(
            port for port in (os.getpid() | upper << 22 for upper in uppers) if not netlink.is_own(port)
        )
        theirs.bind((port, 0))
        theirs.setblocking(False)
        with IPRoute(use_socket=theirs) as route:
            yield port, route


def test_changes_from_our_sockets_are_ours_and_others_of_the_same_number_are_not(namespace, tmp_path):
    def act():
        events = TcEvents()
        with Journal.locked(tmp_path / "journal") as journal:
            qdisc = HtbQdisc("eth0", LINE_BPS, journal)
            qdisc.install()
            index = qdisc.index
            qdisc.add_class(JOB, 1e6)
            first = events.read()
            qdisc.add_class(JOB + 1, 1e6)
            for number in range(100):
                qdisc.change_rates({JOB: 1e6 + 1e3 * number, JOB + 1: 2e6})
            qdisc.remove_class(JOB + 1)
            second = events.read()
            seen = []
            for uppers in ([0], range(1, 512), range(512, 1024)):
                with stranger(uppers) as (port, route):
                    assert port & netlink.PROCESS_BITS == os.getpid()
                    route.tc("replace", "pfifo", index=index, parent=HANDLE | 2, limit=7)
                    seen.append(events.read())
            # Ours go on to be ours after them.
            qdisc.change_rates({JOB: 5e6})
            with_route(lambda route: route.tc("replace", "pfifo", index=index, parent=HANDLE | 2, limit=9))
            third = events.read()
            qdisc.remove()
            qdisc.close()
        fourth = events.read()
        ports = netlink.closed_ports()
        events.close()
        return [first, second, third, fourth], seen, ports

    own, seen, ports = namespaces.inside(namespace, act)
    assert own == [[], [], [], []]
    for events in seen:
        assert {(event.kind, event.parent, event.process) for event in events} == {
            ("qdisc", HANDLE | 2, os.getpid())
        }
        assert {event.by for event in events} == {"another program"}
    assert not ports
