"""What follows when something ends: a step of an iteration computes, sends its messages, and lets others begin."""

from __future__ import annotations

import math

from placement.model.compiled import compiled
from placement.simulator.exact.event_heap import NEVER, pop, put, soonest
from placement.simulator.network.laws.sending import begin_sending
from placement.simulator.network.laws.state import Record
from placement.simulator.network.steps.lost import follow_back
from placement.simulator.network.steps.records import StepState
from placement.simulator.network.topology import CLASSES

ACTIVE, CHANGED, FLOW_STEPS, STEPS, UNFINISHED, NOW = range(6)
"""Places in `StepState.counts`."""
LEAVES = 2
"""Of a flow that is listed as active and has nothing left; 1: it is active, 0: it is not listed."""


@compiled
def draw(owner: Record) -> float:
    """A number in [0, 1) from the owner's own sequence (splitmix64), so that no other's draws change it."""
    owner.random = owner.random + 0x9E3779B97F4A7C15
    z = owner.random
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    z = z ^ (z >> 31)
    return float(z >> 11) / 9007199254740992.0


@compiled
def begin_iteration(state: StepState, job_number: int, now: int) -> None:
    """Begin the steps that wait for none, all with the same noise."""
    job = state.jobs[job_number]
    now = now + state.holds[job.first_row + job.iteration]
    job.began, job.latest = now, now
    job.pending, job.is_silent = job.steps, 1
    now += job.delay
    job.shifted, job.delay = job.delay, 0
    noise = int(state.noise[job.first_row + job.iteration])
    for number in range(job.first_step, job.first_step + job.steps):
        step = state.steps[number]
        step.waiting = step.waits
        step.begun, step.waited = now, -1
        if step.waits == 0:
            put(state.events, number, now + max(0, step.compute + noise))


@compiled
def handle_events(state: StepState, until: int) -> None:
    """Handle what is due until then, each at its own time."""
    while soonest(state.events) <= until:
        now = soonest(state.events)
        item = pop(state.events)
        step_number = item
        if item < len(state.steps):
            _send_messages(state, item, now)
        else:
            step_number = state.messages[item - len(state.steps)].step
            state.steps[step_number].pending -= 1
            state.steps[step_number].last = item - len(state.steps)
        if state.steps[step_number].pending == 0:
            _end_step(state, step_number, now)


@compiled
def _send_messages(state: StepState, number: int, now: int) -> None:
    step = state.steps[number]
    step.pending, step.last = step.messages, -1
    job = state.jobs[step.job]
    if job.is_silent and step.messages > 0:
        job.is_silent, job.told, job.first_sent = 0, 1, now
    for m in range(step.first_message, step.first_message + step.messages):
        message = state.messages[m]
        message.begun, message.waited = now, -1
        if message.size <= 0 or (message.flow < 0 and message.most == math.inf):
            step.pending -= 1
        elif message.flow < 0:
            put(state.events, len(state.steps) + m, now + int(message.size / message.most))
        else:
            _send(state, m, now)


@compiled
def _send(state: StepState, m: int, now: int) -> None:
    message = state.messages[m]
    flow = state.flows[message.flow]
    message.next = -1
    iteration = state.jobs[flow.job].iteration
    is_new = flow.iteration != iteration
    if is_new:
        flow.iteration = iteration
        flow.later = flow.iteration_bytes
    if flow.head >= 0:
        state.messages[flow.tail].next = m
        message.waited = flow.tail
        flow.tail = m
        return
    flow.tail = m
    _begin_message(state, flow, m, now)
    begin_sending(state.laws[flow.law], flow, now, is_new)
    if flow.is_cut == 0:
        activate(state, message.flow)


@compiled
def activate(state: StepState, number: int) -> None:
    """List a flow as active."""
    flow = state.flows[number]
    if flow.is_active == 0:
        state.active[state.counts[ACTIVE]] = number
        state.counts[ACTIVE] += 1
        state.counts[CHANGED] = 1
        flow.read, flow.seen = state.counts[STEPS] + 1, 0.0
    flow.is_active = 1


@compiled
def _begin_message(state: StepState, flow: Record, m: int, at: int) -> None:
    if flow.has_class:
        _choose_class(state, flow)
    message = state.messages[m]
    flow.head = m
    flow.left = message.size
    flow.later -= flow.left
    flow.burst_bytes, flow.burst_later = message.burst_bytes, message.burst_later
    flow.burst_scale = message.burst_scale
    flow.began = message.begun = at


@compiled
def finish_message(state: StepState, flow: Record) -> None:
    """The last byte of the flow's message was sent at `finished`: it arrives behind what is queued on its way.

    Where links have classes nobody knows how long that will take: it is called when it has left all queues.
    """
    m = flow.head
    waits = 0.0 if flow.has_class else flow.wait
    put(state.events, len(state.steps) + m, flow.finished + int(flow.one_way + waits))
    flow.head = -1
    if state.messages[m].next >= 0:
        _begin_message(state, flow, state.messages[m].next, flow.finished)


@compiled
def _choose_class(state: StepState, flow: Record) -> None:
    """Set the class of the message that begins where it depends on what remains.

    What is still queued, by then next to nothing, arrives at the new queues.
    """
    bounds = state.class_bounds
    if bounds[flow.job, 0] == NEVER:
        return
    left_ns = flow.later / flow.narrowest
    passed = 0
    while passed < CLASSES - 1 and bounds[flow.job, passed] <= left_ns:
        passed += 1
    wanted = CLASSES - 1 - passed
    if wanted == flow.traffic_class:
        return
    flow.traffic_class = wanted
    flow.host_link = _queue_of(state, flow.host_link, wanted)
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        hop = state.hops[h]
        before, after = state.links[hop.link], _queue_of(state, hop.link, wanted)
        before.queue = max(0.0, before.queue - hop.queue)
        hop.arrived, hop.queue, hop.link = hop.queue, 0.0, after
        if hop.next_link >= 0:
            hop.next_link = _queue_of(state, hop.next_link, wanted)


@compiled
def _queue_of(state: StepState, link: int, traffic_class: int) -> int:
    """The queue of a class at the link to which a queue belongs."""
    port = state.links[state.links[link].port]
    return port.queues + traffic_class if port.queues > 0 else link


@compiled
def clear(state: StepState, flow: Record) -> None:
    """Let the last fraction of a byte arrive."""
    for h in range(flow.first_hop, flow.first_hop + flow.hops):
        hop = state.hops[h]
        link = state.links[hop.link]
        link.queue = max(0.0, link.queue - hop.queue - hop.arrived)
        flow.delivered_in_all += hop.queue + hop.arrived
        hop.queue = hop.arrived = 0.0
    flow.wait = flow.delivered = flow.sent = flow.lost = flow.queue = 0.0
    flow.unmarked = 1.0


@compiled
def _end_step(state: StepState, number: int, now: int) -> None:
    step = state.steps[number]
    for i in range(step.first_next, step.first_next + step.nexts):
        follower = state.steps[state.nexts[i]]
        follower.waiting -= 1
        if follower.waiting == 0:
            follower.begun, follower.waited = now, number
            put(state.events, state.nexts[i], now + follower.compute)
    job = state.jobs[step.job]
    job.pending -= 1
    if job.pending > 0:
        return
    row = job.first_row + job.iteration
    state.begins[row], state.ends[row], state.marks[row] = job.began, now, 0.0
    for f in range(job.first_flow, job.first_flow + job.flows):
        state.marks[row] += state.flows[f].marked_in_all
    if state.lost.shape[2] > 0:
        follow_back(state, step.job, number, now)
    job.iteration += 1
    job.told = 0 if job.delay > 0 else job.told
    if job.iteration < job.iterations:
        begin_iteration(state, step.job, now)
    else:
        state.counts[UNFINISHED] -= 1
