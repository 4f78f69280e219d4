"""The loop of the step mode. In each step: what controls let flows send, the senders' own links, then switches, each
link after those that lead to it: what arrives joins the queue, and all in the queue leaves in the same proportion.
Where a link has queues for traffic classes, its capacity is first divided among those that have bytes.
"""

from __future__ import annotations

import math

from placement.model.compiled import compiled
from placement.simulator.exact.event_heap import NEVER, soonest
from placement.simulator.network.laws.network_law import Control
from placement.simulator.network.laws.sending import heeds_marks, send_rate
from placement.simulator.network.laws.state import LOSS, MARK, Record
from placement.simulator.network.steps.iterations import (
    ACTIVE,
    CHANGED,
    FLOW_STEPS,
    LEAVES,
    NOW,
    STEPS,
    UNFINISHED,
    begin_iteration,
    clear,
    draw,
    finish_message,
    handle_events,
)
from placement.simulator.network.steps.lost import note_lost
from placement.simulator.network.steps.records import HISTORY, StepState
from placement.simulator.network.topology import CLASSES

_DCQCN, _DELAY = int(Control.DCQCN), int(Control.DELAY)
_NOTHING = 1e-3
_RESIDUE = 1.0
_SMOOTHING = 1 / 16
_LEAST_RATE = 1e-3
_IN_A_ROW = 0.25
"""Of what a flow sends in a step: if more is lost, it is packets that follow each other (a burst into a full queue)."""


TO_TIME, TO_STEP, TO_END = range(3)
"""When `advance` stops: in the first step that begins at the time or later; before the step in which the time comes, so
that what is changed then is in time for it; or so, or when a job ends."""


@compiled
def run(state: StepState, step_ns: int, until: int) -> int:
    """Run until all jobs have ended, or until that time; returns when it ended."""
    begin_jobs(state)
    return advance(state, step_ns, until, TO_TIME)


@compiled
def begin_jobs(state: StepState) -> None:
    """Begin the first iteration of each job."""
    for j in range(len(state.jobs)):
        begin_iteration(state, j, state.jobs[j].began)


@compiled
def advance(state: StepState, step_ns: int, until: int, stop: int) -> int:
    """Go on until a time, or all jobs have ended; returns when it ended. `stop` is one of those above."""
    now, unfinished = state.counts[NOW], state.counts[UNFINISHED]
    while state.counts[UNFINISHED] > 0:
        if stop == TO_END and state.counts[UNFINISHED] < unfinished:
            break
        if state.counts[ACTIVE] == 0:
            due = soonest(state.events)
            if stop != TO_TIME and due >= until:
                break
            now = max(now, due)
        if now >= until or (stop != TO_TIME and now + step_ns >= until):
            break
        handle_events(state, now + step_ns)
        if state.counts[CHANGED]:
            list_active(state)
        if state.counts[ACTIVE] > 0:
            _step(state, now, step_ns)
        now += step_ns
    state.counts[NOW] = now
    return until if state.counts[UNFINISHED] > 0 else _latest_end(state)


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
    at, count, step = state.counts[STEPS], state.counts[ACTIVE], float(step_ns)
    for i in range(count):
        number = state.active[i]
        flow = state.flows[number]
        _account(state, flow, now, step_ns)
        _offer(state, flow, number, at, now, step_ns)
    for i in range(state.link_starts[1]):
        _take_offers(state, state.links[state.active_links[i]], step)
    for i in range(count):
        _leave_host(state, state.flows[state.active[i]], now)
    for level in range(1, len(state.link_starts) - 1):
        for i in range(state.link_starts[level], state.link_starts[level + 1]):
            link = state.links[state.active_links[i]]
            if link.queues > 0:
                for place in range(link.first_place, link.last_place):
                    hop = state.hops[state.active_hops[place]]
                    state.links[hop.link].arrived += hop.arrived
                _serve_classes(state, link, step)
                for place in range(link.first_place, link.last_place):
                    _pass_on(state, state.active_hops[place])
            else:
                arrived = 0.0
                for place in range(link.first_place, link.last_place):
                    arrived += state.hops[state.active_hops[place]].arrived
                link.arrived = arrived
                _serve(link, 0.0 if link.paused else link.capacity * step)
                if link.part == 1 and link.marks == 0:
                    for place in range(link.first_place, link.last_place):
                        _pass_through(state, link, state.active_hops[place])
                else:
                    for place in range(link.first_place, link.last_place):
                        _pass_on(state, state.active_hops[place])
    if state.lost.shape[2] > 0:
        note_lost(state, step_ns)


# -- flows --------------------------------------------------------------------------------------


@compiled
def _account(state: StepState, flow: Record, now: int, step_ns: int) -> None:
    """Enter the last step: what was lost is to be sent again; a message that is sent gives way to the next."""
    if flow.lost > 0:
        law = state.laws[flow.law]
        flow.tail_hop = -1
        flow.lost_in_all += flow.lost
        flow.lost_lately += flow.lost
        if flow.lost > _IN_A_ROW * flow.sent:
            flow.row_bytes += flow.lost
        if flow.head >= 0:
            flow.left += flow.lost
            if flow.loss_at == 0 and draw(flow) < 1 - math.exp(-flow.lost / law.packet_bytes):
                flow.loss_at = now + int(flow.base_rtt + flow.wait)
    elif flow.head >= 0 and flow.left <= 0:
        if flow.has_class == 0:
            finish_message(state, flow)
        elif _has_left(state, flow, step_ns):
            flow.finished = max(flow.finished, now - step_ns)
            flow.tail_hop = -1
            finish_message(state, flow)
    if flow.head < 0 and flow.queue < _RESIDUE:
        flow.is_active = LEAVES
        state.counts[CHANGED] = 1


@compiled
def _offer(state: StepState, flow: Record, number: int, at: int, now: int, step_ns: int) -> None:
    """What the control lets the flow send in this step."""
    law = state.laws[flow.law]
    rtt = flow.base_rtt + flow.wait
    acked = flow.delivered / law.packet_bytes
    seen = _seen(state, law, flow, number, at, step_ns)
    signal = _signal(law, flow, now, acked, seen)
    cwnd = flow.cwnd
    rate = send_rate(law, flow, now, signal, acked, seen, rtt, draw(flow) if signal == LOSS else 0.0)
    if law.base < _DCQCN and flow.cwnd != cwnd:
        # A window sends when acknowledgements come: where its packets fall between those that leave the queue stays
        # until it changes. So they find up to half a packet more or less than an even flow would.
        flow.finds = (draw(flow) - 0.5) * law.packet_bytes
    if flow.head >= 0:
        rate = min(rate, state.messages[flow.head].most)
    span = float(step_ns)
    if flow.began != NEVER:
        span = float(now + step_ns - flow.began)
        flow.began = NEVER
    if flow.burst > 0:
        rate = _burst(flow, rate, now, span)
    offered = min(rate * span, max(0.0, flow.left - flow.held)) if flow.head >= 0 else 0.0
    if flow.left - offered < _NOTHING and rate > 0 and flow.head >= 0:
        offered = flow.left
        if offered > 0:
            flow.finished = now + step_ns - int(span) + int(offered / rate)
    # A class that is paused leaves its host's link to the others.
    if flow.pauses and flow.has_class and state.links[state.hops[flow.first_hop].link].pausing:
        offered = 0.0
    flow.sent = offered
    state.links[flow.host_link].arrived += offered


@compiled
def _burst(flow: Record, rate: float, now: int, span: float) -> float:
    """The rate of a window that a pause has kept: the host's, since no acknowledgement holds its packets back.

    The next packets wait for the acknowledgement of the first. `rate` is that of a window of a round trip.
    """
    if flow.sent > 0:
        flow.burst -= flow.sent
        if flow.blocked_until < 0:
            found = max(0.0, flow.wait - flow.sent / flow.narrowest)
            flow.blocked_until = (flow.last_sent + flow.base_rtt + found) * 1e-9
        if flow.burst <= 0 or now * 1e-9 >= flow.blocked_until:
            flow.burst = 0.0
            return 0.0 if now * 1e-9 < flow.blocked_until else rate
    return min(flow.line_rate, flow.burst / span)


@compiled
def _seen(state: StepState, law: Record, flow: Record, number: int, at: int, step_ns: int) -> float:
    """What the packets met that are acknowledged now; enters what those of the last step met.

    Packets are acknowledged a round trip after they were sent, which is as long as the queue that they met: the ones
    that are sent now overtake none. Those of a step were sent in its middle, and are heard of in the middle of one.
    Steps that met nothing are entered only when one comes that did.
    """
    mark = flow.wait if law.base == _DELAY else 1 - flow.unmarked
    if mark == 0 and flow.wait == 0 and flow.noted <= flow.read:
        flow.seen = 0.0
        return 0.0
    if flow.noted <= flow.read:
        lag = min(HISTORY - 2, math.ceil(flow.base_rtt / step_ns))
        flow.read = max(flow.read, at - 1 - lag)
        for empty in range(flow.read + 1, at):
            met = state.history[number, empty & (HISTORY - 1)]
            met.mark = met.wait = 0.0
    if mark != 0 or flow.wait != 0:
        flow.noted = at
    met = state.history[number, at & (HISTORY - 1)]
    met.mark, met.wait = mark, flow.wait
    total, count = 0.0, 0
    while flow.read < at:
        met = state.history[number, (flow.read + 1) & (HISTORY - 1)]
        age = at - flow.read - 1
        if (age + 1) * step_ns < flow.base_rtt + met.wait and age < HISTORY - 2:
            break
        flow.read += 1
        total += met.mark
        count += 1
    if count > 0:
        flow.seen = total / count
    return flow.seen


@compiled
def _signal(law: Record, flow: Record, now: int, acked: float, seen: float) -> int:
    if flow.loss_at > 0 and now >= flow.loss_at:
        flow.loss_at = 0
        return LOSS
    if seen <= 0 or acked <= 0 or law.base >= _DELAY or not heeds_marks(law, flow, now):
        return 0
    drawn = draw(flow)
    if drawn >= acked * seen:  # Which is at least the probability of any mark.
        return 0
    return MARK if acked < 1 or seen >= 1 or drawn < 1 - (1 - seen) ** acked else 0


@compiled
def _leave_host(state: StepState, flow: Record, now: int) -> None:
    """The host's link takes what it can from all its flows, unless the switch has paused it."""
    host = state.links[flow.host_link]
    sent = flow.sent
    if flow.pauses and state.links[state.hops[flow.first_hop].link].pausing:
        sent = 0.0
    elif host.part < 1:
        sent *= host.part
    elif sent > 0 and sent >= flow.left:
        flow.finished = max(flow.finished, now + int(host.wait))
    flow.sent = sent
    flow.wait = flow.delivered = flow.lost = flow.queue = 0.0
    flow.unmarked = 1.0
    if sent <= 0:
        return
    flow.left -= sent
    flow.last_sent = float(now)
    host.sent += sent
    if flow.hops == 0:
        flow.delivered = sent
        flow.delivered_in_all += sent
        return
    state.hops[flow.first_hop].arrived += sent


# -- links --------------------------------------------------------------------------------------


@compiled
def _take_offers(state: StepState, host: Record, step: float) -> None:
    """Say which part of its flows' offers a host's link takes."""
    if host.queues > 0:
        _share_out(state, host, step)
        for number in range(host.queues, host.queues + CLASSES):
            _take(state.links[number], state.links[number].room)
    else:
        _take(host, host.capacity * step)


@compiled
def _take(host: Record, room: float) -> None:
    host.part = room / host.arrived if host.arrived > room else 1.0
    host.wait = host.arrived / host.capacity
    host.arrived = 0.0


@compiled
def _serve(link: Record, room: float) -> None:
    """Take what arrived into the queue, and say which part leaves, is marked and is lost."""
    before = link.before = link.queue
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
        link.marks = _mark_probability(link, before, link.queue)
        link.marked += link.marks * link.arrived * (1 - link.loss)
    link.sent += leaves
    link.arrived = 0.0
    link.paused = 0
    if link.queue >= link.stop:
        link.pausing = 1
    elif link.queue <= link.go:
        link.pausing = 0


@compiled
def _mark_probability(link: Record, before: float, after: float) -> float:
    """The mean over a step in which the queue goes from one value to another evenly."""
    low, high = min(before, after), max(before, after)
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
    hop.queue, hop.served = total - leaves, leaves
    marks = link.marks
    if flow.finds != 0 and max(link.before, link.queue) + abs(flow.finds) > link.lowest:
        marks = _mark_probability(link, link.before + flow.finds, link.queue + flow.finds)
        link.marked += (marks - link.marks) * hop.arrived * (1 - link.loss)
    if marks > 0:
        flow.marked_in_all += marks * hop.arrived * (1 - link.loss)
        flow.unmarked *= 1 - marks
    hop.arrived = 0.0
    flow.queue += hop.queue
    flow.wait += link.wait
    _arrive(state, number, flow, link, leaves)


@compiled
def _pass_through(state: StepState, link: Record, number: int) -> None:
    """`_pass_on` at a link without a queue and marks."""
    hop = state.hops[number]
    leaves = hop.queue + hop.arrived
    hop.served = leaves
    hop.queue = hop.arrived = 0.0
    _arrive(state, number, state.flows[hop.flow], link, leaves)


@compiled
def _arrive(state: StepState, number: int, flow: Record, link: Record, leaves: float) -> None:
    hop = state.hops[number]
    if hop.next_link < 0:
        flow.delivered += leaves
        flow.delivered_in_all += leaves
        return
    if hop.next_pauses and state.links[hop.next_link].pausing:
        link.paused = 1
    state.hops[number + 1].arrived += leaves


# -- traffic classes ------------------------------------------------------------------------------


@compiled
def _has_left(state: StepState, flow: Record, step_ns: int) -> bool:
    """Whether the last byte of the flow's message, behind what it found in each queue, has left all of them."""
    end = flow.first_hop + flow.hops
    if flow.tail_hop < 0:
        flow.tail_hop, flow.ahead = flow.first_hop - 1, 0.0
    else:
        link = state.links[state.hops[flow.tail_hop].link]
        has_class = state.links[link.port].queues > 0
        flow.ahead -= link.room if has_class else link.capacity * step_ns
        if link.queue == 0:  # whatever rounding has left
            flow.ahead = 0.0
    while flow.ahead <= 0:
        flow.tail_hop += 1
        if flow.tail_hop >= end:
            return True
        flow.ahead = state.links[state.hops[flow.tail_hop].link].queue
    return False


@compiled
def _serve_classes(state: StepState, port: Record, step: float) -> None:
    """Serve the queue of each class; how long its packets wait follows from how it was served lately."""
    _share_out(state, port, step)
    for number in range(port.queues, port.queues + CLASSES):
        queue = state.links[number]
        _serve(queue, queue.room)
        if queue.queue > 0:
            queue.rate += (queue.room / step - queue.rate) * _SMOOTHING
            queue.wait = queue.queue / max(queue.rate, queue.capacity * _LEAST_RATE)
        else:
            queue.rate = queue.capacity


@compiled
def _share_out(state: StepState, port: Record, step: float) -> None:
    """Divide what the port can send in a step among the classes that have bytes and are not paused."""
    left, weights = port.capacity * step, 0.0
    for number in range(port.queues + CLASSES - 1, port.queues - 1, -1):
        queue = state.links[number]
        waiting = 0.0 if queue.paused else queue.queue + queue.arrived
        if queue.weight == 0:
            queue.room = min(waiting, left)
            left -= queue.room
        else:
            queue.room = -1.0 if waiting > 0 else 0.0
            weights += queue.weight if waiting > 0 else 0.0
    if weights > 0:
        _share_by_weights(state, port, left, weights)


@compiled
def _share_by_weights(state: StepState, port: Record, left: float, weights: float) -> None:
    """Classes that have less than their share leave the rest to the others (room below 0: not known yet)."""
    changes = True
    while changes:
        changes = False
        for number in range(port.queues, port.queues + CLASSES):
            queue = state.links[number]
            waiting = queue.queue + queue.arrived
            if queue.room < 0 and waiting * weights <= left * queue.weight:
                queue.room = waiting
                left = max(0.0, left - waiting)
                weights -= queue.weight
                changes = True
    for number in range(port.queues, port.queues + CLASSES):
        queue = state.links[number]
        if queue.room < 0:
            queue.room = left * queue.weight / weights


# -- what is active -------------------------------------------------------------------------------


@compiled
def list_active(state: StepState) -> None:
    """List the flows that are active, their links and hops, each link after those that lead to it."""
    old = state.link_starts[len(state.link_starts) - 1]
    for i in range(old):
        state.links[state.active_links[i]].is_active = 0
    count = 0
    for i in range(state.counts[ACTIVE]):
        number = state.active[i]
        flow = state.flows[number]
        if flow.is_active == LEAVES:
            clear(state, flow)
            flow.is_active = 0
        else:
            state.active[count] = number
            count += 1
    state.counts[ACTIVE], state.counts[CHANGED] = count, 0
    for i in range(count):
        flow = state.flows[state.active[i]]
        if state.laws[flow.law].fair:
            flow.together = _sent_together(state, flow)
        state.links[state.links[flow.host_link].port].is_active = 1
        for h in range(flow.first_hop, flow.first_hop + flow.hops):
            state.links[state.links[state.hops[h].link].port].is_active = 1
    for i in range(old):
        link = state.links[state.active_links[i]]
        if link.is_active == 0:
            _empty(link)
            for number in range(link.queues, link.queues + CLASSES if link.queues > 0 else 0):
                _empty(state.links[number])
    links = 0
    for i in range(count):
        links = _list_link(state, state.flows[state.active[i]].host_link, links)
    state.link_starts[1] = links
    for level in range(1, len(state.link_starts) - 1):
        for i in range(count):
            flow = state.flows[state.active[i]]
            for h in range(flow.first_hop, flow.first_hop + flow.hops):
                number = state.hops[h].link
                if state.levels[state.links[number].port] == level:
                    links = _list_link(state, number, links)
                    port = state.links[state.links[number].port]
                    state.hops[h].next_there, port.first_hop = port.first_hop, h
        state.link_starts[level + 1] = links
    _list_hops(state, links)


@compiled
def _sent_together(state: StepState, flow: Record) -> int:
    """The active flows of a flow's job that its host sends, itself included."""
    job, port, count = state.jobs[flow.job], state.links[flow.host_link].port, 0
    for number in range(job.first_flow, job.first_flow + job.flows):
        other = state.flows[number]
        if other.is_active and state.links[other.host_link].port == port:
            count += 1
    return count


@compiled
def _list_link(state: StepState, queue: int, count: int) -> int:
    """Add the link to which a queue belongs to those that are listed, if it is not there yet; returns their number."""
    number = state.links[queue].port
    if state.links[number].is_active == 1:
        state.links[number].is_active = 2
        state.links[number].first_hop = -1
        state.active_links[count] = number
        count += 1
    return count


@compiled
def _list_hops(state: StepState, links: int) -> None:
    place = 0
    for i in range(links):
        link = state.links[state.active_links[i]]
        link.first_place = place
        number = link.first_hop
        while number >= 0:
            state.active_hops[place] = number
            number = state.hops[number].next_there
            place += 1
        link.last_place = place


@compiled
def _empty(link: Record) -> None:
    link.queue = link.wait = link.marks = link.loss = 0.0
    link.pausing = link.paused = 0
