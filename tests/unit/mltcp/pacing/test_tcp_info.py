"""Options of sockets read by descriptor, compared with those of Python's socket objects."""

import os
import socket
from contextlib import contextmanager

import pytest

from mltcp.pacing import tcp_info as sut


@contextmanager
def connected(family=socket.AF_INET, host="127.0.0.1"):
    """(listener, client, accepted)"""
    with socket.create_server((host, 0), family=family) as server:
        with socket.create_connection(server.getsockname()[:2]) as client:
            accepted, _ = server.accept()
            with accepted:
                yield server, client, accepted


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_addresses_are_those_that_python_says(family, host):
    try:
        socket.create_server((host, 0), family=family).close()
    except OSError:
        pytest.skip(f"no {host} on this machine")
    with connected(family, host) as (server, client, accepted):
        expected = client.getsockname()[:2], server.getsockname()[:2]
        assert sut.addresses(client.fileno()) == expected
        assert sut.addresses(accepted.fileno()) == expected[::-1]
        assert sut.local_address(server.fileno()) == server.getsockname()[:2]
        with pytest.raises(OSError, match="not connected"):
            sut.addresses(server.fileno())


def test_only_tcp_sockets_are_found():
    ours, theirs = socket.socketpair()
    reader, writer = os.pipe()
    with ours, theirs, socket.socket(type=socket.SOCK_DGRAM) as udp, connected() as connection:
        found = set(sut.tcp_sockets())
        assert {each.fileno() for each in connection} <= found
        assert not {ours.fileno(), theirs.fileno(), udp.fileno(), reader, writer} & found
        assert [sut.is_listening(each.fileno()) for each in connection] == [True, False, False]
    os.close(reader)
    os.close(writer)


def test_looking_changes_nothing_about_other_peoples_sockets():
    with connected() as (_, client, accepted):
        before = sut.descriptors()
        former = socket.getdefaulttimeout()
        socket.setdefaulttimeout(5)
        try:
            for descriptor in sut.tcp_sockets():
                sut.tcp_info(descriptor)
        finally:
            socket.setdefaulttimeout(former)
        assert os.get_blocking(client.fileno())
        assert os.get_blocking(accepted.fileno())
        assert sut.descriptors() == before


def test_acknowledged_bytes_are_those_that_were_sent():
    with connected() as (_, client, accepted):
        before = sut.tcp_info(client.fileno()).acked_bytes
        client.sendall(bytes(100_000))
        assert len(accepted.recv(100_000, socket.MSG_WAITALL)) == 100_000
        # The answer carries the acknowledgement of all that was read.
        accepted.sendall(b"!")
        client.recv(1)
        info = sut.tcp_info(client.fileno())
        assert (info.acked_bytes - before, info.state) == (100_000, sut.TCP_ESTABLISHED)


def test_a_descriptor_used_again_is_another_socket():
    first = socket.socket()
    descriptor, number = first.fileno(), sut.inode(first.fileno())
    with socket.socket() as second:
        first.close()
        os.dup2(second.fileno(), descriptor)
        assert sut.inode(descriptor) != number
        os.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        sut.inode(descriptor)
    assert sut.tcp_info(descriptor) is None


def test_congestion_control_is_set_on_the_socket_itself():
    with socket.socket() as one:
        sut.set_congestion_control(one.fileno(), "reno")
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"reno"
        assert sut.congestion_control(one.fileno()) == "reno"
        with pytest.raises(FileNotFoundError):
            sut.set_congestion_control(one.fileno(), "no-such-one")
        assert sut.congestion_control(one.fileno()) == "reno"
