"""Reno as in Linux 6.18: a packet more a window, and half of the window less on a mark or a loss (RFC 5681)."""

from __future__ import annotations

from placement.model.compiled import compiled
from placement.simulator.network.laws.state import Record


@compiled
def add_packets(flow: Record, per_packet: int, acked: int) -> None:
    """tcp_cong_avoid_ai(): one packet more for every `per_packet` acknowledged."""
    if flow.count >= per_packet:
        flow.count = 0
        flow.cwnd += 1
    flow.count += acked
    if flow.count >= per_packet:
        added = flow.count // per_packet
        flow.count -= added * per_packet
        flow.cwnd += added


@compiled
def halved(flow: Record) -> int:
    """The window after a mark or a loss."""
    return flow.cwnd >> 1
