"""Where jobs run and beside whom: starts, stops and ratios; and what starts are worth, the gains of `marginal`."""

from __future__ import annotations

import math

from placement.model.compiled import compiled, compiled_with_arrays
from placement.model.throughput_table import FLOOR
from placement.policies.schedulers.contention.world import MINIMUM, PRODUCT, RUNS, SUM, WAITS, RoundsWorld


@compiled
def combined(world: RoundsWorld, raw: float, ratio: float) -> float:
    """The combination of a job's ratios with one more.

    Raises:
        ValueError: there is no such combination.
    """
    combination = world.core[0].combination
    if combination == MINIMUM:
        return min(raw, ratio)
    if combination == PRODUCT:
        return raw * ratio
    if combination == SUM:
        return 1 / (1 / raw + (1 / ratio - 1))
    raise ValueError("combination of ratios: expected one of placement.policies.schedulers.contention.world")


@compiled
def floored(raw: float) -> float:
    """The ratio r of a job."""
    return max(raw, FLOOR)


@compiled
def fits(world: RoundsWorld, cell: int, nodes: int) -> bool:
    """Whether these nodes have room for the cell."""
    return nodes & ~world.room[world.cells[cell].gpus] == 0


@compiled
def update_room(world: RoundsWorld) -> None:
    """Recount which nodes have how many free GPUs."""
    for gpus in range(len(world.room)):
        nodes = 0
        for node in range(len(world.free)):
            if world.free[node] >= gpus:
                nodes |= 1 << node
        world.room[gpus] = nodes


@compiled
def change_free(world: RoundsWorld, nodes: int, gpus: int) -> None:
    """Add GPUs to the free ones of each of these nodes."""
    for node in range(len(world.free)):
        if nodes >> node & 1:
            world.free[node] += gpus


@compiled_with_arrays
def insert_slot(world: RoundsWorld, job: int, cell: int, nodes: int, value: float) -> None:
    """Add a running job, and lower the ratios of its neighbours."""
    core, slots, raw = world.core[0], world.slots, 1.0
    for slot in range(core.running):
        other = slots[slot]
        if other.nodes & nodes:
            raw = combined(world, raw, world.ratios[cell, other.cell])
            other.raw = combined(world, other.raw, world.ratios[other.cell, cell])
    slot = core.running
    while slot > 0 and slots[slot - 1].job > job:
        slots[slot] = slots[slot - 1]
        slot -= 1
    added = slots[slot]
    added.job, added.cell, added.nodes, added.raw, added.value = job, cell, nodes, raw, value
    core.running += 1
    change_free(world, nodes, -world.cells[cell].gpus)
    update_room(world)


@compiled_with_arrays
def remove_slot(world: RoundsWorld, slot: int) -> None:
    """Remove a running job, and raise the ratios of those that it leaves."""
    core, slots = world.core[0], world.slots
    change_free(world, slots[slot].nodes, world.cells[slots[slot].cell].gpus)
    for later in range(slot + 1, core.running):
        slots[later - 1] = slots[later]
    core.running -= 1
    set_ratios(world)
    update_room(world)


@compiled_with_arrays
def set_ratios(world: RoundsWorld) -> None:
    """Set the ratios of all running jobs anew."""
    core, slots = world.core[0], world.slots
    for slot in range(core.running):
        cell, nodes, raw = slots[slot].cell, slots[slot].nodes, 1.0
        for other in range(core.running):
            if other != slot and slots[other].nodes & nodes:
                raw = combined(world, raw, world.ratios[cell, slots[other].cell])
        slots[slot].raw = raw


@compiled_with_arrays
def start(world: RoundsWorld, job: int, cell: int, nodes: int, value: float) -> None:
    """Start a waiting job."""
    core = world.core[0]
    position = 0
    while world.queue[position] != job:
        position += 1
    for later in range(position + 1, core.waiting):
        world.queue[later - 1] = world.queue[later]
    core.waiting -= 1
    started = world.jobs[job]
    started.state, started.cell, started.nodes = RUNS, cell, nodes
    insert_slot(world, job, cell, nodes, value)


@compiled_with_arrays
def stop(world: RoundsWorld, slot: int) -> None:
    """Stop a running job: it goes to the queue's end."""
    core, job = world.core[0], world.slots[slot].job
    world.jobs[job].state = WAITS
    world.queue[core.waiting] = job
    core.waiting += 1
    remove_slot(world, slot)


@compiled_with_arrays
def stop_contended(world: RoundsWorld, least: float, exempt: int) -> None:
    """Stop all running jobs whose last ratio is at most `least`, in the order in which they were started.

    Args:
        world: between two rounds.
        least: the largest ratio at which a job is stopped.
        exempt: rounds after a start in which a job is not stopped.
    """
    jobs = world.jobs
    while True:
        found = -1
        for slot in range(world.core[0].running):
            job = jobs[world.slots[slot].job]
            if job.ratio > least or job.rounds <= exempt:
                continue
            if found < 0 or job.started < jobs[world.slots[found].job].started:
                found = slot
        if found < 0:
            return
        stop(world, found)
        world.core[0].news = True


# -- what starts are worth ---------------------------------------------------------------------------------------------
# Gains of starting jobs: how much the weighted sum of speeds rises, the losses of neighbours taken off.


EQUAL = 1e-12
"""Gains that differ by less are equal, and the first wins."""

_HOUR_S, _LEAST_S = 3600.0, 60.0


@compiled
def remaining_s(world: RoundsWorld, job: int) -> float:
    """The remaining time of a job, at the best isolated throughput of its kind."""
    return world.jobs[job].remaining / world.kinds[world.jobs[job].kind].best


@compiled
def weight(world: RoundsWorld, job: int) -> float:
    """w, the weight of a job in the marginal rules: jobs with little left count more."""
    return math.sqrt(_HOUR_S / max(remaining_s(world, job), _LEAST_S))


@compiled_with_arrays
def gain(world: RoundsWorld, own: float, cell: int, nodes: int) -> float:
    """The change of the sum of weighted speeds if a job of this weight were started there."""
    raw, loss = 1.0, 0.0
    slots = world.slots
    for slot in range(world.core[0].running):
        other = slots[slot]
        if other.nodes & nodes:
            raw = combined(world, raw, world.ratios[cell, other.cell])
            after = combined(world, other.raw, world.ratios[other.cell, cell])
            loss += other.value * (floored(other.raw) - floored(after))
    return own * world.cells[cell].speed * floored(raw) - loss


@compiled
def utility(world: RoundsWorld) -> float:
    """U, the sum of weighted speeds of the running jobs."""
    total = 0.0
    for slot in range(world.core[0].running):
        total += world.slots[slot].value * floored(world.slots[slot].raw)
    return total


@compiled
def weigh_running(world: RoundsWorld) -> None:
    """Give the running jobs the weights of the marginal rules."""
    for slot in range(world.core[0].running):
        running = world.slots[slot]
        running.value = weight(world, running.job) * world.cells[running.cell].speed


@compiled
def weigh_running_by_gpus(world: RoundsWorld) -> None:
    """Give the running jobs their GPUs as weights."""
    for slot in range(world.core[0].running):
        running = world.slots[slot]
        gpus = world.cells[running.cell].gpus * world.cells[running.cell].nodes
        running.value = gpus * world.cells[running.cell].speed


@compiled
def find_heads(world: RoundsWorld) -> None:
    """Set `heads`: of each kind, the waiting job with the least left, and of equals the first."""
    jobs, heads = world.jobs, world.heads
    for kind in range(len(heads)):
        heads[kind] = -1
    for position in range(world.core[0].waiting):
        job = world.queue[position]
        head = heads[jobs[job].kind]
        if (
            head < 0
            or jobs[job].remaining < jobs[head].remaining
            or (jobs[job].remaining == jobs[head].remaining and job < head)
        ):
            heads[jobs[job].kind] = job
