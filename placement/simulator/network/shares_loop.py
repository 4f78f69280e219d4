"""The events of jobs whose messages have max-min fair rates: iterations, steps of computing, messages and their ends.

When an iteration ends, its *critical path* is followed back: the step that ended last, its message that arrived last,
the message for which that one waited on its connection, the step for which its step waited. What these computed, would
have sent for at their peaks, lost, and waited for at a gate, is the duration of the iteration, but for its delay.
"""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled
from placement.model.state import Records
from placement.simulator.exact.event_heap import pop, put
from placement.simulator.network.class_shares import class_of, fill_by_class
from placement.simulator.network.max_min import PLANNED, WAITS, ShareState, enter, fill, leave, plant


@compiled
def advance(state: ShareState, until: int) -> bool:
    """Advance until a time; with `stops`, until jobs end or call the gate. False if the log or parts need room."""
    core, due = state.core[0], state.due
    while due.size[0] > 0 and due.due[due.order[0]] <= until:
        if core.logged + len(state.jobs) > len(state.ended):
            return False
        if core.attributes and core.free_parts < core.sending * core.most:
            return False
        core.now = due.due[due.order[0]]
        while due.size[0] > 0 and due.due[due.order[0]] == core.now:
            _happen(state, pop(due))
        refill(state)
        if core.stops and (core.finished > 0 or core.calls > 0):
            return True
    return True


@compiled
def refill(state: ShareState) -> None:
    """Give the messages that were noted, and those that they disturb, their rates."""
    if state.core[0].seeds > 0:
        if state.core[0].classed:
            fill_by_class(state)
        else:
            fill(state)


@compiled
def _happen(state: ShareState, item: int) -> None:
    messages, steps, jobs = len(state.messages), len(state.steps), len(state.jobs)
    if item < messages:
        _end_message(state, item)
    elif item < messages + steps:
        _continue_step(state, item - messages)
    elif item < messages + steps + jobs:
        _begin_iteration(state, item - messages - steps)
    else:
        plant(state, item - messages - steps - jobs)


@compiled
def _begin_iteration(state: ShareState, number: int) -> None:
    job = state.jobs[number]
    job.began, job.left, job.shifted = state.core[0].now - job.held, job.steps, job.held
    job.held, job.is_silent = 0, 1
    job.scale = max(0.0, 1 + job.noise * state.noise[number, job.number % state.noise.shape[1]])
    for place in range(job.first_connection, job.first_connection + job.connections):
        state.connections[place].sent = 0.0
    for place in range(job.first_step, job.first_step + job.steps):
        step = state.steps[place]
        step.pending, step.waited = step.waits, -1
        if step.waits == 0:
            _begin_step(state, place)


@compiled
def _begin_step(state: ShareState, number: int) -> None:
    step = state.steps[number]
    step.sending = 0
    step.begun, step.computed = state.core[0].now, np.int64(round(step.compute * state.jobs[step.job].scale))
    put(state.due, len(state.messages) + number, state.core[0].now + step.computed)


@compiled
def _continue_step(state: ShareState, number: int) -> None:
    """Send all messages of a step that has computed; end one whose messages have arrived."""
    step = state.steps[number]
    if step.sending:
        _end_step(state, number)
        return
    job = state.jobs[step.job]
    sends_at = may_send(state, step.job) if step.messages > 0 else 0
    if sends_at > state.core[0].now:
        step.asks = PLANNED
        put(state.due, len(state.messages) + number, sends_at)
        return
    if step.asks == PLANNED:
        step.asks = 0
    if job.is_silent and step.messages > 0:
        job.is_silent, job.told, job.first_sent = 0, 1, state.core[0].now
    if job.gated and step.messages > 0:
        if not job.granted:
            step.asks = job.asks = 1
            state.core[0].calls += 1
            return
        job.steps_sending += 1
    step.held = state.core[0].now - step.begun - step.computed
    step.sending, step.left = 1, step.messages
    step.arrived, step.last = state.core[0].now, -1
    for place in range(step.first, step.first + step.messages):
        message = state.messages[place]
        message.parts = message.behind = message.waited = -1
        if message.size == 0.0 or message.peak == np.inf:
            step.left -= 1
            continue
        connection = state.connections[message.connection]
        if connection.tail >= 0:
            state.messages[connection.tail].behind = place
            message.waited = connection.tail
        else:
            _send(state, place)
        connection.tail = place
    if step.left == 0:
        put(state.due, len(state.messages) + number, state.core[0].now)


@compiled
def may_send(state: ShareState, number: int) -> int:
    """When the present iteration of a job may send, by its plan."""
    job = state.jobs[number]
    entry = job.number - job.plan
    return state.plans[number, entry] if 0 <= entry < job.planned else 0


@compiled
def _send(state: ShareState, number: int) -> None:
    message = state.messages[number]
    message.sending, message.left, message.since = 1, message.size, state.core[0].now
    message.passed = message.passed_in = 0.0
    if state.core[0].classed:
        message.priority = class_of(state, message)
    if message.down >= 0:
        message.sending, message.counted = WAITS, state.core[0].now
    else:
        enter(state, number)


@compiled
def _end_message(state: ShareState, number: int) -> None:
    message = state.messages[number]
    leave(state, number)
    message.sending = 0
    connection = state.connections[message.connection]
    connection.sent += message.size
    if message.behind >= 0:
        _send(state, message.behind)
    else:
        connection.tail = -1
    step = state.steps[message.step]
    step.left -= 1
    arrived = state.core[0].now + message.delay
    if arrived >= step.arrived:
        step.arrived, step.last = arrived, number
    if step.left == 0:
        put(state.due, len(state.messages) + message.step, step.arrived)


@compiled
def _end_step(state: ShareState, number: int) -> None:
    step = state.steps[number]
    for place in range(step.first_next, step.first_next + step.nexts):
        other = state.steps[state.nexts[place]]
        other.pending -= 1
        if other.pending == 0:
            other.waited = number
            _begin_step(state, state.nexts[place])
    job = state.jobs[step.job]
    if job.gated and step.messages > 0:
        job.steps_sending -= 1
        if job.steps_sending == 0:
            job.granted, job.gives_back = 0, 1
            state.core[0].calls += 1
    job.left -= 1
    if job.left == 0:
        _end_iteration(state, step.job, number)


@compiled
def _end_iteration(state: ShareState, number: int, last_step: int) -> None:
    core, job = state.core[0], state.jobs[number]
    entry = state.ended[core.logged]
    entry.job, entry.began, entry.ended = number, job.began, core.now
    entry.unhindered, entry.waited = _follow_back(state, job, last_step)
    core.logged += 1
    drop_parts(state, job)
    job.number += 1
    if job.number >= job.iterations:
        core.finished += 1
        return
    job.held, job.delay = job.delay, 0
    if job.held > 0:
        job.told = 0
    put(state.due, len(state.messages) + len(state.steps) + number, core.now + job.held)


@compiled
def drop_parts(state: ShareState, job: Records) -> None:
    """Forget the lost time of a job's messages that was on no critical path."""
    for place in range(job.first_message, job.first_message + job.messages):
        message = state.messages[place]
        while message.parts >= 0:
            part = message.parts
            message.parts = state.parts[part].next
            _free(state, part)


@compiled
def _follow_back(state: ShareState, job: Records, step_number: int) -> tuple[float, float]:
    """Add up the critical path without what was lost on it, which is added to the job's parts, and its waiting."""
    unhindered, waited = 0.0, float(job.shifted)
    while step_number >= 0:
        number = state.steps[step_number].last
        if number >= 0:
            unhindered += state.messages[number].delay
        while number >= 0:
            message = state.messages[number]
            unhindered += message.passed_in + (message.size - message.passed) / message.peak
            _move_parts(state, message, job)
            step_number = message.step
            number = message.waited
        step = state.steps[step_number]
        unhindered += step.computed
        waited += step.held
        step_number = step.waited
    return unhindered, waited


@compiled
def _move_parts(state: ShareState, message: Records, job: Records) -> None:
    while message.parts >= 0:
        number = message.parts
        part = state.parts[number]
        message.parts = part.next
        same = job.parts
        while same >= 0 and (
            state.parts[same].neighbour != part.neighbour or state.parts[same].link != part.link
        ):
            same = state.parts[same].next
        if same >= 0:
            state.parts[same].lost += part.lost
            _free(state, number)
        else:
            part.next, job.parts = job.parts, number


@compiled
def _free(state: ShareState, number: int) -> None:
    core = state.core[0]
    state.parts[number].next = core.free
    core.free = number
    core.free_parts += 1
