"""Netlink sockets, and messages as bytes: headers and attributes (include/uapi/linux/netlink.h)."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

HEADER = struct.Struct("=IHHII")
ERRNO = struct.Struct("=i")
_ATTRIBUTE = struct.Struct("=HH")

REQUEST, ACK, DUMP, CREATE, EXCLUSIVE, REPLACE = 0x1, 0x4, 0x300, 0x400, 0x200, 0x100
ERROR, DONE = 2, 3
NESTED = 0x8000
_TYPE_MASK = 0x3FFF

MOST_BYTES = 1 << 17
"""The most bytes that the kernel puts into one reply."""

PROCESS_BITS = 0x3FFFFF
"""The bits of a socket's port that are, by convention, the number of its process."""


def route_socket(groups: int = 0) -> socket.socket:
    """A socket for rtnetlink(7), member of these groups, whose port tells whose it is.

    Left to the kernel, only the first one of a process has such a port; that is left to pyroute2.
    """
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    for number in range(1023, 0, -1):
        try:
            made.bind((os.getpid() | number << 22, groups))
        except OSError:
            continue  # another socket of this process has it
        return made
    made.bind((0, groups))
    return made


def ask(kind: int, flags: int, body: bytes) -> tuple[int, list[bytes]]:
    """Send one request of rtnetlink(7); returns the number of the error, or 0, and the bodies of the replies."""
    found: list[bytes] = []
    with route_socket() as route:
        route.send(message(kind, flags, body))
        while True:
            buffer = route.recv(MOST_BYTES)
            for answer, _, start, end in messages(buffer):
                if answer == ERROR:
                    return error_in(buffer, start), found
                if answer == DONE:
                    return 0, found
                found.append(buffer[start:end])


def message(kind: int, flags: int, body: bytes, number: int = 0) -> bytes:
    """A request; its replies carry the same number."""
    return HEADER.pack(HEADER.size + len(body), kind, REQUEST | flags, number, 0) + body


def messages(buffer: bytes) -> Iterator[tuple[int, int, int, int]]:
    """The kind, number and body (start, end) of every message in a received buffer."""
    at = 0
    while at + HEADER.size <= len(buffer):
        length, kind, _, number, _ = HEADER.unpack_from(buffer, at)
        yield kind, number, at + HEADER.size, at + length
        at += (length + 3) & ~3


def error_in(buffer: bytes, start: int) -> int:
    """The error number (positive, 0: none) in the body of an ERROR message."""
    return -int(ERRNO.unpack_from(buffer, start)[0])


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
