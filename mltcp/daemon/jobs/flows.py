"""Connections that peers pass to the daemon by descriptor: inspection and socket options.

The descriptors are not kept: a copy would keep a connection open after its owner has closed it, and the other end would
wait forever. Afterwards a flow is identified by its addresses and cookie.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mltcp.core.errors import UsageError
from mltcp.pacing.sock_diag import FlowKey
from mltcp.pacing.tcp_info import (
    TCP_ESTABLISHED,
    addresses,
    congestion_control,
    set_congestion_control,
    tcp_info,
)

_SO_COOKIE = 57
_SO_NETNS_COOKIE = 71
_U64 = struct.Struct("=Q")
_NEEDS_ECN = frozenset({"dctcp", "bpf_dctcp", "mltcp_dctcp"})
_NEUTRAL = "reno"


@dataclass(frozen=True)
class PassedFlow:
    """A passed connection. `descriptor` is open only while the request is handled."""

    descriptor: int
    key: FlowKey
    here: bool

    @property
    def control(self) -> str:
        """The connection's congestion control now."""
        return congestion_control(self.descriptor)

    def set_control(self, name: str) -> None:
        """Set its congestion control, again if it has it: ours read the flow's job when they are set.

        Raises:
            UsageError: the kernel refuses.
        """
        if name in _NEEDS_ECN and not _uses_ecn(self.descriptor):
            raise UsageError(f"{name} needs ECN, and this connection was opened without")
        try:
            if self.control == name:
                set_congestion_control(self.descriptor, _NEUTRAL)
            set_congestion_control(self.descriptor, name)
        except OSError as error:
            raise UsageError(f"{name} cannot be set: {error.strerror}") from None

    def set_class(self, number: int) -> None:
        """Set its priority and its mark, each of which selects the HTB class."""
        with _borrowed(self.descriptor) as flow:
            flow.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, number)
            flow.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, number)


def passed_flow(descriptor: int) -> PassedFlow:
    """The connection behind a passed descriptor.

    Raises:
        UsageError: it is not an established TCP connection.
    """
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        raise UsageError("descriptor: expected an established TCP connection, got no socket")
    info = tcp_info(descriptor)
    if info is None:
        raise UsageError("descriptor: expected an established TCP connection, got a socket of another kind")
    if info.state != TCP_ESTABLISHED:
        raise UsageError("descriptor: expected an established TCP connection, got one that is not connected")
    try:
        local, remote = addresses(descriptor)
    except OSError as error:
        raise UsageError(f"its addresses cannot be read: {error.strerror}") from None
    with _borrowed(descriptor) as flow:
        cookie = _number(flow, _SO_COOKIE)
        key = FlowKey(flow.family, local, remote, cookie)
        return PassedFlow(descriptor, key, _netns_cookie(flow) in (None, own_netns_cookie()))


def own_netns_cookie() -> int | None:
    """The cookie of this network namespace; None if the kernel has none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
        return _netns_cookie(own)


def _netns_cookie(any_socket: socket.socket) -> int | None:
    try:
        return _number(any_socket, _SO_NETNS_COOKIE)
    except OSError as error:
        if error.errno == errno.ENOPROTOOPT:
            return None
        raise


def _number(any_socket: socket.socket, option: int) -> int:
    return int(_U64.unpack(any_socket.getsockopt(socket.SOL_SOCKET, option, _U64.size))[0])


def _uses_ecn(descriptor: int) -> bool:
    info = tcp_info(descriptor)
    return info is not None and info.ecn


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """A Python socket around a descriptor that stays open."""
    with socket.socket(fileno=os.dup(descriptor)) as borrowed:
        yield borrowed
