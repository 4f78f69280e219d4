"""One step of the link: packets leave the queue and are acknowledged, and flows send what their windows allow."""

from __future__ import annotations

import numpy as np

from mltcp.control.window_model.compiled.compiler import compiled
from mltcp.control.window_model.compiled.factor import current_factor, is_recognised
from mltcp.control.window_model.compiled.state import LOSS, MARK, Record
from mltcp.control.window_model.compiled.windows import (
    DCTCP,
    grow,
    is_time_out,
    look,
    observe_marks,
    reduce,
    restart,
    time_out,
    transmission_starts,
)

_NOTHING = 1e-9


@compiled
def drain(link: Record, flows: Record) -> float:
    """Let the queue drain for one step; returns the part of the packets in flight that is acknowledged."""
    link.queue = max(0.0, link.queue - link.capacity * link.step)
    in_flight = 0.0
    for j in range(len(flows)):
        in_flight += flows[j].in_flight
    link.real_queue = min(in_flight, max(0.0, link.queue - link.burst))
    return (in_flight - link.real_queue) / in_flight if in_flight > 0 else 0.0


@compiled
def acknowledge(link: Record, law: Record, flow: Record, job: Record, part: float, now: float) -> None:
    """Acknowledge this part of a flow's packets in flight: count them, and let the window grow or shrink."""
    acked = flow.in_flight * part
    flow.in_flight -= acked
    job.unacked -= acked
    job.acked += acked
    job.last_acked = now
    flow.factor = current_factor(law, job)
    rtt = link.step + link.real_queue / link.capacity
    look(law, flow, is_recognised(law, job), rtt, link.step)
    if law.base == DCTCP:
        flow.window_acked += acked
        observe_marks(flow, now, rtt)
    flow.acked_fraction += acked
    whole = int(flow.acked_fraction)
    flow.acked_fraction -= whole
    arrived = flow.signal != 0 and now >= flow.signal_at
    if arrived and now >= flow.reducing_until:
        _respond(link, law, flow, now, rtt)
    elif now >= flow.reducing_until:
        grow(law, flow, whole, now)
    if arrived:
        flow.signal = 0


@compiled
def _respond(link: Record, law: Record, flow: Record, now: float, rtt: float) -> None:
    """The response to a mark or a loss; there is no other for a round trip."""
    if is_time_out(flow):
        time_out(law, flow)
        flow.blocked_until = flow.reducing_until = now + link.rto
    else:
        reduce(law, flow)
        flow.reducing_until = now + rtt


@compiled
def _signal(link: Record, flow: Record, kind: int, now: float) -> None:
    if flow.signal == 0:
        flow.signal_at = now + link.step + max(0.0, link.queue - link.burst) / link.capacity
    flow.signal = max(flow.signal, kind)


@compiled
def send(link: Record, law: Record, flow: Record, job: Record, now: float) -> None:
    """Send what the window allows; packets above the threshold are marked, those without room dropped."""
    if flow.left <= 0 or now < flow.blocked_until:
        return
    if flow.in_flight <= _NOTHING and flow.last_sent >= 0:
        idle = now - flow.last_sent
        if idle > link.rto:
            restart(flow, idle, link.rto)
        flow.factor = current_factor(law, job)
        transmission_starts(law, flow, job.first_sent < 0, is_recognised(law, job), idle, now)
    if flow.last_sent < 0:
        flow.looks = 1
    packets = min(flow.left, flow.cwnd - flow.in_flight)
    if packets <= 0:
        return
    if job.first_sent < 0:
        job.first_sent = now
    flow.last_sent = now
    room = max(0.0, link.room - link.queue)
    if packets > room:
        link.dropped += packets - room
        packets = room
        _signal(link, flow, LOSS, now)
    if packets > 0:
        _mark(link, flow, packets, now)
        link.queue += packets
        flow.in_flight += packets
        flow.left -= packets


@compiled
def _mark(link: Record, flow: Record, packets: float, now: float) -> None:
    above = link.queue + packets - max(link.queue, link.threshold)
    if link.marks == 0 or above <= 0:
        return
    link.marked += above
    flow.window_marked += above
    if np.random.random() < 1 - (1 - above / packets) ** packets:
        _signal(link, flow, MARK, now)
