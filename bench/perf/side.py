"""One side of a test, when all its connections are there: what it does, and what it has to report."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from bench.perf.plan import DOWN, UP, Plan
from bench.perf.traffic import Direction, Receiving, Sending
from mltcp.ebpf.controls import available
from mltcp.errors import UsageError
from mltcp.tcp_info import set_congestion_control

Connections = Mapping[str, Sequence[socket.socket]]
"""The data connections of each direction, in the order of their flows."""


def directions(plan: Plan, connections: Connections, is_client: bool) -> list[Direction]:
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


def report(direction: Direction, omitted: int = 0) -> dict[str, Any]:
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
        "controls": sorted({flow.control for flow in direction.flows if flow.control}),
        "iteration_s": [each.duration_s for each in direction.iterations][omitted:],
        "error": direction.error,
    }


def close(connections: Connections) -> None:
    """Close what is still open."""
    for several in connections.values():
        for each in several:
            with suppress(OSError):
                each.close()
