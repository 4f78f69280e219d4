"""The loop of the step mode. In each step: what controls let flows send, the senders' own links, then switches, each
link after those that lead to it: what arrives joins the queue, and all in the queue leaves in the same proportion.
"""

from __future__ import annotations

import math

from placement.model.compiled import compiled
from placement.simulator.exact.event_heap import NEVER, soonest
from placement.simulator.network.laws.network_law import Control
from placement.simulator.network.laws.sending import send_rate
from placement.simulator.network.laws.state import LOSS, MARK, Record
from placement.simulator.network.steps.iterations import (
    ACTIVE,
    CHANGED,
    FLOW_STEPS,
    LEAVING,
    STEPS,
    UNFINISHED,
    begin_iteration,
    draw,
    finish_message,
    handle_events,
)
from placement.simulator.network.steps.records import HISTORY, StepState

_DELAY, _CONSTANT = int(Control.DELAY), int(Control.CONSTANT)
_NOTHING = 1e-3
_RESIDUE = 1.0


@compiled
def run(state: StepState, step_ns: int, until: int) -> int:
    """Run until all jobs have ended, or until that time; returns when it ended."""
    now = 0
    for j in range(len(state.jobs)):
        begin_iteration(state, j, state.jobs[j].began)
    while state.counts[UNFINISHED] > 0:
        if state.counts[ACTIVE] == 0:
            now = max(now, soonest(state.events))
        if now >= until:
            return until
        handle_events(state, now + step_ns)
        if state.counts[CHANGED]:
            _list_active(state)
        if state.counts[ACTIVE] > 0:
            _step(state, now, step_ns)
        now += step_ns
    return _latest_end(state)


@compiled
def _latest_end(state: StepState) -> int:
    latest = 0
    for i in range(len(state.ends)):
        latest = max(latest, state.ends[i])
    return latest


@compiled
def _step(state: StepState, now: int, step_ns: int) -> None:
    state.counts[STEPS] += 1
    state.counts[FLOW_STEPS] += state.counts[ACTIVE]
    for i in range(state.counts[ACTIVE]):
        flow = state.flows[state.active[i]]
        _account(state, state.active[i], flow, now, step_ns)
        _offer(state, flow, state.active[i], now, step_ns)
    for i in range(state.counts[ACTIVE]):
        _leave_host(state, state.flows[state.active[i]], now, step_ns)
    for i in range(state.counts[ACTIVE]):
        host = state.links[state.flows[state.active[i]].host_link]
        host.arrived = 0.0
    for level in range(len(state.link_starts) - 1):
        for i in range(state.link_starts[level], state.link_starts[level + 1]):
            _serve(state.links[state.active_links[i]], float(step_ns))
        for i in range(state.hop_starts[level], state.hop_starts[level + 1]):
            _pass_on(state, state.active_hops[i])


# -- flows --------------------------------------------------------------------------------------


@compiled
def _account(state: StepState, number: int, flow: Record, now: int, step_ns: int) -> None:
    """Enter the last step: what was lost is to be sent again; a message that is sent gives way to the next."""
    law = state.laws[flow.law]
    if flow.lost > 0:
        flow.lost_in_all += flow.lost
        if flow.head >= 0:
            flow.left += flow.lost
            flow.iteration_left += flow.lost
            if flow.loss_at == 0 and draw(flow) < 1 - math.exp(-flow.lost / law.packet_bytes):
                flow.loss_at = now + int(flow.base_rtt + flow.wait)
    elif flow.head >= 0 and flow.left <= 0:
        finish_message(state, flow)
    if flow.head < 0 and flow.queue < _RESIDUE:
        flow.is_active = LEAVING
        state.counts[CHANGED] = 1


@compiled
def _offer(state: StepState, flow: Record, number: int, now: int, step_ns: int) -> None:
    """What the control lets the flow send in this step."""
    law = state.laws[flow.law]
    rtt = flow.base_rtt + flow.wait
    acked = flow.delivered / law.packet_bytes
    seen = _seen(state, law, flow, number, step_ns)
    signal = _signal(law, flow, now, acked, seen)
    rate = send_rate(law, flow, now, signal, acked, seen, rtt)
    span = float(step_ns)
    if flow.began != NEVER:
        span = float(now + step_ns - flow.began)
        flow.began = NEVER
    offered = min(rate * span, flow.left) if flow.head >= 0 else 0.0
    if flow.left - offered < _NOTHING and rate > 0 and flow.head >= 0:
        offered = flow.left
        if offered > 0:
            flow.finished = now + step_ns - int(span) + int(offered / rate)
    flow.offered = offered
    state.links[flow.host_link].arrived += offered


@compiled
def _seen(state: StepState, law: Record, flow: Record, number: int, step_ns: int) -> float:
    """What the packets met that are acknowledged now; enters what those of the last step met.

    Packets are acknowledged a round trip after they were sent, which is as long as the queue that they met: the ones
    that are sent now overtake none. Those of a step were sent in its middle, and are heard of in the middle of one.
    """
    at = state.counts[STEPS]
    state.marks[at & (HISTORY - 1), number] = flow.wait if law.base == _DELAY else 1 - flow.unmarked
    state.waits[at & (HISTORY - 1), number] = flow.wait
    total, count = 0.0, 0
    while flow.read < at:
        place = (flow.read + 1) & (HISTORY - 1)
        age = at - flow.read - 1
        if (age + 1) * step_ns < flow.base_rtt + state.waits[place, number] and age < HISTORY - 2:
            break
        flow.read += 1
        total += state.marks[place, number]
        count += 1
    if count > 0:
        flow.seen = total / count
    return flow.seen


@compiled
def _signal(law: Record, flow: Record, now: int, acked: float, seen: float) -> int:
    if flow.loss_at > 0 and now >= flow.loss_at:
        flow.loss_at = 0
        return LOSS
    if seen <= 0 or acked <= 0 or law.base >= _DELAY:
        return 0
    drawn = draw(flow)
    if drawn >= acked * seen:  # Which is at least the probability of any mark.
        return 0
    return MARK if acked < 1 or seen >= 1 or drawn < 1 - (1 - seen) ** acked else 0


@compiled
def _leave_host(state: StepState, flow: Record, now: int, step_ns: int) -> None:
    """The host's link takes what it can from all its flows, unless the switch has paused it."""
    host = state.links[flow.host_link]
    sent = flow.offered
    room = host.capacity * step_ns
    if flow.hops > 0 and state.links[state.hops[flow.first_hop].link].pausing:
        sent = 0.0
    elif host.arrived > room:
        sent *= room / host.arrived
    elif sent > 0 and sent >= flow.left:
        flow.finished = max(flow.finished, now + int(host.arrived / host.capacity))
    flow.sent = sent
    flow.wait = flow.delivered = flow.lost = flow.queue = 0.0
    flow.unmarked = 1.0
    if sent <= 0:
        return
    flow.left -= sent
    flow.iteration_left -= sent
    flow.sent_in_all += sent
    flow.last_sent = float(now)
    host.sent += sent
    if flow.hops == 0:
        flow.delivered = sent
        flow.delivered_in_all += sent
        return
    hop = state.hops[flow.first_hop]
    hop.arrived += sent
    state.links[hop.link].arrived += sent


# -- links --------------------------------------------------------------------------------------


@compiled
def _serve(link: Record, step: float) -> None:
    """Take what arrived into the queue, and say which part leaves, is marked and is lost."""
    before = link.queue
    room = 0.0 if link.paused else link.capacity * step
    total = before + link.arrived
    link.loss = link.marks = 0.0
    if total <= room:
        leaves = total
        link.part, link.queue, link.wait = 1.0, 0.0, 0.0
    else:
        excess = total - room - link.buffer
        if excess > 0:
            link.loss = min(1.0, excess / link.arrived)
            link.dropped += excess
            total -= excess
        leaves = room
        link.part, link.queue = room / total, total - room
        link.wait = link.queue / link.capacity
        link.largest = max(link.largest, link.queue)
    if before > link.lowest or link.queue > link.lowest:
        link.marks = _mark_probability(link, before)
        link.marked += link.marks * link.arrived * (1 - link.loss)
    link.sent += leaves
    link.arrived = 0.0
    link.paused = 0
    if link.queue >= link.stop:
        link.pausing = 1
    elif link.queue <= link.go:
        link.pausing = 0


@compiled
def _mark_probability(link: Record, before: float) -> float:
    """The mean over a step in which the queue goes from `before` to its present value evenly."""
    low, high = min(before, link.queue), max(before, link.queue)
    if high <= low:
        return _marks_at(link, high)
    above = max(0.0, high - max(low, link.highest))
    first, last = max(low, link.lowest), min(high, link.highest)
    ramp = 0.0
    if last > first:
        middle = (first + last) / 2
        ramp = (last - first) * link.probability * (middle - link.lowest) / (link.highest - link.lowest)
    return (above + ramp) / (high - low)


@compiled
def _marks_at(link: Record, queue: float) -> float:
    if queue > link.highest:
        return 1.0
    if queue <= link.lowest:
        return 0.0
    return link.probability * (queue - link.lowest) / (link.highest - link.lowest)


@compiled
def _pass_on(state: StepState, number: int) -> None:
    """A flow's share of a queue: what leaves arrives at the next link, or at the receiver."""
    hop = state.hops[number]
    link = state.links[hop.link]
    flow = state.flows[hop.flow]
    total = hop.queue + hop.arrived
    if link.loss > 0:
        lost = hop.arrived * link.loss
        flow.lost += lost
        total -= lost
    leaves = total * link.part
    hop.queue = total - leaves
    hop.arrived = 0.0
    flow.queue += hop.queue
    flow.wait += link.wait
    if link.marks > 0:
        flow.unmarked *= 1 - link.marks
    if hop.next_link < 0:
        flow.delivered += leaves
        flow.delivered_in_all += leaves
        return
    after = state.links[hop.next_link]
    if after.pausing:
        link.paused = 1
    after.arrived += leaves
    state.hops[number + 1].arrived += leaves


@compiled
def _list_active(state: StepState) -> None:
    """List the flows that are active, their links and hops, each link after those that lead to it."""
    for i in range(state.link_starts[len(state.link_starts) - 1]):
        state.links[state.active_links[i]].is_active = 0
    count = 0
    for i in range(state.counts[ACTIVE]):
        number = state.active[i]
        if state.flows[number].is_active == 1:
            state.active[count] = number
            count += 1
        else:
            state.flows[number].is_active = 0
            _clear(state, state.flows[number])
    old = state.link_starts[len(state.link_starts) - 1]
    state.counts[ACTIVE], state.counts[CHANGED] = count, 0
    for i in range(count):
        flow = state.flows[state.active[i]]
        for h in range(flow.first_hop, flow.first_hop + flow.hops):
            state.links[state.hops[h].link].is_active = 1
    for i in range(old):
        link = state.links[state.active_links[i]]
        if link.is_active == 0:
            link.queue = link.wait = link.marks = link.loss = 0.0
            link.pausing = link.paused = 0
    hops, links = 0, 0
    for level in range(len(state.link_starts) - 1):
        for i in range(count):
            flow = state.flows[state.active[i]]
            for h in range(flow.first_hop, flow.first_hop + flow.hops):
                number = state.hops[h].link
                if state.levels[number] != level:
                    continue
                state.active_hops[hops] = h
                hops += 1
                if state.links[number].is_active == 1:
                    state.links[number].is_active = 2
                    state.active_links[links] = number
                    links += 1
        state.link_starts[level + 1], state.hop_starts[level + 1] = links, hops


@compiled
def _clear(state: StepState, flow: Record) -> None:
    """Let the last fraction of a byte arrive."""
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        hop = state.hops[h]
        link = state.links[hop.link]
        link.queue = max(0.0, link.queue - hop.queue - hop.arrived)
        flow.delivered_in_all += hop.queue + hop.arrived
        hop.queue = hop.arrived = 0.0
    flow.wait = flow.delivered = flow.sent = flow.lost = flow.queue = 0.0
    flow.unmarked = 1.0
