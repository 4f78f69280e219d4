"""Pacing by the sockets themselves, on real connections, by any user."""

import socket
import struct
import threading
import time

import pytest

from mltcp.pacing.sockets import SocketPacer

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


def until(condition):
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


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
    until(lambda: pacer.rates_bps() == {})
    pacer.close()


def test_what_is_no_socket_is_passed_over(tmp_path):
    pacer = SocketPacer(80_000_000)
    with open(tmp_path / "file", "w") as file:
        pacer.add([file.fileno(), 99999])
    assert pacer.rates_bps() == {}
    pacer.close()
