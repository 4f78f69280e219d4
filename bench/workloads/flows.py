"""The TCP connections of this process: congestion control, retransmissions and ECN marks, from the kernel."""

from contextlib import suppress
from dataclasses import dataclass

from mltcp.pacing.tcp_info import TCP_ESTABLISHED, addresses, congestion_control, tcp_info, tcp_sockets


@dataclass(frozen=True)
class TcpFlow:
    """An established TCP connection, with counters since it was opened; None where the kernel has no such counter."""

    local: tuple[str, int]
    peer: tuple[str, int]
    congestion_control: str
    retransmits: int
    acked_bytes: int | None
    delivered_segments: int | None
    delivered_ce_segments: int | None


def tcp_flows(store_port: int | None = None) -> tuple[TcpFlow, ...]:
    """Every established TCP connection that this process holds, in the order of the descriptors.

    Connections from and to `store_port`, the port of a store at which ranks meet, are left out.
    """
    flows = []
    for descriptor in tcp_sockets():
        info = tcp_info(descriptor)
        if info is None or info.state != TCP_ESTABLISHED:
            continue
        # The peer may close the connection meanwhile.
        with suppress(OSError):
            local, peer = addresses(descriptor)
            if store_port in (local[1], peer[1]):
                continue
            counters = (info.acked_bytes, info.delivered_segments, info.delivered_ce_segments)
            control = congestion_control(descriptor)
            flows.append(TcpFlow(local, peer, control, info.retransmits, *counters))
    return tuple(flows)
