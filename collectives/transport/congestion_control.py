"""Sets the congestion control of a job's connections, where the kernel permits it.

An ordinary user may choose those listed in net.ipv4.tcp_allowed_congestion_control, root any that is loaded.
Connections that ``mltcp run`` or a daemon has already put under one of MLTCP's controls are left as they are.

ECN is negotiated while a connection is opened, which is before this module is called. A control that needs ECN
(``mltcp_dctcp``) is not set on a connection without it: the kernel would mark its packets as ECN-capable, so that
queues mark instead of dropping, but the receiver would report no marks, and the sender would not slow down.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from collectives.core.notices import go_on_without
from collectives.core.settings import NO_CONTROL, Settings
from collectives.transport.process_sockets import Connections
from mltcp.core.errors import UsageError
from mltcp.ebpf.congestion_controls import CONTROLS, MLTCP_CONTROLS, allowed, available
from mltcp.pacing.tcp_info import congestion_control, set_congestion_control, tcp_info

NEED_ECN = frozenset({"dctcp", "bpf_dctcp", "mltcp_dctcp"})
"""Controls that do not work without ECN."""


def check(name: str) -> None:
    """Raise UsageError unless this kernel or MLTCP has a control of this name."""
    if name in (NO_CONTROL, *CONTROLS):
        return
    there = [each for each in available() if each not in CONTROLS]
    if name not in there:
        raise UsageError(
            f"MLTCP_CC: expected {', '.join([NO_CONTROL, *CONTROLS])}, "
            f"or a congestion control of this kernel ({', '.join(there)}), got {name!r}"
        )


def apply(connections: Connections, settings: Settings, rank: int) -> None:
    """Set the job's congestion control on the connections of a group, on each as soon as it is found.

    If that fails, the job runs without it, and one rank per host logs it once; `rank` is this process's in the job.

    Raises:
        NotAvailableError: it failed, and MLTCP_STRICT is set.
    """
    if settings.control != NO_CONTROL:
        connections.when_found(lambda descriptors: _set_all(descriptors, settings, rank))


def _set_all(descriptors: Iterable[int], settings: Settings, rank: int) -> None:
    failure = next(filter(None, (_set(each, settings) for each in descriptors)), None)
    if failure is not None:
        go_on_without("congestion", failure, settings.strict, rank)


def _set(descriptor: int, settings: Settings) -> str | None:
    """Set the control on one connection; returns the reason if that failed."""
    name = settings.control
    try:
        now = congestion_control(descriptor)
        if now == name or (now in MLTCP_CONTROLS and not settings.control_asked):
            return None
        if name in NEED_ECN and not _uses_ecn(descriptor):
            return (
                f"{name} needs ECN, and the job's connections were opened without it (start the job with mltcp run, "
                "or as root on every host: sysctl -w net.ipv4.tcp_ecn=1)"
            )
        set_congestion_control(descriptor, name)
    except OSError as error:
        # The connection has been closed meanwhile.
        return None if error.errno in (errno.EBADF, errno.ENOTSOCK) else _reason(name, error)
    return None


def _uses_ecn(descriptor: int) -> bool:
    info = tcp_info(descriptor)
    return info is not None and info.ecn


def _reason(name: str, error: OSError) -> str:
    """The reason for a failure, and the command that removes it."""
    if error.errno == errno.ENOENT:
        users = "" if os.geteuid() == 0 else "--allow-users "
        return f"{name} is not loaded on this host (as root: mltcp load {users}{name})"
    if error.errno == errno.EPERM:
        names = " ".join([*allowed(), name])
        allow = f'sysctl -w net.ipv4.tcp_allowed_congestion_control="{names}"'
        if name in CONTROLS:
            allow = f"mltcp load --allow-users {name}"
        return f"this user may not choose {name} (as root: {allow}; or start the job with mltcp run)"
    return f"cannot set {name}: {error.strerror}"
