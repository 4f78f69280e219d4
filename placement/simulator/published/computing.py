"""The GPUs' work: the ends and starts of forward and backward passes."""

from __future__ import annotations

from placement.model.compiled import compiled
from placement.simulator.published.state import NEVER, Phase, PublishedState

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
