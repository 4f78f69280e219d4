"""DCTCP as in Linux 6.18: the window shrinks by half of alpha, the smoothed share of marked packets (RFC 8257)."""

from __future__ import annotations

from placement.model.compiled import compiled
from placement.simulator.network.laws.state import Record

ALPHA_ONE = 1024


@compiled
def observe_marks(flow: Record, now: float, rtt: float) -> None:
    """DCTCP's alpha, once a window (dctcp_update_alpha())."""
    if now < flow.window_end:
        return
    fade = flow.alpha >> 4
    flow.alpha -= fade if fade else flow.alpha
    if flow.window_marked > 0:
        share = min(1.0, flow.window_marked / max(flow.window_acked, 1e-9))
        flow.alpha = min(ALPHA_ONE, flow.alpha + int(share * (ALPHA_ONE >> 4)))
    flow.window_acked = flow.window_marked = 0.0
    flow.window_end = now + rtt


@compiled
def reduced_by_alpha(flow: Record) -> int:
    """The window after a mark."""
    return flow.cwnd - ((flow.cwnd * flow.alpha) >> 11)
