"""This process's TCP sockets, read through their descriptors without taking them from whoever owns them."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

TCP_ESTABLISHED = 1
TCP_LISTEN = 10

# Offsets into struct tcp_info (include/uapi/linux/tcp.h). The struct only ever grows, and an older kernel returns a
# shorter one.
_TOTAL_RETRANS = (100, "=I")
_BYTES_ACKED = (120, "=Q")
_DELIVERED = (192, "=I")
_DELIVERED_CE = (196, "=I")
_TCP_INFO_BYTES = 256
_NAME_BYTES = 16

Address = tuple[str, int]

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class TcpInfo:
    """What the kernel says of a TCP socket, counted since it was opened; None where it does not say."""

    state: int
    retransmits: int
    acked_bytes: int | None
    delivered_segments: int | None
    delivered_ce_segments: int | None


def descriptors() -> list[int]:
    """The open descriptors of this process, in order."""
    return sorted(int(name) for name in os.listdir("/proc/self/fd"))


@contextmanager
def borrowed(descriptor: int) -> Iterator[socket.socket]:
    """A socket object on a copy of the descriptor, closed at the end. Raises OSError if there is no socket."""
    copy = os.dup(descriptor)
    try:
        view = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with view:
        yield view


def tcp_sockets() -> Iterator[tuple[int, socket.socket]]:
    """Every TCP socket that this process holds, with its descriptor; the object is a view, for the loop's body."""
    for descriptor in descriptors():
        with suppress(OSError), borrowed(descriptor) as view:
            if view.type == socket.SOCK_STREAM and view.family in (socket.AF_INET, socket.AF_INET6):
                yield descriptor, view


def tcp_info(descriptor: int) -> TcpInfo | None:
    """The kernel's counters of the socket behind a descriptor; None if it is no TCP socket, or gone."""
    raw = ctypes.create_string_buffer(_TCP_INFO_BYTES)
    length = ctypes.c_uint32(_TCP_INFO_BYTES)
    if _libc.getsockopt(descriptor, socket.IPPROTO_TCP, socket.TCP_INFO, raw, ctypes.byref(length)) != 0:
        return None
    info = raw.raw[: length.value]
    return TcpInfo(
        state=info[0],
        retransmits=_field(info, *_TOTAL_RETRANS) or 0,
        acked_bytes=_field(info, *_BYTES_ACKED),
        delivered_segments=_field(info, *_DELIVERED),
        delivered_ce_segments=_field(info, *_DELIVERED_CE),
    )


def congestion_control(view: socket.socket) -> str:
    """The name of the congestion control that the socket runs under."""
    name = view.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES)
    return name.rstrip(b"\0").decode()


def addresses(view: socket.socket) -> tuple[Address, Address]:
    """Host and port of this end and of the other; raises OSError if it is not connected."""
    local, peer = view.getsockname(), view.getpeername()
    return (local[0], local[1]), (peer[0], peer[1])


def _field(info: bytes, offset: int, form: str) -> int | None:
    if len(info) < offset + struct.calcsize(form):
        return None
    value: int = struct.unpack_from(form, info, offset)[0]
    return value
