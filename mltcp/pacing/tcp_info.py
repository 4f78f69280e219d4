"""Reads and sets options of this process's TCP sockets by descriptor, without taking ownership of them.

It calls libc directly: a Python socket object would need a copy of the descriptor, which keeps a connection open when
its owner closes it, and after ``socket.setdefaulttimeout`` it would make the owner's socket non-blocking.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

TCP_ESTABLISHED = 1
HIGHEST_PRIORITY = 6
"""The highest SO_PRIORITY that an ordinary user may set."""

_SO_MAX_PACING_RATE = 47

# Offsets into struct tcp_info (include/uapi/linux/tcp.h). The struct only ever grows, and an older kernel returns a
# shorter one.
_OPTIONS = 5
_OPTION_ECN = 8
_UNACKED = (24, "=I")
_SND_CWND = (80, "=I")
_TOTAL_RETRANS = (100, "=I")
_BYTES_ACKED = (120, "=Q")
_DELIVERED = (192, "=I")
_DELIVERED_CE = (196, "=I")
_TCP_INFO_BYTES = 256
_NAME_BYTES = 16

# Offsets into struct sockaddr_in and sockaddr_in6: the port is at 2 in both.
_HOST = {socket.AF_INET: slice(4, 8), socket.AF_INET6: slice(8, 24)}
_ADDRESS_BYTES = 28

Address = tuple[str, int]

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class TcpInfo:
    """The kernel's counters of a TCP socket since it was opened; None for those that the kernel does not have."""

    state: int
    ecn: bool
    retransmits: int
    unacked_segments: int
    cwnd_segments: int
    acked_bytes: int | None
    delivered_segments: int | None
    delivered_ce_segments: int | None


def descriptors() -> list[int]:
    """The open descriptors of this process, in order."""
    return sorted(int(name) for name in os.listdir("/proc/self/fd"))


def tcp_sockets() -> Iterator[int]:
    """The descriptor of every TCP socket that this process holds."""
    for descriptor in descriptors():
        with suppress(OSError):
            if _number(descriptor, socket.SO_PROTOCOL) == socket.IPPROTO_TCP:
                yield descriptor


def inode(descriptor: int) -> int:
    """The inode, which differs between sockets that reuse a descriptor; raises OSError if it is closed."""
    return os.fstat(descriptor).st_ino


def is_listening(descriptor: int) -> bool:
    """Whether the socket accepts connections. Raises OSError if it is not a socket."""
    return bool(_number(descriptor, socket.SO_ACCEPTCONN))


def local_address(descriptor: int) -> Address:
    """Host and port of this end; raises OSError if it is not a socket."""
    return _address(_libc.getsockname, descriptor)


def addresses(descriptor: int) -> tuple[Address, Address]:
    """Host and port of this end and of the other; raises OSError if it is not connected."""
    return local_address(descriptor), _address(_libc.getpeername, descriptor)


def tcp_info(descriptor: int) -> TcpInfo | None:
    """The kernel's counters of the socket behind a descriptor; None if it is not a TCP socket, or closed."""
    try:
        info = _option(descriptor, socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return None
    return TcpInfo(
        state=info[0],
        ecn=bool(info[_OPTIONS] & _OPTION_ECN),
        retransmits=_field(info, *_TOTAL_RETRANS) or 0,
        unacked_segments=_field(info, *_UNACKED) or 0,
        cwnd_segments=_field(info, *_SND_CWND) or 0,
        acked_bytes=_field(info, *_BYTES_ACKED),
        delivered_segments=_field(info, *_DELIVERED),
        delivered_ce_segments=_field(info, *_DELIVERED_CE),
    )


def congestion_control(descriptor: int) -> str:
    """The name of the socket's congestion control; raises OSError if it is not a TCP socket."""
    name = _option(descriptor, socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES)
    return name.partition(b"\0")[0].decode()


def set_congestion_control(descriptor: int, name: str) -> None:
    """Set a socket's congestion control.

    Raises OSError: ENOENT, the kernel has none of that name; EPERM, this user may not choose it.
    """
    value = name.encode()
    level, option = socket.IPPROTO_TCP, socket.TCP_CONGESTION
    _check(_libc.setsockopt(descriptor, level, option, value, ctypes.c_uint32(len(value))))


def set_syn_retries(descriptor: int, count: int) -> None:
    """Set TCP_SYNCNT, 1 to 127; raises OSError if it is no TCP socket."""
    value = struct.pack("=i", count)
    level, option = socket.IPPROTO_TCP, socket.TCP_SYNCNT
    _check(_libc.setsockopt(descriptor, level, option, value, ctypes.c_uint32(len(value))))


def set_unsent_limit(descriptor: int, size_bytes: int) -> None:
    """Have a socket accept no more while it holds so many bytes unsent; raises OSError if it is no TCP socket."""
    _set_number(descriptor, socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, size_bytes)


def max_pacing_rate(descriptor: int) -> int:
    """The limit of a socket's rate, in bytes a second; the largest number: none. Raises OSError if it is no socket."""
    return int.from_bytes(_option(descriptor, socket.SOL_SOCKET, _SO_MAX_PACING_RATE, 8), sys.byteorder)


def set_max_pacing_rate(descriptor: int, bytes_per_s: int) -> None:
    """Limit the rate of a socket; raises OSError if it is not a socket."""
    value = struct.pack("=Q", bytes_per_s)
    _check(_libc.setsockopt(descriptor, socket.SOL_SOCKET, _SO_MAX_PACING_RATE, value, ctypes.c_uint32(8)))


def set_dscp(descriptor: int, dscp: int) -> None:
    """Set the DSCP of what a TCP socket sends, and its priority to the upper half of that, if it has none.

    The priority is what queues of this host and IEEE 802.1Q go by. One by which a daemon paces the socket could not be
    restored by an ordinary user: such a socket is left as it is. Raises OSError if it is not a socket.
    """
    priority = _number(descriptor, socket.SO_PRIORITY)
    if priority > HIGHEST_PRIORITY:
        return
    _set_number(descriptor, socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
    if _number(descriptor, socket.SO_DOMAIN) == socket.AF_INET6:
        _set_number(descriptor, socket.IPPROTO_IPV6, socket.IPV6_TCLASS, dscp << 2)
    # The type of service sets the priority too.
    own = priority or min(dscp >> 3, HIGHEST_PRIORITY)
    _set_number(descriptor, socket.SOL_SOCKET, socket.SO_PRIORITY, own)


def _set_number(descriptor: int, level: int, option: int, value: int) -> None:
    _check(_libc.setsockopt(descriptor, level, option, struct.pack("=i", value), ctypes.c_uint32(4)))


def _number(descriptor: int, option: int) -> int:
    return int.from_bytes(_option(descriptor, socket.SOL_SOCKET, option, 4), sys.byteorder)


def _option(descriptor: int, level: int, option: int, size: int) -> bytes:
    value = ctypes.create_string_buffer(size)
    length = ctypes.c_uint32(size)
    _check(_libc.getsockopt(descriptor, level, option, value, ctypes.byref(length)))
    return value.raw[: length.value]


def _address(ask: Callable[..., int], descriptor: int) -> Address:
    name = ctypes.create_string_buffer(_ADDRESS_BYTES)
    _check(ask(descriptor, name, ctypes.byref(ctypes.c_uint32(_ADDRESS_BYTES))))
    family, port = struct.unpack_from("=H", name.raw)[0], struct.unpack_from("!H", name.raw, 2)[0]
    return socket.inet_ntop(family, name.raw[_HOST[family]]), port


def _check(status: int) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _field(info: bytes, offset: int, form: str) -> int | None:
    if len(info) < offset + struct.calcsize(form):
        return None
    value: int = struct.unpack_from(form, info, offset)[0]
    return value
