"""Look-ahead: the best placements and waiting are tried by simulating the present jobs to their end under a rule."""

from __future__ import annotations

from placement.model.compiled import compiled, compiled_with_arrays
from placement.policies.schedulers.contention.marginal import greedy, reopt
from placement.policies.schedulers.contention.places import (
    find_heads,
    fits,
    gain,
    start,
    update_room,
    weigh_running,
    weight,
)
from placement.policies.schedulers.contention.rounds import (
    begin_decision,
    end_decision,
    pass_rounds,
    run_round,
)
from placement.policies.schedulers.contention.rule import REOPT_LOOK
from placement.policies.schedulers.contention.world import RoundsWorld

A_CANDIDATE = 3
"""The most placements of one candidate that are tried."""

EQUAL_S = 1e-6
"""Sums of completion times that differ by less are equal, and the first choice wins."""

BASE, PLACE, WAIT, NOTHING = range(4)
"""A choice: what the base rule does now, a placement, nothing until some job finishes, or nothing in this round."""

NEVER = 1e300
"""The sum of completion times of what is not worth simulating to its end."""


@compiled_with_arrays
def decide_ahead(world: RoundsWorld, trial: RoundsWorld) -> None:
    """Take the best choice again and again, until it is to place nothing more in this round."""
    core = world.core[0]
    replans = core.family == REOPT_LOOK
    while True:
        count = find_choices(world, core.choices)
        may_wait = core.running > 0
        if count == 0 and not replans:
            return
        if count == 0 and not reopt_would_act(world, trial):
            return
        kind, number = best_choice(world, trial, count, may_wait, replans)
        if kind == WAIT:
            return
        if kind == BASE:
            reopt(world)
            return
        chosen = world.choices[number]
        job, cell = chosen.job, chosen.cell
        start(world, job, cell, chosen.nodes, weight(world, job) * world.cells[cell].speed)


@compiled_with_arrays
def best_choice(
    world: RoundsWorld, trial: RoundsWorld, count: int, may_wait: bool, replans: bool
) -> tuple[int, int]:
    """The choice with the least sum of completion times, as (BASE, PLACE or WAIT, number of the placement)."""
    if count == 1 and not may_wait and not replans:
        return PLACE, 0
    found, found_number, best = WAIT, -1, NEVER
    if replans:
        found, best = BASE, simulated(world, trial, BASE, 0, best)
    for number in range(count):
        total = simulated(world, trial, PLACE, number, best)
        if total < best - EQUAL_S:
            found, found_number, best = PLACE, number, total
    if may_wait and simulated(world, trial, WAIT, 0, best) < best - EQUAL_S:
        return WAIT, -1
    return found, found_number


@compiled_with_arrays
def simulated(world: RoundsWorld, trial: RoundsWorld, choice: int, number: int, best: float) -> float:
    """The sum of the times at which the present jobs end, from now, after a choice; infinite once it exceeds `best`."""
    copy_to(world, trial)
    core = trial.core[0]
    if choice == PLACE:
        chosen = world.choices[number]
        job, cell = chosen.job, chosen.cell
        start(trial, job, cell, chosen.nodes, weight(trial, job) * trial.cells[cell].speed)
    waits, decided, now_s = choice == WAIT, False, 0.0
    while core.waiting > 0 or core.running > 0:
        if decided:
            begin_decision(trial)
        decided = True
        if not waits and (choice != NOTHING or now_s > 0.0) and core.waiting + core.running > 0:
            if core.family == REOPT_LOOK:
                reopt(trial)
            elif core.news or now_s == 0.0:
                greedy(trial)
        end_decision(trial)
        before = core.running
        if run_round(trial, now_s) > 0:
            waits = False
        elif before == 0:
            return NEVER
        else:
            now_s += pass_rounds(trial) * core.round_s
        now_s += core.round_s
        if core.finish_sum + (core.waiting + core.running) * now_s > best:
            return NEVER
    return core.finish_sum


@compiled_with_arrays
def copy_to(world: RoundsWorld, trial: RoundsWorld) -> None:
    """Copy the state of the jobs that are present."""
    core = world.core[0]
    trial.core[0] = core
    trial.core[0].finish_sum = 0.0
    for position in range(core.waiting):
        job = world.queue[position]
        trial.queue[position] = job
        trial.jobs[job] = world.jobs[job]
    for slot in range(core.running):
        trial.slots[slot] = world.slots[slot]
        trial.jobs[world.slots[slot].job] = world.jobs[world.slots[slot].job]
    for node in range(len(world.free)):
        trial.free[node] = world.free[node]
    update_room(trial)


@compiled_with_arrays
def reopt_would_act(world: RoundsWorld, trial: RoundsWorld) -> bool:
    """Whether `reopt` would change anything now."""
    copy_to(world, trial)
    reopt(trial)
    if trial.core[0].running != world.core[0].running:
        return True
    for slot in range(world.core[0].running):
        old, new = world.slots[slot], trial.slots[slot]
        if old.job != new.job or old.cell != new.cell or old.nodes != new.nodes:
            return True
    return False


@compiled_with_arrays
def find_choices(world: RoundsWorld, most: int) -> int:
    """Set `choices` to the placements with the largest gain a GPU, a few of each candidate; returns their number."""
    find_heads(world)
    weigh_running(world)
    count = 0
    for number in range(len(world.heads)):
        head = world.heads[number]
        if head >= 0:
            count = merge(world, count, find_places(world, head, most), most)
    return count


@compiled_with_arrays
def find_places(world: RoundsWorld, job: int, offset: int) -> int:
    """Put the best placements of a job into `choices` behind `offset`; returns their number."""
    number = world.jobs[job].kind
    kind, own, count = world.kinds[number], weight(world, job), 0
    for cell in range(kind.first, kind.first + kind.cells):
        for each in range(world.cells[cell].first, world.cells[cell].first + world.cells[cell].sets):
            nodes = world.sets[each]
            if fits(world, cell, nodes):
                worth = gain(world, own, cell, nodes) / kind.gpus
                count = insert(world, offset, count, A_CANDIDATE, job, cell, nodes, worth)
    return count


@compiled_with_arrays
def merge(world: RoundsWorld, count: int, more: int, most: int) -> int:
    """Merge the placements behind `most` into those before it; returns how many there are now."""
    for each in range(more):
        added = world.choices[most + each]
        count = insert(world, 0, count, most, added.job, added.cell, added.nodes, added.worth)
    return count


@compiled
def insert(
    world: RoundsWorld, offset: int, count: int, most: int, job: int, cell: int, nodes: int, worth: float
) -> int:
    """Insert a placement into a part of `choices` that is sorted by worth; of equals the first stays first."""
    position = count
    while position > 0 and world.choices[offset + position - 1].worth < worth:
        position -= 1
    if position >= most:
        return count
    last = min(count, most - 1)
    while last > position:
        world.choices[offset + last] = world.choices[offset + last - 1]
        last -= 1
    chosen = world.choices[offset + position]
    chosen.job, chosen.cell, chosen.nodes, chosen.worth = job, cell, nodes, worth
    return min(count + 1, most)
