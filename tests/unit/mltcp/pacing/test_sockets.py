"""Pacing by the sockets themselves, on real connections, by any user."""

import os
import socket
import struct
import threading
import time

import pytest

from mltcp.pacing import sockets
from mltcp.pacing.sockets import SocketPacer
from mltcp.pacing.tcp_info import inode
from tests.eventually import eventually

SO_MAX_PACING_RATE = 47


@pytest.fixture
def connection():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    with ours, theirs:
        yield ours, theirs


def rate_of(connection):
    return struct.unpack("=Q", connection.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 8))[0]


def test_a_connection_begins_at_the_line_rate_and_keeps_it_where_nothing_is_marked(connection):
    ours, theirs = connection
    pacer = SocketPacer(80_000_000)
    pacer.add([ours.fileno()])
    assert rate_of(ours) == 10_000_000
    ours.sendall(b"x" * 100_000)
    theirs.recv(100_000, socket.MSG_WAITALL)
    assert pacer.rates_bps() == {ours.fileno(): 80_000_000}
    pacer.close()


def test_it_sends_no_faster_than_the_line_rate(connection):
    ours, theirs = connection
    pacer = SocketPacer(80_000_000)
    pacer.add([ours.fileno()])
    nbytes = 4_000_000
    began_s = time.monotonic()
    sender = threading.Thread(target=ours.sendall, args=(bytes(nbytes),))
    sender.start()
    received = 0
    while received < nbytes:
        received += len(theirs.recv(1 << 16))
    elapsed_s = time.monotonic() - began_s
    sender.join()
    pacer.close()
    assert elapsed_s > 0.8 * nbytes / 10_000_000


def test_a_connection_that_is_closed_is_forgotten_and_its_number_left_to_others(connection):
    ours, _ = connection
    pacer = SocketPacer(80_000_000)
    pacer.add([ours.fileno()])
    ours.close()
    eventually(lambda: pacer.rates_bps() == {})
    pacer.close()


def test_what_is_no_socket_is_passed_over(tmp_path):
    pacer = SocketPacer(80_000_000)
    with open(tmp_path / "file", "w") as file:
        pacer.add([file.fileno(), 99999])
    assert pacer.rates_bps() == {}
    pacer.close()


UNLIMITED = (1 << 64) - 1


@pytest.mark.parametrize("former", [UNLIMITED, 5_000_000])
def test_the_limit_that_a_connection_had_is_back_at_the_end(connection, former):
    ours, _ = connection
    if former != UNLIMITED:
        ours.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=Q", former))
    assert rate_of(ours) == former
    pacer = SocketPacer(80_000_000)
    pacer.add([ours.fileno()])
    pacer.add([ours.fileno()])
    assert rate_of(ours) == 10_000_000
    pacer.close()
    assert rate_of(ours) == former
    pacer.close()
    assert rate_of(ours) == former


def pair():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return socket.create_connection(listener.getsockname()), listener.accept()[0]


def reuse(descriptor, other):
    """Have a descriptor be another socket's."""
    os.dup2(other.fileno(), descriptor)


def test_a_socket_that_has_got_the_descriptor_is_left_alone_at_the_end_too(connection):
    ours, _ = connection
    other, far = pair()
    with other, far:
        pacer = SocketPacer(80_000_000)
        pacer.add([ours.fileno()])
        reuse(ours.fileno(), other)
        pacer.close()
        assert rate_of(other) == UNLIMITED


def test_a_descriptor_that_is_reused_between_a_look_and_the_change_changes_no_other_socket(
    connection, monkeypatch
):
    ours, _ = connection
    other, far = pair()
    with other, far:
        pacer = SocketPacer(80_000_000)
        pacer.add([ours.fileno()])

        def inode_and_reuse(descriptor):
            found = inode(descriptor)
            reuse(ours.fileno(), other)
            return found

        monkeypatch.setattr(sockets, "inode", inode_and_reuse)
        pacer.close()
        assert rate_of(other) == UNLIMITED


def test_a_connection_under_a_reused_descriptor_can_be_added(connection):
    ours, _ = connection
    other, far = pair()
    with other, far:
        pacer = SocketPacer(80_000_000)
        pacer.add([ours.fileno()])
        reuse(ours.fileno(), other)
        pacer.add([ours.fileno()])
        assert rate_of(other) == 10_000_000
        pacer.close()
        assert rate_of(other) == UNLIMITED
