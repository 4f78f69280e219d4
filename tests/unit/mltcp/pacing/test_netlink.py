"""Requests over netlink: lists that changes interrupt, errors at their end, and answers of other requests."""

import contextlib
import errno
import os
import socket
import struct

import pytest

from mltcp.core.errors import MltcpError
from mltcp.pacing import netlink, sock_diag
from mltcp.pacing.sock_diag import FlowKey, SockDiag
from mltcp.pacing.tc.messages import TcSocket

MULTI, INTERRUPTED = 0x2, 0x10
NEW_LINK, GET_LINK = 16, 18
KEY = FlowKey(socket.AF_INET, ("127.0.0.1", 1), ("127.0.0.1", 2), 3)


def message(kind, number, body=b"", flags=0):
    return netlink.HEADER.pack(16 + len(body), kind, flags, number, 0) + body + bytes(-len(body) % 4)


def error(number, code):
    return message(netlink.ERROR, number, struct.pack("=i", -code) + bytes(16))


def done(number, code=0, flags=MULTI):
    return message(netlink.DONE, number, struct.pack("=i", -code), flags)


class Kernel:
    """A socket whose peer answers each packet of requests by the next function of their numbers, with any buffers."""

    def __init__(self, *answers):
        self._answers = list(answers)
        self._buffers = []
        self.asked = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def close(self):
        pass

    def send(self, data):
        numbers, at = [], 0
        while at < len(data):
            length, _, _, number, _ = netlink.HEADER.unpack_from(data, at)
            numbers.append(number)
            at += (length + 3) & ~3
        self.asked += 1
        self._buffers += self._answers.pop(0)(numbers)

    def recv(self, size, flags=0):
        buffer = self._buffers.pop(0)
        if isinstance(buffer, OSError):
            raise buffer
        return buffer


def kernel(monkeypatch, *answers):
    made = Kernel(*answers)
    monkeypatch.setattr(netlink, "route_socket", lambda groups=0: made)
    return made


def sample(number, acked):
    """A reply to a request for counters, from which `acked_bytes` is read."""
    info = bytearray(200)
    struct.pack_into("=Q", info, 120, acked)
    return message(20, number, bytes(72) + netlink.attribute(2, bytes(info)))


@pytest.fixture
def diagnosis():
    made = SockDiag()
    yield made
    made.close()


def asking(diagnosis, *answers):
    diagnosis._socket.close()
    diagnosis._socket = Kernel(*answers)
    return diagnosis


# -- lists -------------------------------------------------------------------------------------------------------------


def test_a_list_that_a_change_interrupted_is_asked_for_again(monkeypatch):
    made = kernel(
        monkeypatch,
        lambda ns: [message(NEW_LINK, ns[0], b"old!", MULTI), done(ns[0], flags=MULTI | INTERRUPTED)],
        lambda ns: [message(NEW_LINK, ns[0], b"half", MULTI | INTERRUPTED) + done(ns[0])],
        lambda ns: [message(NEW_LINK, ns[0], b"good", MULTI) + done(ns[0])],
    )
    assert netlink.ask(GET_LINK, netlink.DUMP, bytes(16)) == (0, [b"good"])
    assert made.asked == 3


def test_a_list_that_is_always_interrupted_is_an_error(monkeypatch):
    made = kernel(monkeypatch, *[lambda ns: [done(ns[0], flags=INTERRUPTED)]] * netlink.DUMPS)
    with pytest.raises(
        MltcpError, match="netlink: expected a whole list, got 10 that changes had interrupted"
    ):
        netlink.ask(GET_LINK, netlink.DUMP, bytes(16))
    assert made.asked == netlink.DUMPS


def test_the_error_at_the_end_of_a_list_is_told(monkeypatch):
    kernel(monkeypatch, lambda ns: [message(NEW_LINK, ns[0], b"good", MULTI) + done(ns[0], errno.EMSGSIZE)])
    assert netlink.ask(GET_LINK, netlink.DUMP, bytes(16)) == (errno.EMSGSIZE, [b"good"])


def test_answers_to_others_are_passed_over(monkeypatch):
    kernel(monkeypatch, lambda ns: [error(77, errno.EPERM) + message(NEW_LINK, 77, b"77"), error(ns[0], 0)])
    assert netlink.ask(NEW_LINK, netlink.ACK, bytes(16)) == (0, [])


@pytest.mark.parametrize(
    "answer",
    [
        OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS)),
        netlink.HEADER.pack(0, NEW_LINK, 0, 1, 0),
        netlink.HEADER.pack(99, NEW_LINK, 0, 1, 0),
    ],
)
def test_lost_and_broken_answers_are_an_error_of_ours(monkeypatch, answer):
    kernel(monkeypatch, lambda ns: [answer])
    with pytest.raises(MltcpError, match="netlink: "):
        netlink.ask(GET_LINK, netlink.DUMP, bytes(16))


# -- batches -----------------------------------------------------------------------------------------------------------


def test_what_one_batch_leaves_is_not_taken_for_the_next_ones_answers(diagnosis):
    asking(
        diagnosis,
        lambda ns: [error(ns[0], errno.EINVAL), sample(ns[1], 11) + sample(ns[2], 12)],
        lambda ns: [sample(ns[0], 21)],
        lambda ns: [OSError(errno.ENOBUFS, "no"), sample(ns[0], 31) + sample(ns[1], 32)],
        lambda ns: [sample(ns[1], 42), sample(ns[0], 41) + sample(ns[0], 99), error(ns[2], errno.ENOENT)],
    )
    with pytest.raises(MltcpError, match="EINVAL"):
        diagnosis.sample([KEY] * 3)
    assert [each.acked_bytes for each in diagnosis.sample([KEY])] == [21]
    with pytest.raises(MltcpError):
        diagnosis.sample([KEY] * 2)
    found = diagnosis.sample([KEY] * 3)
    assert [each and each.acked_bytes for each in found] == [41, 42, None]


def test_numbers_go_on_after_the_largest(diagnosis):
    asking(diagnosis, lambda ns: [sample(number, at) for at, number in reversed(list(enumerate(ns)))])
    diagnosis._next_number = 0xFFFFFFFE
    assert [each.acked_bytes for each in diagnosis.sample([KEY] * 5)] == list(range(5))


def test_the_real_kernel_refuses_one_of_a_batch_and_the_next_one_is_right(diagnosis):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    with client, accepted:
        cookie = struct.unpack("=Q", client.getsockopt(socket.SOL_SOCKET, 57, 8))[0]
        good = FlowKey(socket.AF_INET, client.getsockname(), client.getpeername(), cookie)
        refused = FlowKey(77, *(("127.0.0.1", 1),) * 2, 1)
        for _ in range(2):
            with pytest.raises(MltcpError, match="sock_diag: "):
                diagnosis.sample([good, refused, good, good])
            assert all(diagnosis.sample([good, good]))


def classified(diagnosis):
    return diagnosis.classified(0x10000, 0xFFFF0000)


def marked(diagnosis):
    return [each for part in diagnosis.marked(0x10000, 0xFFFF0000) for each in part]


@pytest.mark.parametrize("listed", [classified, marked])
def test_a_list_of_marked_connections_that_was_interrupted_is_asked_for_again(diagnosis, monkeypatch, listed):
    def answer(*answers):
        asking(diagnosis, *answers)
        monkeypatch.setattr(sock_diag, "_open", lambda: contextlib.nullcontext(diagnosis._socket))

    empty = lambda ns: [done(ns[0])]  # noqa: E731
    answer(lambda ns: [done(ns[0], flags=MULTI | INTERRUPTED)], empty, empty)
    assert listed(diagnosis) == []
    answer(lambda ns: [done(ns[0], errno.EMSGSIZE)])
    with pytest.raises(MltcpError, match="EMSGSIZE"):
        listed(diagnosis)
    answer(*[lambda ns: [done(ns[0], flags=MULTI | INTERRUPTED)]] * netlink.DUMPS)
    with pytest.raises(MltcpError, match="expected a whole list"):
        listed(diagnosis)


def test_the_rest_of_a_list_that_failed_is_not_of_the_next_one(diagnosis):
    asking(
        diagnosis,
        lambda ns: [done(ns[0] - 1, errno.EPERM), done(ns[0])],
        lambda ns: [done(ns[0])],
    )
    assert classified(diagnosis) == []


def test_acknowledgements_of_rates_that_were_lost_are_not_those_of_the_next_ones(monkeypatch):
    made = kernel(
        monkeypatch,
        lambda ns: [OSError(errno.ENOBUFS, "no"), error(ns[0], errno.EPERM)],
        lambda ns: [error(ns[0], 0)],
    )
    tc = TcSocket()
    with pytest.raises(MltcpError):
        tc.change_rates(1, 1, {0x6D6C0010: 1e6})
    tc.change_rates(1, 1, {0x6D6C0010: 1e6})
    assert made.asked == 2


# -- ports -------------------------------------------------------------------------------------------------------------


def test_ports_are_ours_until_all_of_their_events_are_read():
    with netlink.route_socket() as one, netlink.route_socket() as other:
        ports = {one.port, other.port}
        assert len(ports) == 2
        assert all(port & netlink.PROCESS_BITS == os.getpid() and port != os.getpid() for port in ports)
        assert one.getsockname()[0] == one.port
        assert all(map(netlink.is_own, ports))
        assert ports <= netlink.open_ports()
    assert all(map(netlink.is_own, ports))
    assert not ports & netlink.open_ports()
    netlink.forget_closed(netlink.closed_ports())
    assert not any(map(netlink.is_own, ports))
    assert not netlink.is_own(os.getpid())
