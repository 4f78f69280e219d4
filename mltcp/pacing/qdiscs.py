"""The root qdisc of an interface: reading, saving, replacing and restoring it."""

from __future__ import annotations

import errno
import os
import socket
import struct
from dataclasses import dataclass, replace

from mltcp.core.errors import MltcpError
from mltcp.pacing import netlink

HANDLE = 0x6D6C0000
"""The handle of our HTB qdisc: "ml"."""

ROOT = 0xFFFFFFFF
"""The parent of the root qdisc."""

SAVEABLE = frozenset(
    {"bfifo", "cake", "codel", "fq", "fq_codel", "fq_pie", "hhf"}
    | {"pfifo", "pfifo_fast", "pie", "sfb", "sfq", "tbf"}
)
"""Qdisc kinds that their options restore completely.

Not those with tables that the kernel does not return: red, choke, gred (TCA_RED_STAB), netem (TCA_NETEM_DELAY_DIST).
"""

_NEW, _DELETE, _GET, _GET_CLASSES, _GET_FILTERS = 36, 37, 38, 42, 46
_KIND, _OPTIONS, _SIZE_TABLE = 1, 2, 8
_INGRESS = 0xFFFF0000
_TC = struct.Struct("=BxxxiIII")


@dataclass(frozen=True)
class SavedQdisc:
    """A qdisc as it can be restored: its kind, handle and options (the kernel's bytes, in hex)."""

    kind: str
    handle: int
    options: str


@dataclass(frozen=True)
class RootQdisc:
    """The root qdisc of an interface. The kernel's default has the handle 0."""

    index: int
    kind: str
    handle: int
    options: bytes
    has_children: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether it is our HTB qdisc."""
        return self.kind == "htb" and self.handle == HANDLE

    @property
    def is_default(self) -> bool:
        """Whether it is the kernel's default, which nobody has set."""
        return self.handle == 0

    @property
    def can_be_saved(self) -> bool:
        """Whether it can be restored as it is: its options are complete, and it has no classes or other children."""
        return self.kind in SAVEABLE and not self.has_children

    def saved(self) -> SavedQdisc:
        """The qdisc as the journal keeps it."""
        return SavedQdisc(self.kind, self.handle, self.options.hex())

    def __str__(self) -> str:
        return f"qdisc {self.kind} {self.handle >> 16:x}:"


def root_of(interface: str) -> RootQdisc | None:
    """The root qdisc of an interface; None if there is no such interface."""
    try:
        index = socket.if_nametoindex(interface)
    except OSError:
        return None
    root, children = None, False
    for body in _asked(_GET, netlink.DUMP, _TC.pack(socket.AF_UNSPEC, index, 0, 0, 0)):
        _, found, handle, parent, _ = _TC.unpack_from(body)
        if found != index:
            continue
        if parent == ROOT:
            attributes = {
                number: body[at:to] for number, at, to in netlink.attributes(body, _TC.size, len(body))
            }
            kind = attributes.get(_KIND, b"").rstrip(b"\0").decode()
            root = RootQdisc(index, kind, handle, attributes.get(_OPTIONS, b""))
            children = children or _SIZE_TABLE in attributes or _has_filters(index, handle)
        elif handle and parent < _INGRESS:
            children = True  # only a qdisc that somebody has set has a handle
    return RootQdisc(index, "noqueue", 0, b"") if root is None else replace(root, has_children=children)


def _has_filters(index: int, handle: int) -> bool:
    """Whether the root has filters; the kernel's default, whose handle is 0, has none."""
    request = _TC.pack(socket.AF_UNSPEC, index, 0, handle, 0)
    return handle not in (0, HANDLE) and bool(_asked(_GET_FILTERS, netlink.DUMP, request))


def class_handles(index: int) -> list[int]:
    """The handles of all classes of an interface."""
    request = _TC.pack(socket.AF_UNSPEC, index, 0, 0, 0)
    return [_TC.unpack_from(body)[2] for body in _asked(_GET_CLASSES, netlink.DUMP, request)]


def remove_root(index: int) -> None:
    """Remove the root qdisc with all its children; the kernel attaches its default."""
    _asked(_DELETE, netlink.ACK, _TC.pack(socket.AF_UNSPEC, index, 0, ROOT, 0))


def restore_root(index: int, saved: SavedQdisc) -> None:
    """Replace the root qdisc by a saved one, in one request."""
    body = _TC.pack(socket.AF_UNSPEC, index, saved.handle, ROOT, 0)
    body += netlink.attribute(_KIND, saved.kind.encode() + b"\0")
    if saved.options:
        body += netlink.attribute(_OPTIONS, bytes.fromhex(saved.options))
    _asked(_NEW, netlink.ACK | netlink.CREATE | netlink.REPLACE, body)


def _asked(kind: int, flags: int, body: bytes) -> list[bytes]:
    """Send one request; returns the bodies of the replies.

    Raises:
        MltcpError: the kernel refuses it.
    """
    with netlink.route_socket() as route:
        route.send(netlink.message(kind, flags, body))
        found: list[bytes] = []
        while True:
            buffer = route.recv(netlink.MOST_BYTES)
            for answer, _, start, end in netlink.messages(buffer):
                if answer == netlink.ERROR:
                    _check(netlink.error_in(buffer, start))
                    return found
                if answer == netlink.DONE:
                    return found
                found.append(buffer[start:end])


def _check(number: int) -> None:
    if number and number != errno.ENODEV:
        raise MltcpError(f"traffic control: {os.strerror(number)}")
