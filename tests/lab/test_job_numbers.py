"""Numbers of paced jobs on a real kernel: no job gets one that a socket still carries, and none has another band."""

import signal
import socket
from contextlib import ExitStack

import pytest

from bench.cost.daemon import connections
from bench.lab.network import namespaces
from mltcp.daemon.client.client import Client, Registration
from tests.lab.daemons import daemon_in, tc

pytestmark = pytest.mark.lab

MARK = 0x6D6C0000
PACED = 'interfaces = ["eth0"]\n[pacing]\nline_rate = "1gbit"\n'


def priority_of(connection):
    return connection.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY)


def register(stack, daemon, name, connection=None):
    """A job's number, with a connection."""
    client = stack.enter_context(Client(daemon.socket))
    number = client.register(Registration(name, control="reno")).number
    if connection is not None:
        assert client.add_flows([connection.fileno()]) == ()
    return number


@pytest.mark.parametrize("base", [MARK, 0])
@pytest.mark.parametrize("ends", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGKILL, signal.SIGTERM)])
def test_numbers_that_sockets_carry_are_not_used_again_after_restarts(namespace, base, ends):
    with daemon_in(namespace, f"{PACED}mark = {base}\n") as daemon:

        def act():
            carried = set()
            with ExitStack() as stack:
                pairs = stack.enter_context(connections(6))
                for number, end in enumerate((*ends, None)):
                    with ExitStack() as clients:
                        for job in range(2):
                            ours = pairs[2 * number + job][0]
                            got = register(clients, daemon, f"job-{number}-{job}", ours)
                            assert got not in carried
                            assert priority_of(ours) == MARK | got
                            carried.add(got)
                    if end is not None:
                        daemon.stop(end)
                        daemon.start()
                # The first and the last of all six connections are closed.
                assert len(carried) == 6
                for pair in (pairs[0], pairs[5]):
                    for each in pair:
                        each.close()
                with ExitStack() as clients:
                    still = {priority_of(ours) & 0xFFFF for ours, _ in pairs[1:5]}
                    others = {register(clients, daemon, f"other-{each}") for each in range(8)}
                    assert not others & still

        namespaces.inside(namespace, act)


def test_all_jobs_are_in_the_band_of_other_traffic(namespace):
    with daemon_in(namespace, PACED) as daemon:

        def act():
            with ExitStack() as stack:
                pairs = stack.enter_context(connections(9))
                numbers = [
                    register(stack, daemon, f"job-{at}", ours) for at, (ours, _) in enumerate(pairs[:8])
                ]
                priorities = [priority_of(ours) for ours, _ in pairs]
                marks = [ours.getsockopt(socket.SOL_SOCKET, socket.SO_MARK) for ours, _ in pairs]
                return numbers, priorities, marks

        numbers, priorities, marks = namespaces.inside(namespace, act)
        assert len(set(numbers)) == 8
        assert {priority & 15 for priority in priorities} == {0}
        assert priorities == [*(MARK | number for number in numbers), 0]
        assert marks == priorities
        for number in numbers:
            assert f"class htb 6d6c:{number:x} " in tc(namespace, "class", "show", "dev", "eth0")
