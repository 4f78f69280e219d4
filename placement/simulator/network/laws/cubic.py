"""CUBIC as in Linux 6.18 (RFC 9438): a window that grows with the cube of the time since its decrease; and HyStart."""

from __future__ import annotations

from placement.model.compiled import compiled
from placement.simulator.network.laws.state import HZ, NEVER, Record

_CUBIC_C = 0.4
_LOW_WINDOW = 16
_SHORTEST_DELAY_S, _LONGEST_DELAY_S = 4e-3, 16e-3


@compiled
def _begin_epoch(flow: Record, jiffy: int, acked: int) -> None:
    flow.epoch, flow.ack_count, flow.tcp_cwnd = jiffy, acked, flow.cwnd
    if flow.last_max <= flow.cwnd:
        flow.k, flow.origin = 0.0, flow.cwnd
    else:
        flow.k, flow.origin = ((flow.last_max - flow.cwnd) / _CUBIC_C) ** (1 / 3), flow.last_max


@compiled
def _cubic_count(flow: Record, jiffy: int) -> None:
    """The acknowledgements for one packet more on the way to the cubic target."""
    offset = (jiffy - flow.epoch + 1) / HZ - flow.k
    change = int(_CUBIC_C * abs(offset) ** 3)
    target = flow.origin - change if offset < 0 else flow.origin + change
    flow.cubic_count = flow.cwnd // (target - flow.cwnd) if target > flow.cwnd else 100 * flow.cwnd
    if flow.last_max == 0:
        flow.cubic_count = min(20, flow.cubic_count)


@compiled
def _befriend(flow: Record) -> None:
    """The TCP-friendly region: at least as fast as Reno with CUBIC's decrease would be."""
    delta = (flow.cwnd * 15) >> 3
    while flow.ack_count > delta:
        flow.ack_count -= delta
        flow.tcp_cwnd += 1
    if flow.tcp_cwnd > flow.cwnd:
        flow.cubic_count = min(flow.cubic_count, flow.cwnd // (flow.tcp_cwnd - flow.cwnd))
    flow.cubic_count = max(flow.cubic_count, 2)


@compiled
def update_cubic(flow: Record, acked: int, now: float, recent: float) -> None:
    """bictcp_update(). While the window stays, `recent` jiffies pass between calculations.

    At round trips of 0.1 ms this starves: growth waits for 32 ms and then makes up for it, by half, times F, a round
    trip. Whose comes first takes all: 0.04 instead of 0.33 of a link at constant F of 1 and 2.
    """
    jiffy = int(now * HZ)
    flow.ack_count += acked
    if flow.last_cwnd == flow.cwnd and jiffy - flow.last_jiffy < recent:
        return
    if flow.epoch == NEVER or jiffy != flow.last_jiffy:
        flow.last_cwnd, flow.last_jiffy = flow.cwnd, jiffy
        if flow.epoch == NEVER:
            _begin_epoch(flow, jiffy, acked)
        _cubic_count(flow, jiffy)
    _befriend(flow)


@compiled
def reduced_by_cubic(flow: Record) -> int:
    """The window after a mark or a loss; the next epoch begins."""
    flow.last_max = (flow.cwnd * 1741) >> 11 if flow.cwnd < flow.last_max else flow.cwnd
    flow.epoch = NEVER
    return (flow.cwnd * 717) >> 10


@compiled
def leaves_slow_start(flow: Record, packet_s: float, rtt: float, shortest: float) -> bool:
    """HyStart: the train of acknowledgements lasts half a round trip, or round trips grow (hystart_update()).

    `packet_s` is the time of a packet on the narrowest link, which spaces the acknowledgements; seconds.
    """
    if flow.cwnd < _LOW_WINDOW:
        return False
    threshold = min(_LONGEST_DELAY_S, max(_SHORTEST_DELAY_S, shortest / 8))
    return flow.cwnd * packet_s > shortest / 2 or rtt > shortest + threshold
