"""This process's TCP connections as the kernel sees them: congestion control, retransmissions, ECN marks."""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

TCP_ESTABLISHED = 1

# Offsets into struct tcp_info (include/uapi/linux/tcp.h). The struct only ever grows, and an older kernel
# returns a shorter one.
_TOTAL_RETRANS = (100, "=I")
_BYTES_ACKED = (120, "=Q")
_DELIVERED = (192, "=I")
_DELIVERED_CE = (196, "=I")
_TCP_INFO_BYTES = 256
_NAME_BYTES = 16


@dataclass(frozen=True)
class Flow:
    """An established TCP connection, counted since it was opened; None where the kernel does not tell."""

    local: tuple[str, int]
    peer: tuple[str, int]
    congestion_control: str
    retransmits: int
    acked_bytes: int | None
    delivered_segments: int | None
    delivered_ce_segments: int | None


def tcp_flows() -> tuple[Flow, ...]:
    """Every established TCP connection that this process holds, in the order of the descriptors."""
    return tuple(flow for descriptor in _descriptors() if (flow := _flow(descriptor)) is not None)


def _descriptors() -> Iterator[int]:
    return (int(name) for name in sorted(os.listdir("/proc/self/fd"), key=int))


def _flow(descriptor: int) -> Flow | None:
    """The connection behind a descriptor, or None if it is none, or gone by now."""
    with suppress(OSError):
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            if copy.type == socket.SOCK_STREAM and copy.family in (socket.AF_INET, socket.AF_INET6):
                return _established(copy)
    return None


def _established(connection: socket.socket) -> Flow | None:
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    if info[0] != TCP_ESTABLISHED:
        return None
    name = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES)
    return Flow(
        local=connection.getsockname()[:2],
        peer=connection.getpeername()[:2],
        congestion_control=name.rstrip(b"\0").decode(),
        retransmits=_field(info, *_TOTAL_RETRANS) or 0,
        acked_bytes=_field(info, *_BYTES_ACKED),
        delivered_segments=_field(info, *_DELIVERED),
        delivered_ce_segments=_field(info, *_DELIVERED_CE),
    )


def _field(info: bytes, offset: int, form: str) -> int | None:
    if len(info) < offset + struct.calcsize(form):
        return None
    value: int = struct.unpack_from(form, info, offset)[0]
    return value
