"""Reads and sets what makes a TCP connection a flow of a job, by its descriptor.

Nothing here asks a file system: a descriptor of a file that its owner's file system serves may block for ever.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from mltcp.core.errors import UsageError
from mltcp.daemon.jobs.flows import FlowSettings, FoundFlow
from mltcp.ebpf.congestion_controls import MLTCP_CONTROLS
from mltcp.ebpf.libbpf import BpfMap
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
_KEY = struct.Struct("=I")
_DESCRIPTOR = struct.Struct("=i")
_NEEDS_ECN = frozenset({"dctcp", "bpf_dctcp", "mltcp_dctcp"})
_NEUTRAL = "reno"


def found_flow(descriptor: int, position: int, tags: BpfMap | None) -> FoundFlow:
    """The connection behind a descriptor; `tags` is the map of sockets' jobs of the loaded controls, if there are any.

    Raises:
        UsageError: it is not an established TCP connection.
    """
    info = tcp_info(descriptor)
    if info is None:
        what = "a socket of another kind" if _is_socket(descriptor) else "no socket"
        raise UsageError(f"descriptor: expected an established TCP connection, got {what}")
    if info.state != TCP_ESTABLISHED:
        raise UsageError("descriptor: expected an established TCP connection, got one that is not connected")
    try:
        local, remote = addresses(descriptor)
    except OSError as error:
        raise UsageError(f"its addresses cannot be read: {error.strerror}") from None
    with _borrowed(descriptor) as flow:
        key = FlowKey(flow.family, local, remote, _number(flow, _SO_COOKIE))
        here = _netns_cookie(flow) in (None, _own_netns_cookie())
    return FoundFlow(position, key, here, congestion_control(descriptor), _entry(descriptor, tags))


def set_up(descriptor: int, settings: FlowSettings, tags: BpfMap | None) -> None:
    """Make a connection a flow of its job.

    Raises:
        UsageError: the kernel refuses.
    """
    if tags is not None and settings.entry != _entry(descriptor, tags):
        _tag(descriptor, settings.entry, tags)
    if settings.control:
        _set_control(descriptor, settings.control)
    with _borrowed(descriptor) as flow:
        if settings.priority:
            flow.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, settings.priority)
        if settings.mark:
            flow.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, settings.mark)


def _tag(descriptor: int, entry: int, tags: BpfMap) -> None:
    control = congestion_control(descriptor)
    if control in MLTCP_CONTROLS:
        # Leaving the control removes the flow from the count of its former job.
        set_congestion_control(descriptor, _NEUTRAL)
    key = _DESCRIPTOR.pack(descriptor)
    value = tags.lookup(key) or bytes(tags.value_size)
    tags.update(key, _KEY.pack(entry) + value[_KEY.size :])
    if control in MLTCP_CONTROLS:
        set_congestion_control(descriptor, control)


def _entry(descriptor: int, tags: BpfMap | None) -> int:
    value = None if tags is None else tags.lookup(_DESCRIPTOR.pack(descriptor))
    return 0 if value is None else int(_KEY.unpack_from(value)[0])


def _set_control(descriptor: int, name: str) -> None:
    """Set its congestion control, again if it has it: ours read the flow's job when they are set."""
    info = tcp_info(descriptor)
    if name in _NEEDS_ECN and not (info is not None and info.ecn):
        raise UsageError(f"{name} needs ECN, and this connection was opened without")
    try:
        if congestion_control(descriptor) == name:
            set_congestion_control(descriptor, _NEUTRAL)
        set_congestion_control(descriptor, name)
    except OSError as error:
        raise UsageError(f"{name} cannot be set: {error.strerror}") from None


def _is_socket(descriptor: int) -> bool:
    return os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")


def _own_netns_cookie() -> int | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
        return _netns_cookie(own)


def _netns_cookie(any_socket: socket.socket) -> int | None:
    """The cookie of a socket's network namespace; None if the kernel has none."""
    try:
        return _number(any_socket, _SO_NETNS_COOKIE)
    except OSError as error:
        if error.errno == errno.ENOPROTOOPT:
            return None
        raise


def _number(any_socket: socket.socket, option: int) -> int:
    return int(_U64.unpack(any_socket.getsockopt(socket.SOL_SOCKET, option, _U64.size))[0])


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """A Python socket around a descriptor that stays open."""
    borrowed = socket.socket(fileno=descriptor)
    try:
        yield borrowed
    finally:
        borrowed.detach()
