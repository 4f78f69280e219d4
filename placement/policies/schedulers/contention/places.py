"""Starts and stops of jobs in a `World`, and the ratios that follow from who shares nodes."""

from __future__ import annotations

from placement.model.compiled import compiled, compiled_with_arrays
from placement.model.throughput_table import FLOOR
from placement.policies.schedulers.contention.world import MINIMUM, PRODUCT, RUNS, WAITS, World


@compiled
def combined(world: World, raw: float, ratio: float) -> float:
    """The combination of a job's ratios with one more."""
    if world.core[0].combination == MINIMUM:
        return min(raw, ratio)
    if world.core[0].combination == PRODUCT:
        return raw * ratio
    return 1 / (1 / raw + (1 / ratio - 1))


@compiled
def floored(raw: float) -> float:
    """The ratio r of a job."""
    return max(raw, FLOOR)


@compiled
def fits(world: World, cell: int, nodes: int) -> bool:
    """Whether these nodes have room for the cell."""
    return nodes & ~world.room[world.cells[cell].gpus] == 0


@compiled
def update_room(world: World) -> None:
    """Recount which nodes have how many free GPUs."""
    for gpus in range(len(world.room)):
        nodes = 0
        for node in range(len(world.free)):
            if world.free[node] >= gpus:
                nodes |= 1 << node
        world.room[gpus] = nodes


@compiled
def change_free(world: World, nodes: int, gpus: int) -> None:
    """Add GPUs to the free ones of each of these nodes."""
    for node in range(len(world.free)):
        if nodes >> node & 1:
            world.free[node] += gpus


@compiled_with_arrays
def insert_slot(world: World, job: int, cell: int, nodes: int, value: float) -> None:
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
def remove_slot(world: World, slot: int) -> None:
    """Remove a running job, and raise the ratios of those that it leaves."""
    core, slots = world.core[0], world.slots
    change_free(world, slots[slot].nodes, world.cells[slots[slot].cell].gpus)
    for later in range(slot + 1, core.running):
        slots[later - 1] = slots[later]
    core.running -= 1
    set_ratios(world)
    update_room(world)


@compiled_with_arrays
def set_ratios(world: World) -> None:
    """Set the ratios of all running jobs anew."""
    core, slots = world.core[0], world.slots
    for slot in range(core.running):
        cell, nodes, raw = slots[slot].cell, slots[slot].nodes, 1.0
        for other in range(core.running):
            if other != slot and slots[other].nodes & nodes:
                raw = combined(world, raw, world.ratios[cell, slots[other].cell])
        slots[slot].raw = raw


@compiled_with_arrays
def start(world: World, job: int, cell: int, nodes: int, value: float) -> None:
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
def stop(world: World, slot: int) -> None:
    """Stop a running job: it goes to the queue's end."""
    core, job = world.core[0], world.slots[slot].job
    world.jobs[job].state = WAITS
    world.queue[core.waiting] = job
    core.waiting += 1
    remove_slot(world, slot)


@compiled_with_arrays
def stop_contended(world: World, least: float, exempt: int) -> None:
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
