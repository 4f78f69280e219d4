"""Control by delay, after Swift (Kumar et al., SIGCOMM 2020): the window grows below a target of queueing delay, and
shrinks above it, once a round trip, by how far it is above.
"""

from __future__ import annotations

from placement.model.compiled import compiled
from placement.simulator.network.laws.state import Record

_SMALLEST_WINDOW = 0.01
_LARGEST_WINDOW = 1e6


@compiled
def advance_delay(
    law: Record, flow: Record, now: int, acked: float, queueing: float, rtt: float, increase: float
) -> None:
    """A step with so many packets acknowledged, which met `queueing` ns; `increase` is F on the increase."""
    target = law.target_us * 1000
    if queueing < target:
        growth = acked / flow.window if flow.window > 1 else acked
        flow.window = min(_LARGEST_WINDOW, flow.window + increase * law.ai_packets * growth)
    elif now >= flow.next_cut:
        flow.next_cut = now + int(rtt)
        shrinks = max(1.0, flow.factor) if law.decrease > 0 else 1.0
        excess = law.beta * (queueing - target) / rtt
        lost = min(law.largest_decrease, excess) / shrinks
        flow.window = max(_SMALLEST_WINDOW, flow.window * (1 - lost))


@compiled
def lose_by_delay(law: Record, flow: Record, now: int, rtt: float) -> None:
    """The largest decrease, at most once a round trip."""
    if now >= flow.next_cut:
        flow.next_cut = now + int(rtt)
        flow.window = max(_SMALLEST_WINDOW, flow.window * (1 - law.largest_decrease))
