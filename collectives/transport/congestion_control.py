"""Sets the congestion control of a job's connections, where the kernel lets this process.

An ordinary user may choose what net.ipv4.tcp_allowed_congestion_control lists; root whatever is loaded. Where
``mltcp run`` or a daemon has put the connections under one of MLTCP's controls already, they are left alone.

Whether a connection uses ECN is settled while it is opened, which is before this is called. A control that needs ECN
(``mltcp_dctcp``) is not set on a connection without: the kernel would mark its packets as capable of ECN, so that
queues mark instead of dropping, while the receiver reports no marks, and nobody would slow down.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

from collectives.core.notices import rank_on_host, say_once
from collectives.core.settings import NO_CONTROL, Settings
from collectives.transport.sockets import Mesh
from mltcp.core.errors import NotAvailableError, UsageError
from mltcp.ebpf.congestion_controls import CONTROLS, MLTCP_CONTROLS, allowed, available
from mltcp.pacing.tcp_info import congestion_control, set_congestion_control, tcp_info

NEED_ECN = frozenset({"dctcp", "bpf_dctcp", "mltcp_dctcp"})
"""Controls that are nothing without ECN."""


def check(name: str) -> None:
    """Raises UsageError if there can be no such control: neither this kernel nor MLTCP has it."""
    if name in (NO_CONTROL, *CONTROLS):
        return
    there = [each for each in available() if each not in CONTROLS]
    if name not in there:
        raise UsageError(
            f"MLTCP_CC={name}: no such congestion control; choose from {', '.join([NO_CONTROL, *CONTROLS])}, "
            f"or this kernel's {', '.join(there)}"
        )


def apply(mesh: Mesh, settings: Settings, rank: int) -> None:
    """Put the connections of a group under the job's control, each as soon as it is there.

    `rank` is this process's in the job: one rank a host speaks for all.
    Raises NotAvailableError under MLTCP_STRICT if that cannot be; else it is said once, and the job runs without.
    """
    if settings.control != NO_CONTROL:
        mesh.when_found(lambda descriptors: _set_all(descriptors, settings, rank))


def _set_all(descriptors: Iterable[int], settings: Settings, rank: int) -> None:
    obstacle = next(filter(None, (_set(each, settings) for each in descriptors)), None)
    if obstacle is None:
        return
    if settings.strict:
        raise NotAvailableError(f"mltcp: {obstacle}")
    say_once("congestion", f"mltcp: {obstacle}; the job runs without it", rank_on_host(rank))


def _set(descriptor: int, settings: Settings) -> str | None:
    """Put one connection under the control; returns what is in the way, if something is."""
    name = settings.control
    try:
        now = congestion_control(descriptor)
        if now == name or (now in MLTCP_CONTROLS and not settings.control_asked):
            return None
        if name in NEED_ECN and not _uses_ecn(descriptor):
            return (
                f"{name} needs ECN, and the job's connections were opened without (start the job with mltcp run, "
                "or as root on every host: sysctl -w net.ipv4.tcp_ecn=1)"
            )
        set_congestion_control(descriptor, name)
    except OSError as error:
        # A connection that has been closed meanwhile needs no control.
        return None if error.errno in (errno.EBADF, errno.ENOTSOCK) else _missing(name, error)
    return None


def _uses_ecn(descriptor: int) -> bool:
    info = tcp_info(descriptor)
    return info is not None and info.ecn


def _missing(name: str, error: OSError) -> str:
    """What is missing, and how to come by it."""
    if error.errno == errno.ENOENT:
        return f"{name} is not loaded on this host (as root: mltcp load {name})"
    if error.errno == errno.EPERM:
        names = " ".join([*allowed(), name])
        allow = f'sysctl -w net.ipv4.tcp_allowed_congestion_control="{names}"'
        if name in CONTROLS:
            allow = f"mltcp load --allow-users {name}"
        return f"this user may not choose {name} (as root: {allow}; or start the job with mltcp run)"
    return f"cannot set {name}: {error.strerror}"
