"""One side of a test, when all its connections are there: what it does, and what it has to report."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from bench.perf.plan import DOWN, UP, PerfPlan
from bench.perf.traffic import PerfDirection, Receiving, Sending
from mltcp.core.errors import UsageError
from mltcp.ebpf.congestion_controls import available
from mltcp.pacing.tcp_info import set_congestion_control

LOST_S = 30
"""A host that is not heard of for so long is gone."""

_TIMES_IN_A_MESSAGE = 2000
_ECN_BITS = 3  # of IP_TOS

Connections = Mapping[str, Sequence[socket.socket]]
"""The data connections of each direction, in the order of their flows."""


def directions(plan: PerfPlan, connections: Connections, is_client: bool) -> list[PerfDirection]:
    """What this side sends and receives."""
    sends = UP if is_client else DOWN
    return [
        (Sending if name == sends else Receiving)(plan, name, connections[name]) for name in plan.directions
    ]


def set_control(connection: socket.socket, control: str) -> None:
    """Put a connection under a congestion control; an empty one leaves the host's.

    Raises:
        UsageError: this host has none of that name, or this user may not choose it.
    """
    if not control:
        return
    try:
        set_congestion_control(connection.fileno(), control)
    except OSError as error:
        have = ", ".join(available())
        raise UsageError(f"congestion control {control!r}: {error.strerror}; this host has {have}") from None


def needs_ecn(control: str) -> bool:
    """Whether connections under a congestion control ask for ECN, whatever the host's settings are.

    Raises:
        UsageError: as `set_control`.
    """
    with socket.socket() as probe:
        set_control(probe, control)
        # The kernel puts a socket's packets under ECT at once (tcp_reinit_congestion_control) if the control is so.
        return bool(probe.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) & _ECN_BITS)


def notice_loss(connection: socket.socket) -> None:
    """Let a connection fail when the other host, or the way to it, is gone without a word.

    Raises:
        OSError: it has failed already.
    """
    tcp = socket.IPPROTO_TCP
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(tcp, socket.TCP_KEEPIDLE, LOST_S // 3)
    connection.setsockopt(tcp, socket.TCP_KEEPINTVL, LOST_S // 6)
    # Counts while data is unacknowledged, and instead of a number of probes while there is none.
    connection.setsockopt(tcp, socket.TCP_USER_TIMEOUT, LOST_S * 1000)


def report(direction: PerfDirection, omitted: int = 0) -> dict[str, Any]:
    """What a direction has come to on this side, for the other side and the summary."""
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
    """The messages in which a server tells its reports: first the senders' iteration times, a part in each."""
    for each in reports:
        times_s = each["iteration_s"] if each["sends"] else []
        for at in range(0, len(times_s), _TIMES_IN_A_MESSAGE):
            part = [round(time_s, 9) for time_s in times_s[at : at + _TIMES_IN_A_MESSAGE]]
            yield {"ok": True, "direction": each["direction"], "iteration_s": part}
    yield {"ok": True, "reports": [{**each, "iteration_s": []} for each in reports]}


def close(connections: Connections) -> None:
    """Close what is still open."""
    for several in connections.values():
        for each in several:
            with suppress(OSError):
                each.close()
