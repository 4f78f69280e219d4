"""The iterations of the published simulator: forward and backward passes on GPUs, and all-reduces."""

from __future__ import annotations

import math

from placement.model.compiled import compiled
from placement.simulator.published.state import (
    ADA_DUAL,
    ASKED_FOR,
    MS_PER_MB,
    NEVER,
    PENALTY_MS_PER_MB,
    Phase,
    PublishedState,
)

# -- the GPUs' work ----------------------------------------------------------------------------------------------------

_NEVER = int(NEVER)
_FORWARD, _BACKWARD, _COMPUTED = (int(phase) for phase in Phase)


@compiled
def wake(state: PublishedState, gpu: int) -> None:
    """Mark a GPU that may have a new task in this step."""
    clock = state.clock[0]
    if not state.is_woken[gpu]:
        state.is_woken[gpu] = True
        state.woken[clock.woken] = gpu
        clock.woken += 1


@compiled
def end_task(state: PublishedState, gpu: int) -> bool:
    """End the GPU's task; returns whether all workers of its job have computed in this iteration."""
    job = state.task[gpu]
    record = state.jobs[job]
    if state.phase[job, gpu] == _FORWARD:
        duration = record.forward
        state.phase[job, gpu] = _BACKWARD
    else:
        duration = record.backward
        state.phase[job, gpu] = _COMPUTED
        record.computing -= 1
    state.active[gpu] += duration
    state.workload[gpu] -= duration
    record.remaining -= duration
    state.ends[gpu] = _NEVER
    state.clock[0].events += 1
    wake(state, gpu)
    return record.computing == 0 and state.phase[job, gpu] == _COMPUTED


@compiled
def start_tasks(state: PublishedState) -> None:
    """Start on every idle GPU the worker whose job has the least service left."""
    clock = state.clock[0]
    for at in range(clock.woken):
        gpu = state.woken[at]
        state.is_woken[gpu] = False
        if state.ends[gpu] == _NEVER:
            _start_task(state, gpu)
    clock.woken = 0


@compiled
def _start_task(state: PublishedState, gpu: int) -> None:
    jobs, least = state.jobs, -1
    for at in range(state.hosted[gpu]):
        job = state.hosts[gpu, at]
        if state.phase[job, gpu] == _COMPUTED or jobs[job].done:
            continue
        if least < 0 or jobs[job].remaining < jobs[least].remaining:
            least = job
    if least >= 0:
        forward = state.phase[least, gpu] == _FORWARD
        state.task[gpu] = least
        duration = jobs[least].forward if forward else jobs[least].backward
        state.ends[gpu] = state.clock[0].now + duration


# -- all-reduces: admission, rates and ends of transfers ---------------------------------------------------------------

_ROUNDING = 1e-6


@compiled
def ready(state: PublishedState, job: int) -> None:
    """Queue a job whose workers have all computed for communication, if it is on several servers."""
    clock, record = state.clock[0], state.jobs[job]
    record.ready = clock.now
    if record.servers == 1:
        state.local[clock.local] = job
        clock.local += 1
        return
    at = clock.waiting
    while at > 0 and _is_before(state, job, state.waiting[at - 1]):
        state.waiting[at] = state.waiting[at - 1]
        at -= 1
    state.waiting[at] = job
    clock.waiting += 1
    clock.ask = True


@compiled
def _is_before(state: PublishedState, job: int, other: int) -> bool:
    one, two = state.jobs[job], state.jobs[other]
    if one.remaining != two.remaining:
        return one.remaining < two.remaining
    return one.place < two.place


@compiled
def catch_up(state: PublishedState) -> None:
    """Advance the transfers at their rates up to the last step, one step at a time, because rounding depends on it."""
    until = state.clock[0].now - 1
    for at in range(state.clock[0].transfers):
        record = state.jobs[state.transfers[at]]
        sent, speed = record.sent, record.speed
        for _ in range((1 + record.asks) * (until - record.updated)):
            sent += speed
        record.sent, record.updated = sent, until


@compiled
def end_transfers(state: PublishedState, server: int) -> None:
    """End the transfers on this server that are done; a job continues at the first of its servers."""
    kept, now = 0, state.clock[0].now
    for at in range(state.load[server]):
        job = state.sending[server, at]
        record = state.jobs[job]
        if now >= record.updated + (record.size - record.sent) / record.speed:
            if record.sending:
                _end_transfer(state, job)
        else:
            state.sending[server, kept] = job
            kept += 1
    state.load[server] = kept


@compiled
def _end_transfer(state: PublishedState, job: int) -> None:
    clock, record = state.clock[0], state.jobs[job]
    record.sending = False
    record.transfers += 1
    record.link_wait += record.started - record.ready
    record.communication += clock.now - record.started
    at = 0
    while state.transfers[at] != job:
        at += 1
    clock.transfers -= 1
    state.transfers[at] = state.transfers[clock.transfers]
    clock.events += 1
    _end_iteration(state, job)


@compiled
def end_local(state: PublishedState) -> None:
    """End the iterations of single-server jobs that have computed."""
    clock = state.clock[0]
    for at in range(clock.local):
        _end_iteration(state, state.local[at])
    clock.local = 0


@compiled
def _end_iteration(state: PublishedState, job: int) -> None:
    clock, record = state.clock[0], state.jobs[job]
    record.gpu_wait += record.ready - record.began - record.forward - record.backward
    record.began = clock.now
    record.iterations -= 1
    record.computing = record.workers
    if record.iterations == 0:
        record.done = True
        record.ended = clock.now
        clock.finished += 1
    for worker in range(record.workers):
        gpu = state.workers[job, worker]
        state.phase[job, gpu] = _FORWARD
        state.workload[gpu] -= record.charge
        wake(state, gpu)


@compiled
def communicate(state: PublishedState) -> None:
    """Start admitted transfers of waiting jobs, and recompute the speeds of all transfers."""
    clock, kept = state.clock[0], 0
    catch_up(state)
    for at in range(clock.transfers):
        state.jobs[state.transfers[at]].asks = 0
    waiting = clock.waiting
    for at in range(waiting):
        job = state.waiting[at]
        if _may_start(state, job):
            _start(state, job)
        else:
            state.waiting[kept] = job
            kept += 1
    clock.waiting = kept
    _set_speeds(state)
    # A start can change the answer for a job, also for those that asked before.
    clock.ask = kept < waiting


@compiled
def _may_start(state: PublishedState, job: int) -> bool:
    most, load, fullest = state.rules[0].most, 0, -1
    for at in range(state.jobs[job].servers):
        server = state.spread[job, at]
        if state.load[server] > load:
            load, fullest = state.load[server], server
    if most != ADA_DUAL:
        return load < most
    if load == 0:
        return True
    if load > 1:
        return False
    rest = _ask(state, state.sending[fullest, 0])
    return not rest / state.jobs[job].size < ASKED_FOR


@compiled
def _ask(state: PublishedState, job: int) -> float:
    """The remainder of the job's transfer. With the defect, the query advances the transfer at no cost of time."""
    record = state.jobs[job]
    sent = record.sent + (state.clock[0].now - record.updated) * record.speed
    if state.rules[0].defect:
        record.sent = sent
        record.asks += 1
    return record.size - sent


@compiled
def _start(state: PublishedState, job: int) -> None:
    clock, record = state.clock[0], state.jobs[job]
    record.sending = True
    record.sent, record.speed, record.asks = 0.0, 0.0, 0
    record.updated = record.started = clock.now
    state.transfers[clock.transfers] = job
    clock.transfers += 1
    for at in range(record.servers):
        server = state.spread[job, at]
        state.sending[server, state.load[server]] = job
        state.load[server] += 1


@compiled
def _set_speeds(state: PublishedState) -> None:
    clock, now = state.clock[0], state.clock[0].now
    clock.due = _NEVER
    for at in range(clock.transfers):
        job = state.transfers[at]
        record = state.jobs[job]
        record.sent += (now - record.updated) * record.speed
        record.updated = now
        record.speed = 1 / _pace_ms_per_mb(state, job)
        clock.due = min(clock.due, now + _steps(record.size - record.sent, record.speed, record.asks))


@compiled
def _pace_ms_per_mb(state: PublishedState, job: int) -> float:
    load = 0
    for at in range(state.jobs[job].servers):
        load = max(load, state.load[state.spread[job, at]])
    return (load - 1) * PENALTY_MS_PER_MB + load * MS_PER_MB


@compiled
def _steps(rest: float, speed: float, asks: int) -> int:
    """The number of steps until a transfer is done; rather one too few than one too many where rounding matters."""
    return 1 + max(0, math.ceil((rest / speed - 1) / (1 + asks) - _ROUNDING))
