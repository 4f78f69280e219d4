"""What follows when something ends: a step of an iteration computes, sends its messages, and lets others begin."""

from __future__ import annotations

from placement.model.compiled import compiled
from placement.simulator.exact.event_heap import pop, put, soonest
from placement.simulator.network.laws.sending import begin_sending
from placement.simulator.network.laws.state import Record
from placement.simulator.network.steps.records import StepState

ACTIVE, CHANGED, FLOW_STEPS, STEPS, UNFINISHED = range(5)
"""Places in `StepState.counts`."""
LEAVING = 2
"""`is_active` of a flow that is on the list of active ones and has nothing to send any more."""


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
    job.began, job.latest = now, now
    job.pending = job.steps
    noise = int(state.noise[job.first_row + job.iteration])
    for number in range(job.first_step, job.first_step + job.steps):
        step = state.steps[number]
        step.waiting = step.waits
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
        if state.steps[step_number].pending == 0:
            _end_step(state, step_number, now)


@compiled
def _send_messages(state: StepState, number: int, now: int) -> None:
    step = state.steps[number]
    step.pending = step.messages
    for m in range(step.first_message, step.first_message + step.messages):
        message = state.messages[m]
        if message.flow < 0 or message.size <= 0:
            step.pending -= 1
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
        flow.iteration_left = flow.iteration_bytes
    if flow.head >= 0:
        state.messages[flow.tail].next = m
        flow.tail = m
        return
    flow.head = flow.tail = m
    flow.left = message.size
    flow.began = now
    begin_sending(state.laws[flow.law], flow, now, is_new)
    if flow.is_active == 0:
        state.active[state.counts[ACTIVE]] = message.flow
        state.counts[ACTIVE] += 1
        state.counts[CHANGED] = 1
        flow.read, flow.seen = state.counts[STEPS] + 1, 0.0
    flow.is_active = 1


@compiled
def finish_message(state: StepState, flow: Record) -> None:
    """The last byte of the flow's message was sent at `finished`: it arrives behind what is queued on its way."""
    m = flow.head
    put(state.events, len(state.steps) + m, flow.finished + int(flow.one_way + flow.wait))
    flow.head = state.messages[m].next
    if flow.head >= 0:
        flow.left = state.messages[flow.head].size
        flow.began = flow.finished


@compiled
def _end_step(state: StepState, number: int, now: int) -> None:
    step = state.steps[number]
    for i in range(step.first_next, step.first_next + step.nexts):
        follower = state.steps[state.nexts[i]]
        follower.waiting -= 1
        if follower.waiting == 0:
            put(state.events, state.nexts[i], now + follower.compute)
    job = state.jobs[step.job]
    job.pending -= 1
    if job.pending > 0:
        return
    state.begins[job.first_row + job.iteration] = job.began
    state.ends[job.first_row + job.iteration] = now
    job.iteration += 1
    if job.iteration < job.iterations:
        begin_iteration(state, step.job, now)
    else:
        state.counts[UNFINISHED] -= 1
