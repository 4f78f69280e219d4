"""The rules of marginal gain: `greedy` only starts jobs, `reopt` also stops and moves them."""

from __future__ import annotations

from placement.model.compiled import compiled_with_arrays
from placement.policies.schedulers.contention.places import (
    EQUAL,
    find_heads,
    fits,
    gain,
    remove_slot,
    start,
    stop,
    update_room,
    utility,
    weigh_running,
    weight,
)
from placement.policies.schedulers.contention.world import RoundsWorld

MOST_CHANGES = 60
"""`reopt` stops or moves at most so many jobs in a round."""

_LEAST_RISE = 1e-9


@compiled_with_arrays
def greedy(world: RoundsWorld) -> None:
    """While some gain is more than 0, start the candidate with the largest gain a GPU."""
    weigh_running(world)
    while True:
        job, cell, nodes, own = best_start(world)
        if job < 0:
            return
        start(world, job, cell, nodes, own * world.cells[cell].speed)


@compiled_with_arrays
def best_start(world: RoundsWorld) -> tuple[int, int, int, float]:
    """The start with the largest gain a GPU, as (job, cell, nodes, weight); job -1 if no gain is more than 0."""
    find_heads(world)
    job, found_cell, found_nodes, found_weight, best = -1, 0, 0, 0.0, 0.0
    for number in range(len(world.heads)):
        head = world.heads[number]
        if head < 0:
            continue
        kind, own = world.kinds[number], weight(world, head)
        for cell in range(kind.first, kind.first + kind.cells):
            for each in range(world.cells[cell].first, world.cells[cell].first + world.cells[cell].sets):
                nodes = world.sets[each]
                if not fits(world, cell, nodes):
                    continue
                worth = gain(world, own, cell, nodes) / kind.gpus
                if worth > best + EQUAL:
                    job, found_cell, found_nodes, found_weight, best = head, cell, nodes, own, worth
    return job, found_cell, found_nodes, found_weight


@compiled_with_arrays
def reopt(world: RoundsWorld) -> None:
    """As `greedy`; when nothing gains any more, stop or replace a running job if that raises U by more than h * U."""
    weigh_running(world)
    for _ in range(MOST_CHANGES):
        greedy(world)
        slot, job, cell, nodes, rise = best_change(world)
        if slot < 0 or not rise > max(_LEAST_RISE, world.core[0].hysteresis * utility(world)):
            return
        stop(world, slot)
        if job >= 0:
            start(world, job, cell, nodes, weight(world, job) * world.cells[cell].speed)
    greedy(world)


@compiled_with_arrays
def best_change(world: RoundsWorld) -> tuple[int, int, int, int, float]:
    """The change that raises U most: (slot to stop, job to start or -1, cell, nodes, rise); slot -1 if none runs."""
    before = utility(world)
    found, found_job, found_cell, found_nodes, best = -1, -1, 0, 0, -1e300
    for slot in range(world.core[0].running):
        lift(world, slot)
        stopped = world.spare_slots[slot].job
        without = utility(world) - before
        if without > best + EQUAL:
            found, found_job, best = slot, -1, without
        for number in range(len(world.heads) + 1):
            head = stopped if number == len(world.heads) else world.heads[number]
            if head < 0:
                continue
            kind, own = world.kinds[world.jobs[head].kind], weight(world, head)
            if without + own <= best:  # no gain is larger than the weight
                continue
            for cell in range(kind.first, kind.first + kind.cells):
                for each in range(world.cells[cell].first, world.cells[cell].first + world.cells[cell].sets):
                    nodes = world.sets[each]
                    if not fits(world, cell, nodes):
                        continue
                    rise = without + gain(world, own, cell, nodes)
                    if rise > best + EQUAL:
                        found, found_job, found_cell, found_nodes, best = slot, head, cell, nodes, rise
        put_back(world)
    return found, found_job, found_cell, found_nodes, best


@compiled_with_arrays
def lift(world: RoundsWorld, slot: int) -> None:
    """Take a running job out for a trial; `put_back` ends the trial."""
    for each in range(world.core[0].running):
        world.spare_slots[each] = world.slots[each]
    for node in range(len(world.free)):
        world.spare_free[node] = world.free[node]
    remove_slot(world, slot)


@compiled_with_arrays
def put_back(world: RoundsWorld) -> None:
    """Restore what was there before `lift`."""
    world.core[0].running += 1
    for each in range(world.core[0].running):
        world.slots[each] = world.spare_slots[each]
    for node in range(len(world.free)):
        world.free[node] = world.spare_free[node]
    update_room(world)
