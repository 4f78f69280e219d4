"""DCQCN (Zhu et al., SIGCOMM 2015): a rate that is cut on congestion notification packets (CNPs), and recovers by a
timer and a byte counter. Times are nanoseconds, rates bytes a nanosecond. `DcqcnState` says what is kept.
"""

from __future__ import annotations

from placement.model.compiled import compiled
from placement.simulator.network.laws.network_law import DcqcnState
from placement.simulator.network.laws.state import Record, factor, increase_factor

_FIRST_CNP, _KEPT, _NS3 = int(DcqcnState.FIRST_CNP), int(DcqcnState.KEPT), int(DcqcnState.NS3)
_US = 1000
_BPS = 1.25e-10  # bytes a nanosecond
_WAITING = 1 << 62


@compiled
def begin_iteration_dcqcn(law: Record, flow: Record, now: int) -> None:
    """Line rate and alpha = 1, unless the state is kept; called once before all others."""
    if law.state == _KEPT and flow.alpha_share > 0:
        return
    flow.rate = flow.target_rate = flow.line_rate
    flow.alpha_share = 1.0
    flow.time_stage = flow.byte_stage = 0
    flow.counted = 0.0
    flow.alpha_due = flow.timer_due = flow.cut_due = _WAITING
    flow.cnp_seen = flow.cut_wanted = 0
    if law.state != _FIRST_CNP and law.state != _NS3:
        flow.alpha_due = now + int(law.alpha_timer_us * _US)
        flow.timer_due = now + int(law.timer_us * _US)


@compiled
def heeds_marks_dcqcn(law: Record, flow: Record, now: int) -> bool:
    """Whether a marked packet that arrives now would lead to a CNP, or be the first to be noticed."""
    if law.state == _NS3:
        return flow.cut_wanted == 0 or flow.cnp_seen == 0
    return now >= flow.next_cnp


@compiled
def advance_dcqcn(law: Record, flow: Record, now: int, sent: float, is_marked: bool) -> None:
    """A step in which `sent` bytes left, and a marked packet arrived or none."""
    if law.state == _NS3:
        if is_marked:
            _notice(law, flow, now)
        if now >= flow.cut_due:
            flow.cut_due = max(now, flow.cut_due + int(law.cnp_us * _US))
            if flow.cut_wanted:
                _cut(law, flow, now, flow.time_stage > 0)
    elif is_marked and now >= flow.next_cnp:
        flow.next_cnp = now + int(law.cnp_us * _US)
        _cut(law, flow, now, True)
        flow.alpha_share += law.g * (1 - flow.alpha_share)
        flow.alpha_due = now + int(law.alpha_timer_us * _US)
    while now >= flow.alpha_due:
        flow.alpha_due += int(law.alpha_timer_us * _US)
        flow.alpha_share += law.g * (flow.cnp_seen - flow.alpha_share)
        flow.cnp_seen = 0
    if law.state != _NS3 and flow.timer_due != _WAITING:
        flow.counted += sent
        if flow.counted >= law.counter_bytes:
            flow.counted -= law.counter_bytes
            flow.byte_stage += 1
            _increase(law, flow)
    while now >= flow.timer_due:
        flow.timer_due += int(law.timer_us * _US)
        flow.time_stage += 1
        _increase(law, flow)


@compiled
def _notice(law: Record, flow: Record, now: int) -> None:
    """A CNP in the model of ns-3: the first one starts the timers."""
    if flow.cut_due == _WAITING:
        flow.cut_due = now
        flow.alpha_due = now + int(law.alpha_timer_us * _US)
    else:
        flow.cnp_seen = 1
    flow.cut_wanted = 1


@compiled
def _cut(law: Record, flow: Record, now: int, sets_target: bool) -> None:
    if sets_target:
        flow.target_rate = flow.rate
    increase_factor(law, flow)
    shrinks = max(1.0, flow.factor) if law.decrease > 0 else 1.0
    flow.rate = max(law.lowest_bps * _BPS, flow.rate * (1 - flow.alpha_share / 2 / shrinks))
    flow.time_stage = flow.byte_stage = flow.cut_wanted = 0
    flow.counted = 0.0
    flow.timer_due = now + int(law.timer_us * _US)


@compiled
def _increase(law: Record, flow: Record) -> None:
    """Fast recovery up to five timers and counters, additive increase beyond, hyper increase if both are beyond."""
    if law.state == _NS3:
        is_hyper = flow.time_stage > law.stages + 1
    else:
        is_hyper = min(flow.time_stage, flow.byte_stage) > law.stages
    step_bps = 0.0
    if is_hyper:
        step_bps = increase_factor(law, flow) * law.hai_bps
    elif max(flow.time_stage, flow.byte_stage) > law.stages:
        step_bps = increase_factor(law, flow) * law.ai_bps
    if 0 < law.free_stages < flow.time_stage:
        step_bps = max(step_bps, _free_step_bps(law))
    flow.target_rate = min(flow.target_rate + step_bps * _BPS, flow.line_rate)
    flow.rate = (flow.rate + flow.target_rate) / 2


@compiled
def _free_step_bps(law: Record) -> float:
    """The increase of a flow whose packets nobody marks: with all that F ever holds back, F(1) / F(0) times R_AI.

    F below 1 is for a link that others use. Where they have gone, it would keep a flow that they had cut from what
    they left, for longer than many a job sends.
    """
    return law.ai_bps * factor(law, 1.0, 1.0) / factor(law, 0.0, 1.0)
