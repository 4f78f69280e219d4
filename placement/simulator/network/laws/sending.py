"""What a flow of any control may send: one entry for all of them, once a step of the network's step mode.

The window controls are those of the window model (`windows`): whole packets, as in Linux.
"""

from __future__ import annotations

from placement.model.compiled import compiled
from placement.simulator.network.laws.constant import constant_rate
from placement.simulator.network.laws.cubic import leaves_slow_start
from placement.simulator.network.laws.dcqcn import advance_dcqcn, begin_iteration_dcqcn, heeds_marks_dcqcn
from placement.simulator.network.laws.dctcp import observe_marks
from placement.simulator.network.laws.delay import advance_delay, lose_by_delay
from placement.simulator.network.laws.network_law import Control
from placement.simulator.network.laws.state import LOSS, MARK, NEVER, NO_SSTHRESH, Record, increase_factor
from placement.simulator.network.laws.windows import (
    INITIAL_CWND,
    is_time_out,
    restart,
    time_out,
)
from placement.simulator.network.laws.windows import grow as grow_window
from placement.simulator.network.laws.windows import reduce as reduce_window

_CUBIC, _DCTCP = int(Control.CUBIC), int(Control.DCTCP)
_DCQCN, _DELAY, _CONSTANT = int(Control.DCQCN), int(Control.DELAY), int(Control.CONSTANT)
_SECOND = 1e-9


@compiled
def prepare(law: Record, flow: Record) -> None:
    """The state of a new connection."""
    flow.cwnd, flow.ssthresh, flow.epoch = INITIAL_CWND, NO_SSTHRESH, NEVER
    flow.alpha = 1024
    flow.window = float(INITIAL_CWND)
    flow.queued = 1
    flow.factor = 1.0
    flow.blocked_until = flow.reducing_until = 0.0
    begin_iteration_dcqcn(law, flow, 0)


@compiled
def begin_sending(law: Record, flow: Record, now: int, is_new_iteration: bool) -> None:
    """A connection that was idle sends again."""
    if law.base == _DCQCN:
        if is_new_iteration:
            begin_iteration_dcqcn(law, flow, now)
    elif law.base != _CONSTANT and flow.last_sent > 0:
        idle = (now - flow.last_sent) * _SECOND
        rto = law.rto_us * 1e-6
        if law.base == _CUBIC and flow.epoch != NEVER and idle > 0:
            flow.epoch = min(int(now * _SECOND * 250), flow.epoch + int(idle * 250))
        if law.idle_restart > 0 and idle > rto and law.base != _DELAY:
            restart(flow, idle, rto)
        elif law.base < _DCQCN and idle > flow.base_rtt * _SECOND and flow.queue <= 0:
            flow.burst, flow.blocked_until = flow.cwnd * law.packet_bytes, NEVER
            flow.times_out_at = flow.held = 0.0


@compiled
def heeds_marks(law: Record, flow: Record, now: int) -> bool:
    """Whether a mark would change anything now; where it would not, none needs to be drawn."""
    if law.base == _DCQCN:
        return heeds_marks_dcqcn(law, flow, now)
    return now * _SECOND >= flow.reducing_until


@compiled
def send_rate(
    law: Record, flow: Record, now: int, signal: int, acked: float, seen: float, rtt: float, drawn: float
) -> float:
    """Bytes a nanosecond, after a step in which so many packets were acknowledged.

    `signal` is 0, MARK, or LOSS with `drawn`, a number in [0, 1); `seen` is the probability of marks one round trip
    ago, or, for the control by delay, the queueing then in nanoseconds.
    """
    if law.base == _DCQCN:
        advance_dcqcn(law, flow, now, flow.sent, signal == MARK)
        return flow.rate
    if law.base == _CONSTANT:
        return constant_rate(law, flow)
    increase = increase_factor(law, flow)
    if law.base == _DELAY:
        if signal == LOSS:
            lose_by_delay(law, flow, now, rtt)
        else:
            advance_delay(law, flow, now, acked, seen, rtt, increase)
        return flow.window * law.packet_bytes / rtt
    _advance_window(law, flow, now, signal, acked, seen, rtt, increase, drawn)
    return _sent_window(flow, now * _SECOND) * law.packet_bytes / rtt


@compiled
def _sent_window(flow: Record, now: float) -> int:
    """The packets that the flow may send in a round trip: lost ones that wait for a time-out take up the window."""
    if now < flow.blocked_until:
        return 0
    if flow.times_out_at > 0:
        return max(0, flow.cwnd - flow.lost_in_row)
    return flow.cwnd


@compiled
def _is_retransmission_lost(law: Record, flow: Record, now: float, rtt: float, drawn: float) -> bool:
    """Whether a loss in a recovery took one of the packets that it sent again."""
    if law.rack > 0 or flow.recovers == 0 or now >= flow.reducing_until + rtt:
        return False
    part = min(1.0, flow.lost_lately / law.packet_bytes / flow.cwnd)
    return drawn < 1 - (1 - part) ** flow.lost_in_row


@compiled
def _lose(law: Record, flow: Record, now: float, rtt: float, drawn: float) -> None:
    """The response to a loss, or, after one of a retransmission, to wait for its time-out."""
    if _is_retransmission_lost(law, flow, now, rtt, drawn):
        flow.times_out_at = flow.reducing_until + law.rto_us * 1e-6
        flow.held = max(law.packet_bytes, flow.left - law.buffer_bytes)
        if flow.lost_in_row < flow.cwnd:
            flow.lost_in_row = min(flow.lost_in_row, int(flow.lost_lately / law.packet_bytes))
    elif is_time_out(flow):
        time_out(law, flow)
        flow.blocked_until = flow.reducing_until = now + law.rto_us * 1e-6
        flow.recovers = 0
    else:
        # In slow start each other packet is lost, and the retransmissions are as far apart.
        in_row = 0 if flow.cwnd < flow.ssthresh else int(flow.row_bytes / law.packet_bytes)
        flow.recovers, flow.lost_in_row = 1, in_row
        reduce_window(law, flow)
        flow.reducing_until = now + rtt
    flow.lost_lately = flow.row_bytes = 0.0


@compiled
def _time_out_of_lost(law: Record, flow: Record, now: float, rtt: float) -> None:
    """The time-out of a lost retransmission: it is sent at once, and slow start follows."""
    flow.signal = LOSS
    time_out(law, flow)
    flow.signal, flow.recovers = 0, 0
    flow.times_out_at = flow.held = flow.lost_lately = flow.row_bytes = 0.0
    flow.reducing_until = now + rtt


@compiled
def _advance_window(
    law: Record,
    flow: Record,
    now: int,
    signal: int,
    acked: float,
    seen: float,
    rtt: float,
    increase: float,
    drawn: float,
) -> None:
    seconds, rtt_s = now * _SECOND, rtt * _SECOND
    if law.base == _DCTCP:
        flow.window_acked += acked
        flow.window_marked += acked * seen
        observe_marks(flow, seconds, rtt_s)
    flow.acked_fraction += acked
    whole = int(flow.acked_fraction)
    flow.acked_fraction -= whole
    if flow.times_out_at > 0:
        if seconds >= flow.times_out_at:
            _time_out_of_lost(law, flow, seconds, rtt_s)
        return
    if seconds < flow.reducing_until:
        return
    f = flow.factor
    if signal != 0:
        flow.signal = signal
        if signal == LOSS:
            _lose(law, flow, seconds, rtt_s, drawn)
        else:
            flow.recovers = 0
            reduce_window(law, flow)
            flow.reducing_until = seconds + rtt_s
        flow.signal = 0
    elif whole > 0:
        if law.hystart > 0 and flow.cwnd < flow.ssthresh:
            packet_s = law.packet_bytes / flow.narrowest * _SECOND
            if leaves_slow_start(flow, packet_s, rtt_s, flow.base_rtt * _SECOND):
                flow.ssthresh = flow.cwnd
        flow.factor = increase
        grow_window(law, flow, whole, seconds)
        flow.factor = f
