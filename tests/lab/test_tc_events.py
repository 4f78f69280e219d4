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
def stranger(port):
    """pyroute2 over a socket with a port: 0 for the one that the kernel gives, which is the number of the process."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, socket.NETLINK_ROUTE) as theirs:
        theirs.bind((port, 0))
        theirs.setblocking(False)
        with IPRoute(use_socket=theirs) as route:
            yield theirs.getsockname()[0], route


def other_port():
    """A port with the number of this process that none of our sockets has."""
    number = next(each for each in range(1023, 0, -1) if not netlink.is_own(os.getpid() | each << 22))
    return os.getpid() | number << 22


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
            for wanted in (0, other_port(), os.getpid() | 1 << 31):
                with stranger(wanted) as (port, route):
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
