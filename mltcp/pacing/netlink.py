"""Netlink sockets, and messages as bytes: headers and attributes (include/uapi/linux/netlink.h)."""

from __future__ import annotations

import errno
import os
import random
import socket
import struct
from collections.abc import Iterator

from mltcp.core.errors import MltcpError

HEADER = struct.Struct("=IHHII")
_FLAGS_AT, _U16 = 6, struct.Struct("=H")
ERRNO = struct.Struct("=i")
_ATTRIBUTE = struct.Struct("=HH")

REQUEST, ACK, DUMP, CREATE, EXCLUSIVE, REPLACE = 0x1, 0x4, 0x300, 0x400, 0x200, 0x100
ERROR, DONE = 2, 3
_DUMP_INTERRUPTED = 0x10
DUMPS = 10
"""The number of times that a dump is asked for if changes interrupt it."""

NESTED = 0x8000
_TYPE_MASK = 0x3FFF

MOST_BYTES = 1 << 17
"""The most bytes that the kernel puts into one reply."""

PROCESS_BITS = 0x3FFFFF
"""The bits of a socket's port that are, by convention, the number of its process."""

_open_ports: set[int] = set()
_closed_ports: set[int] = set()


class RouteSocket(socket.socket):
    """A socket for rtnetlink(7) whose port is remembered as one of ours."""

    port = 0

    def bind_as_ours(self, groups: int = 0) -> None:
        """Bind it to a port whose lower bits are this process, as others can tell, and whose upper bits are random.

        Two processes of different PID namespaces may have the same number. Left to the kernel, a port is that number.
        """
        first = random.randrange(1, 1024)
        for number in (*range(first, 1024), *range(1, first)):
            port = os.getpid() & PROCESS_BITS | number << 22
            try:
                self.bind((port, groups))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            self.port = port
            _open_ports.add(port)
            return
        raise OSError(errno.EADDRINUSE, "no port is free")

    def close(self) -> None:
        """Close it. Events of its last changes may not have been read yet."""
        if self.port in _open_ports:
            _closed_ports.add(self.port)
            _open_ports.discard(self.port)
        super().close()


def is_own(port: int) -> bool:
    """Whether a port is that of an open socket of ours, or of one whose events may not all have been read."""
    return port in _open_ports or port in _closed_ports


def open_ports() -> frozenset[int]:
    """The ports of our open sockets."""
    return frozenset(_open_ports)


def closed_ports() -> frozenset[int]:
    """The ports of our closed sockets that have not been forgotten."""
    return frozenset(_closed_ports)


def forget_closed(ports: frozenset[int]) -> None:
    """Forget ports of closed sockets, all of whose events have been read."""
    _closed_ports.difference_update(ports)


def route_socket(groups: int = 0) -> RouteSocket:
    """A socket for rtnetlink(7), member of these groups.

    Raises:
        MltcpError: the kernel refuses it.
    """
    try:
        # Of this type pyroute2 accepts it, too; to the kernel it is the same as SOCK_RAW.
        made = RouteSocket(socket.AF_NETLINK, socket.SOCK_DGRAM, socket.NETLINK_ROUTE)
        made.bind_as_ours(groups)
    except OSError as error:
        raise _failed(error) from None
    return made


def ask(kind: int, flags: int, body: bytes) -> tuple[int, list[bytes]]:
    """Send one request of rtnetlink(7); returns the number of the error, or 0, and the bodies of the replies.

    Raises:
        MltcpError: the request cannot be sent, its replies are lost, or changes interrupted each of `DUMPS` dumps.
    """
    for _ in range(DUMPS):
        with route_socket() as route:
            send(route, message(kind, flags, body, 1))
            number, found, whole = _answered(route)
        if whole:
            return number, found
    raise MltcpError(f"netlink: expected a whole list, got {DUMPS} that changes had interrupted")


def _answered(route: socket.socket) -> tuple[int, list[bytes], bool]:
    found: list[bytes] = []
    whole = True
    while True:
        buffer = receive(route)
        for answer, number, start, end in messages(buffer):
            if number != 1:
                continue
            whole = whole and not is_interrupted(buffer, start)
            if answer in (ERROR, DONE):
                return error_in(buffer, start, end), found, whole
            found.append(buffer[start:end])


def send(over: socket.socket, data: bytes) -> None:
    """Send requests; raises MltcpError if the kernel does not take them."""
    try:
        over.send(data)
    except OSError as error:
        raise _failed(error) from None


def receive(over: socket.socket) -> bytes:
    """The next replies; raises MltcpError if the kernel had no space for some."""
    try:
        return over.recv(MOST_BYTES)
    except OSError as error:
        raise _failed(error) from None


def _failed(error: OSError) -> MltcpError:
    return MltcpError(f"netlink: {error.strerror or error}")


def message(kind: int, flags: int, body: bytes, number: int = 0) -> bytes:
    """A request; its replies carry the same number."""
    return HEADER.pack(HEADER.size + len(body), kind, REQUEST | flags, number, 0) + body


def messages(buffer: bytes) -> Iterator[tuple[int, int, int, int]]:
    """The kind, number and body (start, end) of every message in a received buffer."""
    at = 0
    while at + HEADER.size <= len(buffer):
        length, kind, _, number, _ = HEADER.unpack_from(buffer, at)
        if not HEADER.size <= length <= len(buffer) - at:
            raise MltcpError(f"netlink: expected whole messages, got one of {length} bytes")
        yield kind, number, at + HEADER.size, at + length
        at += (length + 3) & ~3


def is_interrupted(buffer: bytes, start: int) -> bool:
    """Whether a change interrupted the dump that the message with this body is a part of."""
    (flags,) = _U16.unpack_from(buffer, start - HEADER.size + _FLAGS_AT)
    return bool(flags & _DUMP_INTERRUPTED)


def error_in(buffer: bytes, start: int, end: int) -> int:
    """The error number (positive, 0: none) in the body of an ERROR or DONE message."""
    return -int(ERRNO.unpack_from(buffer, start)[0]) if end - start >= ERRNO.size else 0


def attribute(number: int, value: bytes) -> bytes:
    """An attribute, padded to four bytes."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), number) + value + bytes(-len(value) % 4)


def attributes(buffer: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The number and value (start, end) of every attribute in a part of a received buffer."""
    at = start
    while at + _ATTRIBUTE.size <= end:
        length, number = _ATTRIBUTE.unpack_from(buffer, at)
        if length < _ATTRIBUTE.size:
            return
        yield number & _TYPE_MASK, at + _ATTRIBUTE.size, at + length
        at += (length + 3) & ~3
