"""A constant rate, whatever the network does: traffic that no congestion control slows down."""

from __future__ import annotations

from placement.model.compiled import compiled
from placement.simulator.network.laws.state import Record


@compiled
def constant_rate(law: Record, flow: Record) -> float:
    """Bytes a nanosecond."""
    return min(flow.line_rate, law.rate_bps * 1.25e-10)
