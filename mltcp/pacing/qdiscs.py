"""The root queueing discipline of an interface: what it is, whose it is, and how to put a former one back."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mltcp.errors import MltcpError

HANDLE = 0x6D6C0000
"""Of our trees: "ml"."""

SAVEABLE = frozenset(
    {"bfifo", "cake", "choke", "codel", "fq", "fq_codel", "fq_pie", "gred", "hhf"}
    | {"netem", "pfifo", "pfifo_fast", "pie", "red", "sfb", "sfq", "tbf"}
)
"""Kinds that are all in their options: what is put back with them is what was there."""

_NEW, _DELETE, _GET, _GET_CLASSES = 36, 37, 38, 42
_REQUEST, _ACK, _DUMP, _CREATE, _REPLACE = 0x1, 0x4, 0x300, 0x400, 0x100
_ERROR, _DONE = 2, 3
_KIND, _OPTIONS = 1, 2
_ROOT = 0xFFFFFFFF
_INGRESS = 0xFFFF0000
_HEADER = struct.Struct("=IHHII")
_TC = struct.Struct("=BxxxiIII")
_ATTRIBUTE = struct.Struct("=HH")
_ERRNO = struct.Struct("=i")
_MOST_BYTES = 1 << 17


@dataclass(frozen=True)
class Saved:
    """A queueing discipline as it can be put back: its kind, handle and options (the kernel's bytes, in hex)."""

    kind: str
    handle: int
    options: str


@dataclass(frozen=True)
class Root:
    """The root queueing discipline of an interface. One that the kernel attached by itself has the handle 0."""

    index: int
    kind: str
    handle: int
    options: bytes
    has_children: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether it is a tree of ours."""
        return self.kind == "htb" and self.handle == HANDLE

    @property
    def is_default(self) -> bool:
        """Whether the kernel attached it, not a person or program."""
        return self.handle == 0

    @property
    def can_be_saved(self) -> bool:
        """Whether it could be put back as it was: not with classes, or other disciplines in it."""
        return self.kind in SAVEABLE and not self.has_children

    def saved(self) -> Saved:
        """As the journal keeps it."""
        return Saved(self.kind, self.handle, self.options.hex())

    def __str__(self) -> str:
        return f"qdisc {self.kind} {self.handle >> 16:x}:"


def root_of(interface: str) -> Root | None:
    """The root queueing discipline of an interface; None if there is no such interface."""
    try:
        index = socket.if_nametoindex(interface)
    except OSError:
        return None
    root, children = None, False
    for body in _asked(_GET, _DUMP, _TC.pack(socket.AF_UNSPEC, index, 0, 0, 0)):
        _, found, handle, parent, _ = _TC.unpack_from(body)
        if found != index:
            continue
        if parent == _ROOT:
            attributes = dict(_attributes(body))
            kind = attributes.get(_KIND, b"").rstrip(b"\0").decode()
            root = Root(index, kind, handle, attributes.get(_OPTIONS, b""))
        elif handle and parent < _INGRESS:
            children = True  # one with a handle was made by somebody
    return Root(index, "noqueue", 0, b"") if root is None else replace(root, has_children=children)


def class_handles(index: int) -> list[int]:
    """The handles of all classes of an interface."""
    request = _TC.pack(socket.AF_UNSPEC, index, 0, 0, 0)
    return [_TC.unpack_from(body)[2] for body in _asked(_GET_CLASSES, _DUMP, request)]


def remove_root(index: int) -> None:
    """Remove the root queueing discipline, with all under it; the kernel attaches its default."""
    _asked(_DELETE, _ACK, _TC.pack(socket.AF_UNSPEC, index, 0, _ROOT, 0))


def put_back(index: int, saved: Saved) -> None:
    """Make what was saved the root again."""
    body = _TC.pack(socket.AF_UNSPEC, index, saved.handle, _ROOT, 0)
    body += _attribute(_KIND, saved.kind.encode() + b"\0")
    if saved.options:
        body += _attribute(_OPTIONS, bytes.fromhex(saved.options))
    _asked(_NEW, _ACK | _CREATE | _REPLACE, body)


def _asked(kind: int, flags: int, body: bytes) -> list[bytes]:
    """Send one request; returns the bodies of what comes back.

    Raises:
        MltcpError: the kernel refuses.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as route:
        route.bind((0, 0))
        route.send(_HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | flags, 1, 0) + body)
        found: list[bytes] = []
        while True:
            buffer = route.recv(_MOST_BYTES)
            for answer, content in _messages(buffer):
                if answer == _ERROR:
                    _check(-_ERRNO.unpack_from(content)[0])
                    return found
                if answer == _DONE:
                    return found
                found.append(content)


def _messages(buffer: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEADER.size <= len(buffer):
        length, kind, *_ = _HEADER.unpack_from(buffer, at)
        yield kind, buffer[at + _HEADER.size : at + length]
        at += (length + 3) & ~3


def _attributes(body: bytes) -> Iterator[tuple[int, bytes]]:
    at = _TC.size
    while at + _ATTRIBUTE.size <= len(body):
        length, number = _ATTRIBUTE.unpack_from(body, at)
        if length < _ATTRIBUTE.size:
            return
        yield number & 0x3FFF, body[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3


def _attribute(number: int, value: bytes) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), number) + value + bytes(-len(value) % 4)


def _check(number: int) -> None:
    if number and number != errno.ENODEV:
        raise MltcpError(f"traffic control: {os.strerror(number)}")
