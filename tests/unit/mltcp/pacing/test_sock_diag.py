"""sock_diag on real connections of this machine."""

import dataclasses
import os
import socket
import struct

import pytest

from mltcp.pacing.sock_diag import BATCH, FlowKey, FlowOptions, SockDiag
from mltcp.pacing.tcp_info import congestion_control

SO_COOKIE = 57


@pytest.fixture
def diagnosis():
    made = SockDiag()
    yield made
    made.close()


def pair(host="127.0.0.1"):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        client = socket.create_connection(listener.getsockname()[:2])
        accepted, _ = listener.accept()
    return client, accepted


def key(connection):
    cookie = struct.unpack("=Q", connection.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8))[0]
    local, remote = connection.getsockname()[:2], connection.getpeername()[:2]
    return FlowKey(connection.family, local, remote, cookie)


def send_acknowledged(client, accepted, nbytes):
    client.sendall(b"x" * nbytes)
    while nbytes:
        nbytes -= len(accepted.recv(nbytes))
    # What comes back carries the acknowledgement of all that was read.
    accepted.sendall(b"y")
    assert client.recv(1) == b"y"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_it_tells_what_was_acknowledged(diagnosis, host):
    client, accepted = pair(host)
    with client, accepted:
        before = diagnosis.sample([key(client)])[0]
        send_acknowledged(client, accepted, 100_000)
        after = diagnosis.sample([key(client)])[0]
    assert after.acked_bytes - before.acked_bytes == 100_000
    assert after.delivered > before.delivered
    assert after.delivered_ce == 0


def test_an_ipv6_socket_that_talks_ipv4_is_found(diagnosis):
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        client = socket.create_connection(("127.0.0.1", listener.getsockname()[1]))
        accepted, _ = listener.accept()
    with client, accepted:
        assert accepted.family == socket.AF_INET6
        assert diagnosis.sample([key(accepted)])[0] is not None


def test_a_closed_connection_and_one_between_the_same_ports_with_another_cookie_are_gone(diagnosis):
    client, accepted = pair()
    found = key(client)
    other = dataclasses.replace(found, cookie=found.cookie + 1)
    assert diagnosis.sample([other, found])[0] is None
    accepted.close()
    client.close()
    assert diagnosis.sample([found]) == [None]


def test_more_than_a_batch_comes_back_in_order(diagnosis):
    pairs = [pair() for _ in range(BATCH + 20)]
    for number, (client, accepted) in enumerate(pairs):
        send_acknowledged(client, accepted, number + 1)
    samples = diagnosis.sample([key(client) for client, _ in pairs])
    # The SYN takes one number of the sequence.
    assert [sample.acked_bytes for sample in samples] == [number + 2 for number in range(len(pairs))]
    for client, accepted in pairs:
        client.close()
        accepted.close()


def test_nothing_is_asked_for_nothing(diagnosis):
    assert diagnosis.sample([]) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="marks need CAP_NET_ADMIN")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_connections_are_found_by_their_mark(diagnosis, host):
    pairs = [pair(host) for _ in range(3)]
    for number, (client, _) in enumerate(pairs):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 0x7A7A0010 + number)
    pairs[1][0].setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    usual = congestion_control(pairs[0][0].fileno())
    found = {}
    for part in diagnosis.marked(0x7A7A0000, 0xFFFF0000):
        found |= part
        # Other requests are answered meanwhile.
        assert diagnosis.sample([key(pairs[0][0])]) != [None]
        assert len(diagnosis.classified(0x7A7A0000, 0xFFFF0000)) == 3
    assert found == {
        key(client): FlowOptions("reno" if number == 1 else usual, 0x7A7A0010 + number)
        for number, (client, _) in enumerate(pairs)
    }
    for client, accepted in pairs:
        client.close()
        accepted.close()
