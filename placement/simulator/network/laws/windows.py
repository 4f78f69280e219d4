"""The windows of Reno, CUBIC and DCTCP as in Linux 6.18, with MLTCP's hooks: growth, reduction, first window.

Not modelled: the gradual reduction of PRR, undo after spurious losses.
"""

from __future__ import annotations

from placement.model.compiled import compiled
from placement.simulator.network.laws.cubic import reduced_by_cubic, update_cubic
from placement.simulator.network.laws.dctcp import reduced_by_alpha
from placement.simulator.network.laws.network_law import Control
from placement.simulator.network.laws.reno import add_packets, halved
from placement.simulator.network.laws.state import HZ, LOSS, NEVER, Record

CUBIC, DCTCP = int(Control.CUBIC), int(Control.DCTCP)
START_KERNEL, START_AVOID, START_KEEP, START_PROBE = range(4)
INITIAL_CWND, PROBE_CWND, SMALLEST_CWND = 10, 4, 2
QUEUED = 1 + 1 / 8


@compiled
def _avoid(law: Record, flow: Record, acked: int, now: float) -> None:
    if law.base == CUBIC:
        update_cubic(flow, acked, now, law.recent_jiffies)
        add_packets(flow, flow.cubic_count, acked)
    else:
        add_packets(flow, flow.cwnd, acked)


@compiled
def _scaled(law: Record, flow: Record, acked: int) -> int:
    """mltcp_scaled(): F * acked, rounded down; the fraction is carried. F below 1 acts if there is or was a queue."""
    f = min(flow.factor, law.increase) if law.increase > 0 else flow.factor
    if f == 1.0 or (f < 1.0 and not flow.queued):
        return acked
    flow.carry += acked * f
    whole = int(flow.carry)
    flow.carry -= whole
    return whole


@compiled
def grow(law: Record, flow: Record, acked: int, now: float) -> None:
    """The increase of so many acknowledged packets, if the window is what limits the flow."""
    limited = flow.left > 0
    if flow.cwnd >= flow.ssthresh or flow.holds:
        if limited:
            _avoid(law, flow, _scaled(law, flow, acked), now)
    elif limited or 2 * flow.in_flight > flow.cwnd:
        grown = min(acked, flow.ssthresh - flow.cwnd)
        flow.cwnd += grown
        if acked > grown:
            _avoid(law, flow, acked - grown, now)


@compiled
def _base_ssthresh(law: Record, flow: Record) -> int:
    if law.base == CUBIC:
        reduced = reduced_by_cubic(flow)
    elif law.base == DCTCP and flow.signal != LOSS:
        reduced = reduced_by_alpha(flow)
    else:
        reduced = halved(flow)
    return max(SMALLEST_CWND, reduced)


@compiled
def reduce(law: Record, flow: Record) -> None:
    """The base's decrease; the part of it that is lost is divided by 1 - d + d * max(1, F) (mltcp_decreased())."""
    reduced = _base_ssthresh(law, flow)
    if law.decrease > 0 and flow.factor > 1 and reduced < flow.cwnd:
        lost = (flow.cwnd - reduced) / (1 - law.decrease + law.decrease * flow.factor) + flow.lost_carry
        flow.lost_carry = lost - int(lost)
        reduced = flow.cwnd - int(lost)
    flow.ssthresh = reduced
    flow.cwnd = min(flow.cwnd, reduced)
    flow.count = 0


@compiled
def time_out(law: Record, flow: Record) -> None:
    """A retransmission time-out: slow start from one packet."""
    flow.ssthresh = _base_ssthresh(law, flow)
    flow.cwnd, flow.count = 1, 0
    flow.last_max, flow.epoch, flow.last_cwnd, flow.cubic_count = 0, NEVER, 0, 0


@compiled
def restart(flow: Record, idle: float, rto: float) -> None:
    """tcp_cwnd_restart(): after an idle period above the time-out, halve the window for every time-out in it."""
    flow.kept_cwnd = flow.cwnd
    flow.ssthresh = max(flow.ssthresh, (flow.cwnd >> 1) + (flow.cwnd >> 2))
    least = min(INITIAL_CWND, flow.cwnd)
    cwnd = flow.cwnd
    left = idle - rto
    while left > 0 and cwnd > least:
        cwnd >>= 1
        left -= rto
    flow.cwnd = max(cwnd, least)


@compiled
def transmission_starts(
    law: Record, flow: Record, is_new_iteration: bool, is_recognised: bool, idle: float, now: float
) -> None:
    """CA_EVENT_TX_START: shift CUBIC's epoch by the idle time, and set an iteration's first window (mltcp_event())."""
    if law.base == CUBIC and flow.epoch != NEVER and idle > 0:
        flow.epoch = min(int(now * HZ), flow.epoch + int(idle * HZ))
    kept = flow.kept_cwnd
    flow.kept_cwnd = 0
    if not is_new_iteration:
        return
    flow.looks, flow.holds = 1, 0
    if not is_recognised:
        return
    if law.start == START_PROBE:
        flow.cwnd = min(PROBE_CWND, flow.cwnd)
        flow.epoch = NEVER
    elif law.start == START_KEEP:
        flow.cwnd = max(flow.cwnd, kept)
        flow.ssthresh = min(flow.ssthresh, flow.cwnd)


@compiled
def look(law: Record, flow: Record, is_recognised: bool, rtt: float, shortest: float) -> None:
    """Whether there is a queue, and (START_AVOID) whether an iteration begins in one of others (mltcp_look())."""
    clear = max(shortest, flow.start_rtt)
    is_queue = int(rtt > shortest * QUEUED)
    if flow.looks:
        flow.began_queued = is_queue
    flow.queued = max(is_queue, flow.began_queued)
    if rtt < 2 * clear:
        flow.holds = 0
    if not flow.looks:
        return
    flow.looks = 0
    if is_recognised and law.start == START_AVOID and flow.start_rtt > 0:
        flow.holds = int(rtt >= 2 * clear)
    if flow.start_rtt == 0 or rtt < flow.start_rtt:
        flow.start_rtt = rtt
    else:
        flow.start_rtt += (rtt - flow.start_rtt) / 8


@compiled
def is_time_out(flow: Record) -> bool:
    """Whether a loss can only be found by the time-out: too few packets in flight for duplicate acknowledgements."""
    return flow.signal == LOSS and flow.cwnd < PROBE_CWND
