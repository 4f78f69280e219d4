"""The steps of the published simulator, without those in which nothing can happen."""

from __future__ import annotations

from placement.model.compiled import compiled
from placement.simulator.published.communicating import (
    catch_up,
    communicate,
    end_local,
    end_transfers,
    ready,
)
from placement.simulator.published.computing import end_task, start_tasks
from placement.simulator.published.placing import arrive, leave, place
from placement.simulator.published.state import NEVER, PublishedState

_NEVER = int(NEVER)


@compiled
def _step(state: PublishedState) -> bool:
    """One millisecond of the published simulator, in its order; returns whether the next can differ."""
    clock = state.clock[0]
    _end(state)
    if clock.finished > 0:
        leave(state)
    arrive(state)
    place(state)
    if clock.local > 0:
        end_local(state)
    if clock.ask:
        communicate(state)
    if clock.woken > 0:
        start_tasks(state)
    return clock.retry or clock.ask or clock.finished > 0


@compiled
def _end(state: PublishedState) -> None:
    """End tasks and transfers server by server, because the order affects the rounding of workloads."""
    clock, gpus = state.clock[0], state.rules[0].gpus
    due = clock.due <= clock.now
    if due:
        catch_up(state)
        clock.ask = True
    for server in state.order:
        for gpu in range(server * gpus, (server + 1) * gpus):
            if state.ends[gpu] == clock.now and end_task(state, gpu):
                ready(state, state.task[gpu])
        if due and state.load[server] > 0:
            end_transfers(state, server)


@compiled
def _next(state: PublishedState) -> int:
    """The next step in which something ends or arrives."""
    clock = state.clock[0]
    following = clock.due
    if clock.arrived < len(state.jobs):
        following = min(following, state.jobs[clock.arrived].arrival)
    for end in state.ends:
        following = min(following, end)
    return following


@compiled
def run_to_end(state: PublishedState, every: bool) -> int:
    """Run a state to its end; returns the number of steps. `every` skips none, which changes no result."""
    clock = state.clock[0]
    while True:
        again = _step(state)
        if clock.left == len(state.jobs):
            return clock.now + 1
        clock.now = clock.now + 1 if again or every else _next(state)
