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


@compiled
def heeds_marks(law: Record, flow: Record, now: int) -> bool:
    """Whether a mark would change anything now; where it would not, none needs to be drawn."""
    if law.base == _DCQCN:
        return heeds_marks_dcqcn(law, flow, now)
    return now * _SECOND >= flow.reducing_until


@compiled
def send_rate(
    law: Record, flow: Record, now: int, signal: int, acked: float, seen: float, rtt: float
) -> float:
    """Bytes a nanosecond, after a step in which so many packets were acknowledged.

    `signal` is 0, MARK or LOSS; `seen` is the probability of marks one round trip ago, or, for the control by delay,
    the queueing then in nanoseconds.
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
    _advance_window(law, flow, now, signal, acked, seen, rtt, increase)
    if now * _SECOND < flow.blocked_until:
        return 0.0
    return flow.cwnd * law.packet_bytes / rtt


@compiled
def _advance_window(
    law: Record, flow: Record, now: int, signal: int, acked: float, seen: float, rtt: float, increase: float
) -> None:
    seconds, rtt_s = now * _SECOND, rtt * _SECOND
    if law.base == _DCTCP:
        flow.window_acked += acked
        flow.window_marked += acked * seen
        observe_marks(flow, seconds, rtt_s)
    flow.acked_fraction += acked
    whole = int(flow.acked_fraction)
    flow.acked_fraction -= whole
    if seconds < flow.reducing_until:
        return
    f = flow.factor
    if signal != 0:
        flow.signal = signal
        if is_time_out(flow):
            time_out(law, flow)
            flow.blocked_until = flow.reducing_until = seconds + law.rto_us * 1e-6
        else:
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
