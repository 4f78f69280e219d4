"""Decisions in steps, for policies that are learned: one start, one stop, or the end of the round at a time.

The number of a step is KIND * SETS + SET for a start, where KIND is one of the world's kinds and SET one of its sets of
nodes: it starts the waiting job of the kind that has the least left, and of equals the first. The next number ends the
round. Behind it, where jobs may be stopped, are the stops of the running jobs by slot. Jobs are stopped before any is
started in a round, and not as long as a costly restart exempts them.
"""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled, compiled_with_arrays
from placement.policies.schedulers.contention.gains import find_heads, weight
from placement.policies.schedulers.contention.places import fits, start, stop
from placement.policies.schedulers.contention.rounds import is_exempt
from placement.policies.schedulers.contention.world import World


@compiled
def end_step(world: World) -> int:
    """The number of the step that ends the round."""
    return len(world.kinds) * len(world.sets)


@compiled
def cell_on(world: World, kind: int, each: int) -> int:
    """The cell of a kind on this set of nodes; -1 if it has none on so many."""
    cells = world.kinds[kind]
    for cell in range(cells.first, cells.first + cells.cells):
        first = world.cells[cell].first
        if first <= each < first + world.cells[cell].sets:
            return cell
    return -1


@compiled
def has_started(world: World) -> bool:
    """Whether a job has been started in this decision."""
    for slot in range(world.core[0].running):
        job = world.jobs[world.slots[slot].job]
        if job.cell != job.cell_before or job.nodes != job.nodes_before:
            return True
    return False


@compiled
def was_there(world: World, job: int, cell: int, nodes: int) -> bool:
    """Whether a waiting job has been stopped on these nodes in this decision; to start it there would undo that."""
    return world.jobs[job].cell_before == cell and world.jobs[job].nodes_before == nodes


@compiled_with_arrays
def find_steps(world: World, mask: np.ndarray) -> bool:
    """Set the mask of the steps that are allowed, as long as it is; whether there are others than to end the round."""
    find_heads(world)
    end, some = end_step(world), False
    mask[:] = False
    mask[end] = True
    for kind in range(len(world.kinds)):
        if world.heads[kind] < 0:
            continue
        for each in range(len(world.sets)):
            cell, nodes = cell_on(world, kind, each), world.sets[each]
            if (
                cell >= 0
                and fits(world, cell, nodes)
                and not was_there(world, world.heads[kind], cell, nodes)
            ):
                mask[kind * len(world.sets) + each] = True
                some = True
    if len(mask) > end + 1 and not has_started(world):
        for slot in range(world.core[0].running):
            if not is_exempt(world, world.slots[slot].job):
                mask[end + 1 + slot] = True
                some = True
    return some


@compiled_with_arrays
def take_step(world: World, step: int) -> bool:
    """Carry out a step that is allowed; whether it ends the round."""
    end = end_step(world)
    if step == end:
        return True
    if step > end:
        stop(world, step - end - 1)
        return False
    find_heads(world)
    kind, each = step // len(world.sets), step % len(world.sets)
    job, cell = world.heads[kind], cell_on(world, kind, each)
    start(world, job, cell, world.sets[each], weight(world, job) * world.cells[cell].speed)
    return False


@compiled_with_arrays
def step_of(world: World, job: int, nodes: int) -> int:
    """The number of the step that starts a job on these nodes."""
    for each in range(len(world.sets)):
        if world.sets[each] == nodes:
            return world.jobs[job].kind * len(world.sets) + each
    return -1
