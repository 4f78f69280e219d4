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
"""The handle of our root qdisc: "ml". The HTB qdisc of queue N of mq has the next but N."""

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
_KIND, _OPTIONS, _STATISTICS, _SIZE_TABLE = 1, 2, 7, 8
_BASIC, _QUEUE = 1, 3
_U64, _QUEUE_HEAD = struct.Struct("=Q"), struct.Struct("=II")
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
        """Whether it is our HTB qdisc, or our mq with an HTB qdisc for each queue."""
        return self.kind in ("htb", "mq") and self.handle == HANDLE

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


@dataclass(frozen=True)
class AttachedQdisc:
    """A qdisc of an interface, with the handle of the class that it is attached to; `size_table`: it has a stab."""

    kind: str
    handle: int
    parent: int
    options: bytes
    size_table: bool

    @property
    def is_default(self) -> bool:
        """Whether the kernel attached it: only a qdisc that somebody has set has a handle."""
        return self.handle == 0

    def saved(self) -> SavedQdisc:
        """The qdisc as the journal keeps it."""
        return SavedQdisc(self.kind, self.handle, self.options.hex())


def qdiscs_of(index: int) -> list[AttachedQdisc]:
    """The qdiscs of an interface on its way out, in the kernel's order."""
    bodies = _asked(_GET, netlink.DUMP, _TC.pack(socket.AF_UNSPEC, index, 0, 0, 0))
    attached = [_attached(body) for body in bodies if _TC.unpack_from(body)[1] == index]
    return [each for each in attached if each.parent == ROOT or each.parent < _INGRESS]


def _attached(body: bytes) -> AttachedQdisc:
    _, _, handle, parent, _ = _TC.unpack_from(body)
    attributes = {number: body[at:to] for number, at, to in netlink.attributes(body, _TC.size, len(body))}
    kind = attributes.get(_KIND, b"").rstrip(b"\0").decode()
    return AttachedQdisc(kind, handle, parent, attributes.get(_OPTIONS, b""), _SIZE_TABLE in attributes)


def root_of(interface: str) -> RootQdisc | None:
    """The root qdisc of an interface; None if there is no such interface."""
    try:
        index = socket.if_nametoindex(interface)
    except OSError:
        return None
    root, children = None, False
    for each in qdiscs_of(index):
        if each.parent == ROOT:
            root = RootQdisc(index, each.kind, each.handle, each.options)
            children = children or each.size_table or has_filters(index, each.handle)
        elif not each.is_default:
            children = True
    return RootQdisc(index, "noqueue", 0, b"") if root is None else replace(root, has_children=children)


def has_filters(index: int, handle: int) -> bool:
    """Whether a qdisc has filters; the kernel's default, whose handle is 0, has none."""
    request = _TC.pack(socket.AF_UNSPEC, index, 0, handle, 0)
    return handle not in (0, HANDLE) and bool(_asked(_GET_FILTERS, netlink.DUMP, request))


def class_handles(index: int) -> list[int]:
    """The handles of all classes of an interface."""
    return [_TC.unpack_from(body)[2] for body in _classes(index)]


def _classes(index: int) -> list[bytes]:
    return _asked(_GET_CLASSES, netlink.DUMP, _TC.pack(socket.AF_UNSPEC, index, 0, 0, 0))


@dataclass(frozen=True)
class ClassUse:
    """The bytes that a class has sent since it was added, and those that wait in its queue."""

    sent_bytes: int
    backlog_bytes: int


def class_use(index: int) -> dict[int, ClassUse]:
    """The use of every class of an interface, by handle: one request, much faster than with pyroute2."""
    found = {}
    for body in _classes(index):
        sent = backlog = 0
        for number, start, end in netlink.attributes(body, _TC.size, len(body)):
            if number != _STATISTICS:
                continue
            for inner, at, _ in netlink.attributes(body, start, end):
                if inner == _BASIC:
                    (sent,) = _U64.unpack_from(body, at)
                elif inner == _QUEUE:
                    _, backlog = _QUEUE_HEAD.unpack_from(body, at)
        found[_TC.unpack_from(body)[2]] = ClassUse(sent, backlog)
    return found


def remove_root(index: int) -> None:
    """Remove the root qdisc with all its children; the kernel attaches its default."""
    _asked(_DELETE, netlink.ACK, _TC.pack(socket.AF_UNSPEC, index, 0, ROOT, 0))


def restore_qdisc(index: int, saved: SavedQdisc, parent: int = ROOT) -> None:
    """Replace the qdisc of a class, or the root, by a saved one, in one request."""
    body = _TC.pack(socket.AF_UNSPEC, index, saved.handle, parent, 0)
    body += netlink.attribute(_KIND, saved.kind.encode() + b"\0")
    if saved.options:
        body += netlink.attribute(_OPTIONS, bytes.fromhex(saved.options))
    _asked(_NEW, netlink.ACK | netlink.CREATE | netlink.REPLACE, body)


def _asked(kind: int, flags: int, body: bytes) -> list[bytes]:
    """Send one request; returns the bodies of the replies.

    Raises:
        MltcpError: the kernel refuses it.
    """
    number, found = netlink.ask(kind, flags, body)
    _check(number)
    return found


def _check(number: int) -> None:
    if number and number != errno.ENODEV:
        raise MltcpError(f"traffic control: {os.strerror(number)}")
