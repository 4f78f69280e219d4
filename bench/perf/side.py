"""One side of a test once all of its connections exist: its directions, their sockets, and its reports."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from bench.perf.plan import DOWN, UP, PerfPlan
from bench.perf.traffic import PerfDirection, Receiving, Sending
from mltcp.core.errors import MltcpError, UsageError
from mltcp.daemon.client.client import Client, NoDaemonError, Registration
from mltcp.ebpf.congestion_controls import available
from mltcp.pacing.tcp_info import set_congestion_control

LOST_S = 30
"""A connection fails when the other host has been silent for this long."""

_TIMES_IN_A_MESSAGE = 2000
_ECN_BITS = 3  # of IP_TOS

Connections = Mapping[str, Sequence[socket.socket]]
"""The data connections of each direction, in the order of their flows."""


def directions(plan: PerfPlan, connections: Connections, is_client: bool) -> list[PerfDirection]:
    """The sending and receiving directions of this side."""
    sends = UP if is_client else DOWN
    return [
        (Sending if name == sends else Receiving)(plan, name, connections[name]) for name in plan.directions
    ]


def set_control(connection: socket.socket, control: str) -> None:
    """Set a connection's congestion control; an empty name keeps the host's default.

    Raises:
        UsageError: this host does not have it, or this user may not choose it.
    """
    if not control:
        return
    try:
        set_congestion_control(connection.fileno(), control)
    except OSError as error:
        have = ", ".join(available())
        raise UsageError(f"congestion control {control!r}: {error.strerror}; this host has {have}") from None


def needs_ecn(control: str) -> bool:
    """Whether a congestion control asks for ECN regardless of the host's sysctl.

    Raises:
        UsageError: as `set_control`.
    """
    with socket.socket() as probe:
        set_control(probe, control)
        # For such a control, the kernel sets ECT on the socket at once (tcp_reinit_congestion_control).
        return bool(probe.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) & _ECN_BITS)


def notice_loss(connection: socket.socket) -> None:
    """Let a connection fail when the other host becomes unreachable without a FIN or RST.

    Raises:
        OSError: the connection has failed already.
    """
    tcp = socket.IPPROTO_TCP
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(tcp, socket.TCP_KEEPIDLE, LOST_S // 3)
    connection.setsockopt(tcp, socket.TCP_KEEPINTVL, LOST_S // 6)
    # Limits the time with unacknowledged data, and replaces the number of keep-alive probes otherwise.
    connection.setsockopt(tcp, socket.TCP_USER_TIMEOUT, LOST_S * 1000)


def report(direction: PerfDirection, omitted: int = 0) -> dict[str, Any]:
    """This side's report of a direction, for the peer and the summary."""
    readings = [flow.read() for flow in direction.flows]
    marks = [each.marks for each in readings if each.marks is not None]
    return {
        "direction": direction.name,
        "sends": isinstance(direction, Sending),
        "bytes": sum(each.moved_bytes for each in readings),
        "seconds": max(0.0, (direction.ended_s or direction.began_s) - direction.began_s),
        "retransmits": sum(each.retransmits for each in readings),
        "marks": sum(marks) if marks else None,
        "ecn": all(flow.ecn for flow in direction.flows),
        "controls": sorted({flow.control for flow in direction.flows if flow.control}),
        "iteration_s": [each.duration_s for each in direction.iterations][omitted:],
        "error": direction.error,
    }


def report_messages(reports: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The messages of a server's reports: first the iteration times of senders in parts, then the rest."""
    for each in reports:
        times_s = each["iteration_s"] if each["sends"] else []
        for at in range(0, len(times_s), _TIMES_IN_A_MESSAGE):
            part = [round(time_s, 9) for time_s in times_s[at : at + _TIMES_IN_A_MESSAGE]]
            yield {"ok": True, "direction": each["direction"], "iteration_s": part}
    yield {"ok": True, "reports": [{**each, "iteration_s": []} for each in reports]}


def close(connections: Connections) -> None:
    """Close all connections."""
    for several in connections.values():
        for each in several:
            with suppress(OSError):
                each.close()


@contextmanager
def registered(job: str, control: str, connections: Sequence[socket.socket]) -> Iterator[str]:
    """Register the connections as the job's during the context; yields the outcome as text, errors included.

    With an empty job name, no daemon is asked.
    """
    if not job:
        yield ""
        return
    try:
        client = Client()
    except NoDaemonError as error:
        yield str(error)
        return
    with client:
        try:
            made = client.register(Registration(job, f"perf-{os.getpid()}", control=control or "default"))
            refused = client.add_flows([each.fileno() for each in connections])
        except MltcpError as error:
            yield str(error)
            return
        if refused:
            yield f"mltcpd does not take {len(refused)} of {len(connections)} flows: {refused[0].why}"
        else:
            by = {"kernel": f"under {made.control}", "tc": "paced", "none": "only watched"}[made.how]
            yield f"job {made.number} of mltcpd, {by}"
