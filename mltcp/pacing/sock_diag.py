"""Reads the counters of TCP connections through sock_diag(7), without holding their descriptors.

A request for one connection is a lookup in the kernel's hash table, so its cost does not depend on the number of other
connections; a control interval sends the requests of all flows at once. Sources: include/uapi/linux/inet_diag.h, tcp.h.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from mltcp.core.errors import MltcpError, NotAvailableError
from mltcp.pacing import netlink
from mltcp.pacing.tcp_info import TCP_ESTABLISHED, Address

T = TypeVar("T")

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_INFO, _CONTROL, _MARK, _BYTECODE, _MARK_CONDITION = 2, 4, 15, 1, 10
_WANT_INFO = 1 << (_INFO - 1)
_WANT_CONTROL = 1 << (_CONTROL - 1)
_PRIORITY, _WANT_PRIORITY = 17, 1 << (6 - 1)
"""The number of INET_DIAG_CLASS_ID is too large for a bit; INET_DIAG_TCLASS asks for it, too. Its value is the socket's
priority (SO_PRIORITY), unless cgroup v1 has given it a class."""

_LARGEST_U32 = 0xFFFFFFFF
_LIVE_STATES = _LARGEST_U32 & ~(1 << 6)
"""All but TIME_WAIT, which has no mark."""
_RECEIVE_BUFFER_BYTES = 4 << 20

_REQ = struct.Struct("=BBBBI")
_ID = struct.Struct("!HH16s16s")
_REST = struct.Struct("=IQ")
_MARK_FILTER = struct.Struct("=BBHII")
_MESSAGE_BYTES = 72
_STATE, _ID_AT = 1, 4

# Offsets into struct tcp_info.
_UNACKED, _RETRANSMITS, _ACKED, _DELIVERED = 24, 100, 120, struct.Struct("=II")
_DELIVERED_AT = 192
_U32, _U64 = struct.Struct("=I"), struct.Struct("=Q")

BATCH = 128
"""The number of connections requested at once, whose replies fit the receive buffer."""


class Sample(NamedTuple):
    """The counters of one flow since it was opened, and the segments that it has in flight now."""

    acked_bytes: int
    delivered: int
    delivered_ce: int
    retransmits: int
    unacked: int = 0


NO_SAMPLE = Sample(0, 0, 0, 0)


class FlowOptions(NamedTuple):
    """The options of one flow that decide how it sends; the mark is told to CAP_NET_ADMIN only."""

    control: str
    mark: int


class ClassifiedSocket(NamedTuple):
    """What selects the class of a socket's packets."""

    mark: int
    priority: int


@dataclass(frozen=True)
class FlowKey:
    """Identifies a TCP connection; the cookie distinguishes it from a later one between the same ports."""

    family: int
    local: Address
    remote: Address
    cookie: int

    def __str__(self) -> str:
        return f"{_endpoint(self.local)} > {_endpoint(self.remote)}"

    def request(self, number: int, wants: int = _WANT_INFO) -> bytes:
        """The request for its counters; the reply carries the same number."""
        wanted = _REQ.pack(self.family, socket.IPPROTO_TCP, wants, 0, 0xFFFFFFFF)
        ports = _ID.pack(self.local[1], self.remote[1], _packed(self.local[0]), _packed(self.remote[0]))
        # The kernel splits the cookie into its lower and its upper half, in this order.
        body = wanted + ports + _REST.pack(0, self.cookie)
        return netlink.message(_SOCK_DIAG_BY_FAMILY, 0, body, number)


class SockDiag:
    """A sock_diag socket for the connections of this network namespace.

    Raises:
        NotAvailableError: the kernel has no sock_diag for TCP.
    """

    def __init__(self) -> None:
        self._socket = _open()
        self._requests: dict[FlowKey, bytes] = {}
        self._next_number = 1

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def sample(self, flows: Sequence[FlowKey]) -> list[Sample | None]:
        """The counters of each flow; None for one that is closed.

        Raises:
            MltcpError: the kernel refuses a request.
        """
        return self._ask(flows, self._request, _sample_in)

    def options(self, flows: Sequence[FlowKey]) -> list[FlowOptions | None]:
        """The options of each flow; None for one that is closed.

        Raises:
            MltcpError: the kernel refuses a request.
        """
        return self._ask(flows, lambda number, flow: flow.request(number, _WANT_CONTROL), _options_in)

    def forget(self, flow: FlowKey) -> None:
        """Drop the cached request of a flow that will not be sampled again."""
        self._requests.pop(flow, None)

    def _ask(
        self,
        flows: Sequence[FlowKey],
        request: Callable[[int, FlowKey], bytes],
        parse: Callable[[bytes, int, int], T | None],
    ) -> list[T | None]:
        answers: list[T | None] = []
        for at in range(0, len(flows), BATCH):
            answers += self._ask_batch(flows[at : at + BATCH], request, parse)
        return answers

    def _ask_batch(
        self,
        flows: Sequence[FlowKey],
        request: Callable[[int, FlowKey], bytes],
        parse: Callable[[bytes, int, int], T | None],
    ) -> list[T | None]:
        answers: list[T | None] = [None] * len(flows)
        first = self._take_numbers(len(flows))
        requests = (request((first + at) & _LARGEST_U32, flow) for at, flow in enumerate(flows))
        netlink.send(self._socket, b"".join(requests))
        waiting, refused = set(range(len(flows))), 0
        while waiting:
            buffer = netlink.receive(self._socket)
            for kind, number, start, end in netlink.messages(buffer):
                at = (number - first) & _LARGEST_U32
                if at not in waiting:
                    continue  # of a batch that failed
                waiting.discard(at)
                if kind == netlink.ERROR:
                    refused = refused or _refusal(netlink.error_in(buffer, start, end))
                else:
                    answers[at] = parse(buffer, start, end)
        _check(refused)
        return answers

    def _take_numbers(self, count: int) -> int:
        """The first of so many numbers that no earlier request had."""
        first = self._next_number
        self._next_number = (first + count) & _LARGEST_U32
        return first

    def _request(self, number: int, flow: FlowKey) -> bytes:
        """The request of a flow with this number; everything else of it is cached."""
        made = self._requests.get(flow)
        if made is None:
            made = self._requests[flow] = flow.request(0)
        return made[:8] + _U32.pack(number) + made[12:]

    def marked(self, mark: int, mask: int) -> Iterator[list[tuple[FlowKey, FlowOptions]]]:
        """The established connections whose mark is `mark` under `mask`, a few hundred at a time, some maybe twice.

        It needs CAP_NET_ADMIN and visits every connection of the namespace, so call it at most once a second. Other
        requests may be made meanwhile.

        Raises:
            MltcpError: the kernel refuses it, or changes interrupt it again and again.
        """
        condition = _mark_condition(mark, mask)
        with _open() as own:
            for family in (socket.AF_INET, socket.AF_INET6):
                states = 1 << TCP_ESTABLISHED
                yield from self._parts(own, _dump_request(family, _WANT_CONTROL, states, condition))

    def _parts(self, own: socket.socket, request: bytes) -> Iterator[list[tuple[FlowKey, FlowOptions]]]:
        for _ in range(netlink.DUMPS):
            number = self._take_numbers(1)
            netlink.send(own, netlink.message(_SOCK_DIAG_BY_FAMILY, netlink.DUMP, request, number))
            whole, done = True, False
            while not done:
                buffer, part = netlink.receive(own), []
                for kind, _, start, end in netlink.messages(buffer):
                    whole = whole and not netlink.is_interrupted(buffer, start)
                    done = kind in (netlink.DONE, netlink.ERROR)
                    if done:
                        _check(netlink.error_in(buffer, start, end))
                    else:
                        options = _options_in(buffer, start, end)
                        part += [] if options is None else [(_key_in(buffer, start), options)]
                yield part
            if whole:
                return
        raise _interrupted()

    def classified(self, mark: int, mask: int) -> list[ClassifiedSocket]:
        """The TCP sockets of this namespace, in any state, whose mark is `mark` under `mask`; with 0, all of them.

        Raises:
            MltcpError: as :meth:`marked`.
        """
        condition = _mark_condition(mark, mask) if mark else b""
        return [options for _, options in self._dump(_WANT_PRIORITY, _LIVE_STATES, condition)]

    def _dump(self, wants: int, states: int, condition: bytes) -> list[tuple[FlowKey, ClassifiedSocket]]:
        found = []
        for family in (socket.AF_INET, socket.AF_INET6):
            found += self._whole_dump(_dump_request(family, wants, states, condition))
        return found

    def _whole_dump(self, request: bytes) -> list[tuple[FlowKey, ClassifiedSocket]]:
        for _ in range(netlink.DUMPS):
            number = self._take_numbers(1)
            netlink.send(self._socket, netlink.message(_SOCK_DIAG_BY_FAMILY, netlink.DUMP, request, number))
            found, whole = self._dumped(number)
            if whole:
                return found
        raise _interrupted()

    def _dumped(self, asked: int) -> tuple[list[tuple[FlowKey, ClassifiedSocket]], bool]:
        found: list[tuple[FlowKey, ClassifiedSocket]] = []
        whole = True
        while True:
            buffer = netlink.receive(self._socket)
            for kind, number, start, end in netlink.messages(buffer):
                if number != asked:
                    continue  # of a dump that failed
                whole = whole and not netlink.is_interrupted(buffer, start)
                if kind in (netlink.DONE, netlink.ERROR):
                    _check(netlink.error_in(buffer, start, end))
                    return found, whole
                found.append((_key_in(buffer, start), _classified_in(buffer, start, end)))


def _open() -> socket.socket:
    try:
        opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
    except OSError as error:
        raise NotAvailableError(f"sock_diag is not available: {error.strerror} (CONFIG_INET_DIAG)") from None
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
    opened.bind((0, 0))
    return opened


def _dump_request(family: int, wants: int, states: int, condition: bytes) -> bytes:
    return _REQ.pack(family, socket.IPPROTO_TCP, wants, 0, states) + bytes(48) + condition


def _interrupted() -> MltcpError:
    return MltcpError(f"sock_diag: expected a whole list, got {netlink.DUMPS} that changes had interrupted")


def _mark_condition(mark: int, mask: int) -> bytes:
    # One condition; if it does not hold, the jump leads beyond the end of the program, which rejects.
    size = _MARK_FILTER.size
    return netlink.attribute(_BYTECODE, _MARK_FILTER.pack(_MARK_CONDITION, size, size + 4, mark, mask))


def _classified_in(buffer: bytes, start: int, end: int) -> ClassifiedSocket:
    mark = priority = 0
    for name, at, _ in netlink.attributes(buffer, start + _MESSAGE_BYTES, end):
        if name == _MARK:
            (mark,) = _U32.unpack_from(buffer, at)
        elif name == _PRIORITY:
            (priority,) = _U32.unpack_from(buffer, at)
    return ClassifiedSocket(mark, priority)


def _sample_in(buffer: bytes, start: int, end: int) -> Sample | None:
    # A closed connection that the kernel keeps for a while has no such attribute.
    for number, at, to in netlink.attributes(buffer, start + _MESSAGE_BYTES, end):
        if number == _INFO and to - at >= _DELIVERED_AT + 8:
            delivered, delivered_ce = _DELIVERED.unpack_from(buffer, at + _DELIVERED_AT)
            return Sample(
                _U64.unpack_from(buffer, at + _ACKED)[0],
                delivered,
                delivered_ce,
                _U32.unpack_from(buffer, at + _RETRANSMITS)[0],
                _U32.unpack_from(buffer, at + _UNACKED)[0],
            )
    return None


def _options_in(buffer: bytes, start: int, end: int) -> FlowOptions | None:
    # One that is closing keeps none of them.
    if buffer[start + _STATE] != TCP_ESTABLISHED:
        return None
    control, mark = "", 0
    for number, at, to in netlink.attributes(buffer, start + _MESSAGE_BYTES, end):
        if number == _CONTROL:
            control = buffer[at:to].partition(b"\0")[0].decode(errors="replace")
        elif number == _MARK:
            mark = _U32.unpack_from(buffer, at)[0]
    return FlowOptions(control, mark)


def _key_in(buffer: bytes, start: int) -> FlowKey:
    family = buffer[start]
    local_port, remote_port, local, remote = _ID.unpack_from(buffer, start + _ID_AT)
    cookie = _REST.unpack_from(buffer, start + _ID_AT + _ID.size)[1]
    return FlowKey(family, (_host(family, local), local_port), (_host(family, remote), remote_port), cookie)


def _endpoint(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _host(family: int, packed: bytes) -> str:
    return socket.inet_ntop(family, packed[: 4 if family == socket.AF_INET else 16])


def _packed(host: str) -> bytes:
    return ipaddress.ip_address(host.partition("%")[0]).packed.ljust(16, b"\0")


def _refusal(number: int) -> int:
    """The number of an error, or 0 if it says that the connection is closed."""
    return 0 if number in (errno.ENOENT, errno.ESTALE) else number


def _check(number: int) -> None:
    if _refusal(number):
        raise MltcpError(f"sock_diag: {errno.errorcode.get(number, number)}")
