"""The filter by which an interface runs our program on its way out: a classifier of clsact (tc-bpf(8)).

A filter is known by its priority and handle. Others of the same priority run, too: ours decides nothing about a packet.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

from mltcp.core.errors import MltcpError, NotAvailableError
from mltcp.pacing import netlink

HANDLE = 0x6D6C0001
"""The handle of our filter: "ml"."""

EGRESS, CLSACT = 0xFFFFFFF3, 0xFFFFFFF1
_INGRESS = 0xFFFFFFF2
_CLSACT_HANDLE = 0xFFFF0000
_PRIORITY = 1
"""The first: a filter of others that decides would end the walk before ours."""

_NEW_QDISC, _DELETE_QDISC, _GET_QDISC = 36, 37, 38
_NEW_FILTER, _DELETE_FILTER, _GET_FILTER = 44, 45, 46
_KIND, _OPTIONS = 1, 2
_FD, _NAME, _FLAGS = 6, 7, 8
_DIRECT_ACTION = 1
_ETH_P_ALL = 0x0003
_TC = struct.Struct("=BxxxiIII")
_U32 = struct.Struct("=I")


def add_clsact(index: int) -> bool:
    """Add clsact to an interface; whether it had none.

    Raises:
        NotAvailableError: the kernel has none.
        MltcpError: the kernel refuses it.
    """
    body = _TC.pack(socket.AF_UNSPEC, index, _CLSACT_HANDLE, CLSACT, 0)
    body += netlink.attribute(_KIND, b"clsact\0")
    number = netlink.ask(_NEW_QDISC, netlink.ACK | netlink.CREATE | netlink.EXCLUSIVE, body)[0]
    if number == errno.EEXIST:
        return False
    if number == errno.ENOENT:
        raise NotAvailableError("this kernel has no qdisc clsact (CONFIG_NET_SCH_INGRESS)")
    _check(number)
    return True


def has_clsact(index: int) -> bool:
    """Whether an interface has clsact."""
    request = _TC.pack(socket.AF_UNSPEC, index, 0, 0, 0)
    _, answers = netlink.ask(_GET_QDISC, netlink.DUMP, request)
    return any(_TC.unpack_from(body)[1] == index and _TC.unpack_from(body)[3] == CLSACT for body in answers)


def remove_clsact_if_empty(index: int) -> None:
    """Remove clsact, unless somebody has filters there."""
    if not has_clsact(index) or any(_filters(index, parent) for parent in (EGRESS, _INGRESS)):
        return
    body = _TC.pack(socket.AF_UNSPEC, index, _CLSACT_HANDLE, CLSACT, 0)
    number, _ = netlink.ask(_DELETE_QDISC, netlink.ACK, body)
    if number not in (errno.ENOENT, errno.EINVAL, errno.ENODEV):
        _check(number)


def attach(index: int, program: int) -> None:
    """Run a program on the packets that leave an interface, in place of one that was attached before in this way.

    Raises:
        MltcpError: the kernel refuses it.
    """
    options = netlink.attribute(_FD, _U32.pack(program)) + netlink.attribute(_NAME, b"mltcp_departure\0")
    options += netlink.attribute(_FLAGS, _U32.pack(_DIRECT_ACTION))
    body = _filter(index) + netlink.attribute(_KIND, b"bpf\0")
    body += netlink.attribute(_OPTIONS | netlink.NESTED, options)
    number, _ = netlink.ask(_NEW_FILTER, netlink.ACK | netlink.CREATE | netlink.REPLACE, body)
    _check(number)


def is_attached(index: int) -> bool:
    """Whether our filter is there."""
    return HANDLE in _filters(index, EGRESS)


def detach(index: int) -> bool:
    """Remove our filter; whether it was there."""
    body = _filter(index) + netlink.attribute(_KIND, b"bpf\0")
    number, _ = netlink.ask(_DELETE_FILTER, netlink.ACK, body)
    if number in (errno.ENOENT, errno.EINVAL, errno.ENODEV):
        return False
    _check(number)
    return True


def _filter(index: int) -> bytes:
    info = _PRIORITY << 16 | socket.htons(_ETH_P_ALL)
    return _TC.pack(socket.AF_UNSPEC, index, HANDLE, EGRESS, info)


def _filters(index: int, parent: int) -> set[int]:
    """The handles of the filters there; of some kinds 0 for the priority itself."""
    request = _TC.pack(socket.AF_UNSPEC, index, 0, parent, 0)
    number, answers = netlink.ask(_GET_FILTER, netlink.DUMP, request)
    return set() if number else {_TC.unpack_from(body)[2] for body in answers}


def _check(number: int) -> None:
    if number:
        raise MltcpError(f"traffic control: {os.strerror(number)}")
