"""Sets the congestion control of a job's connections, where the kernel lets this process.

An ordinary user may choose what net.ipv4.tcp_allowed_congestion_control lists; root whatever is loaded. Where
``mltcp run`` or a daemon has put the connections under one of MLTCP's controls already, they are left alone.

A connection's use of ECN is settled before this is called: ``mltcp_dctcp`` set here sees no marks, and
acts on loss only.
"""

from __future__ import annotations

import errno
import socket
from pathlib import Path

from collectives.notices import say_once
from collectives.settings import NO_CONTROL, Settings
from collectives.sockets import Mesh
from mltcp.ebpf.controls import MLTCP_CONTROLS, available
from mltcp.errors import NotAvailableError, UsageError
from mltcp.tcp_info import borrowed, congestion_control

_ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


def check(name: str) -> None:
    """Raises UsageError if there can be no such control: neither this kernel nor MLTCP has it."""
    if name in (NO_CONTROL, *MLTCP_CONTROLS):
        return
    there = [each for each in available() if each not in MLTCP_CONTROLS]
    if name not in there:
        raise UsageError(
            f"MLTCP_CC={name}: no such congestion control; choose from {', '.join([NO_CONTROL, *MLTCP_CONTROLS])}, "
            f"or this kernel's {', '.join(there)}"
        )


def apply(mesh: Mesh, settings: Settings, rank: int) -> None:
    """Put the connections of a group under the job's control, as soon as they are there.

    Raises NotAvailableError under MLTCP_STRICT if that cannot be; else it is said once, and the job runs without.
    """
    if settings.control != NO_CONTROL:
        mesh.when_complete(lambda: _set_all(mesh, settings, rank))


def _set_all(mesh: Mesh, settings: Settings, rank: int) -> None:
    try:
        for descriptor in mesh.descriptors():
            with borrowed(descriptor) as connection:
                _set(connection, settings)
    except OSError as error:
        missing = _missing(settings.control, error)
        if settings.strict:
            raise NotAvailableError(f"mltcp: {missing}") from None
        say_once("congestion", f"mltcp: {missing}; the job runs without MLTCP", rank)
    else:
        _warn_of_ecn(settings.control, rank)


def _set(connection: socket.socket, settings: Settings) -> None:
    now = congestion_control(connection)
    if now == settings.control or (now in MLTCP_CONTROLS and not settings.control_asked):
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, settings.control.encode())


def _missing(name: str, error: OSError) -> str:
    """What is missing, and how to come by it."""
    if error.errno == errno.ENOENT:
        return f"{name} is not loaded on this host (as root: mltcp load {name})"
    if error.errno == errno.EPERM:
        allowed = " ".join([*_ALLOWED.read_text().split(), name])
        return (
            f"this user may not choose {name} (as root: sysctl -w net.ipv4.tcp_allowed_congestion_control="
            f'"{allowed}", or start the job with mltcp run)'
        )
    return f"cannot set {name}: {error.strerror}"


def _warn_of_ecn(name: str, rank: int) -> None:
    if name == "mltcp_dctcp":
        advice = "connections opened before it was set do not use ECN; start the job with mltcp run"
        say_once("ecn", f"mltcp: under mltcp_dctcp, {advice}", rank)
