"""Rules that start jobs in an order, or at random as the public code does."""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled, compiled_with_arrays
from placement.policies.schedulers.contention.places import (
    EQUAL,
    fits,
    gain,
    insert_slot,
    remaining_s,
    start,
    update_room,
    weigh_running_by_gpus,
)
from placement.policies.schedulers.contention.rounds import is_exempt
from placement.policies.schedulers.contention.rule import (
    ALL_COMPETE,
    FIFO,
    FIRST,
    LAS,
    MOST_NODES,
    PACKED,
    SRSF,
    SRTF,
    TABLE,
    TIRESIAS,
)
from placement.policies.schedulers.contention.world import RUNS, WAITS, RoundsWorld

# -- jobs in an order --------------------------------------------------------------------------------------------------
# The ordered rules: waiting jobs in an order, each placed by a fixed rule; what does not fit is skipped or blocks.


LONG_S = 7200.0
"""Tiresias has two queues: jobs that have attained fewer GPU s, and the others."""


@compiled
def rank(world: RoundsWorld, job: int) -> float:
    """The rank of a job in the order; the least comes first, and of equals the first to arrive.

    Jobs that may not be stopped yet come first of all, so that they find their places still free.

    Raises:
        ValueError: there is no such order.
    """
    order = world.core[0].order
    if world.jobs[job].cell_before >= 0 and is_exempt(world, job):
        return -1.0
    gpus = world.kinds[world.jobs[job].kind].gpus
    if order == FIFO:
        return 0.0
    if order == LAS:
        return world.jobs[job].held * gpus
    if order == TIRESIAS:
        return 1.0 if world.jobs[job].held * gpus >= LONG_S else 0.0
    if order == SRTF:
        return remaining_s(world, job)
    if order == SRSF:
        return remaining_s(world, job) * gpus
    raise ValueError(
        "order of a rule in rounds: expected one of placement.policies.schedulers.contention.rule"
    )


@compiled_with_arrays
def place(world: RoundsWorld, kind: int) -> tuple[int, int]:
    """The place for a job of this kind by the rule of the placement, as (cell, nodes); cell -1 if none fits.

    Raises:
        ValueError: there is no such placement.
    """
    placement = world.core[0].placement
    if placement == TABLE:
        return place_by_table(world, kind)
    if placement not in (FIRST, PACKED, MOST_NODES):
        raise ValueError(
            "placement of a rule in rounds: expected one of placement.policies.schedulers.contention.rule"
        )
    first, count = world.kinds[kind].first, world.kinds[kind].cells
    for step in range(count):
        cell = first + (count - 1 - step if placement == MOST_NODES else step)
        nodes = some_nodes(world, cell, placement == PACKED)
        if nodes:
            return cell, nodes
    return -1, 0


@compiled
def some_nodes(world: RoundsWorld, cell: int, least_free: bool) -> int:
    """Nodes with room for the cell, as bits: the lowest numbers, or those with the least free; 0 if too few have."""
    gpus, nodes = world.cells[cell].gpus, 0
    for _ in range(world.cells[cell].nodes):
        found = -1
        for node in range(len(world.free)):
            if world.free[node] < gpus or nodes >> node & 1:
                continue
            if found < 0 or (least_free and world.free[node] < world.free[found]):
                found = node
        if found < 0:
            return 0
        nodes |= 1 << found
    return nodes


@compiled_with_arrays
def place_by_table(world: RoundsWorld, number: int) -> tuple[int, int]:
    """The place with the largest change of the sum of GPUs times speed."""
    kind = world.kinds[number]
    found, found_nodes, best = -1, 0, -1e300
    for cell in range(kind.first, kind.first + kind.cells):
        for each in range(world.cells[cell].first, world.cells[cell].first + world.cells[cell].sets):
            nodes = world.sets[each]
            if not fits(world, cell, nodes):
                continue
            worth = gain(world, float(kind.gpus), cell, nodes)
            if worth > best + EQUAL:
                found, found_nodes, best = cell, nodes, worth
    return found, found_nodes


@compiled
def has_room(world: RoundsWorld, number: int) -> bool:
    """Whether a job of this kind fits somewhere."""
    kind = world.kinds[number]
    for cell in range(kind.first, kind.first + kind.cells):
        nodes, count = world.room[world.cells[cell].gpus], 0
        for node in range(len(world.free)):
            count += nodes >> node & 1
        if count >= world.cells[cell].nodes:
            return True
    return False


@compiled_with_arrays
def start_in_order(world: RoundsWorld) -> None:
    """Start waiting jobs, the first in the order that fits, again and again."""
    if world.core[0].placement == TABLE:
        weigh_running_by_gpus(world)
    for kind in range(len(world.kinds)):
        world.heads[kind] = 1 if has_room(world, kind) else 0
    while True:
        job = next_in_order(world)
        if job < 0:
            return
        number = world.jobs[job].kind
        cell, nodes = place(world, number)
        if cell < 0:
            return
        start(world, job, cell, nodes, world.kinds[number].gpus * world.cells[cell].speed)
        for kind in range(len(world.kinds)):
            world.heads[kind] = 1 if has_room(world, kind) else 0


@compiled_with_arrays
def next_in_order(world: RoundsWorld) -> int:
    """The first waiting job, of those that fit unless a head blocks; -1 if there is none."""
    core, found, least = world.core[0], -1, 0.0
    for position in range(core.waiting):
        job = world.queue[position]
        if not core.head and not world.heads[world.jobs[job].kind]:
            continue
        of_job = rank(world, job)
        if found < 0 or of_job < least or (of_job == least and job < found):
            found, least = job, of_job
    return found


@compiled_with_arrays
def compete(world: RoundsWorld) -> None:
    """All jobs compete, running ones too; a running job for which there is still room keeps its place."""
    core, jobs = world.core[0], world.jobs
    count = gather(world)
    while count > 0:
        position = first_of(world, count)
        job = world.competing[position]
        world.competing[position] = world.competing[count - 1]
        count -= 1
        cell, nodes = jobs[job].cell_before, jobs[job].nodes_before
        if cell < 0 or not fits(world, cell, nodes):
            cell, nodes = place(world, jobs[job].kind)
        if cell >= 0:
            value = world.kinds[jobs[job].kind].gpus * world.cells[cell].speed
            jobs[job].state, jobs[job].cell, jobs[job].nodes = RUNS, cell, nodes
            insert_slot(world, job, cell, nodes, value)
        elif core.head:
            break
    collect_waiting(world)


@compiled_with_arrays
def gather(world: RoundsWorld) -> int:
    """Empty the cluster and list all jobs in `competing`; returns their number."""
    core, count = world.core[0], 0
    for slot in range(core.running):
        running = world.slots[slot]
        for node in range(len(world.free)):
            if running.nodes >> node & 1:
                world.free[node] += world.cells[running.cell].gpus
        world.jobs[running.job].state = WAITS
        world.competing[count] = running.job
        count += 1
    for position in range(core.waiting):
        world.competing[count] = world.queue[position]
        count += 1
    core.running = 0
    update_room(world)
    return count


@compiled_with_arrays
def first_of(world: RoundsWorld, count: int) -> int:
    """The position in `competing` of the first job in the order."""
    found, least = 0, rank(world, world.competing[0])
    for position in range(1, count):
        job = world.competing[position]
        of_job = rank(world, job)
        if of_job < least or (of_job == least and job < world.competing[found]):
            found, least = position, of_job
    return found


@compiled_with_arrays
def collect_waiting(world: RoundsWorld) -> None:
    """Make the queue anew: those that still wait in their order, then those that were stopped."""
    core, jobs, kept = world.core[0], world.jobs, 0
    for position in range(core.waiting):
        if jobs[world.queue[position]].state == WAITS:
            world.queue[kept] = world.queue[position]
            kept += 1
    for job in range(core.seen):
        if jobs[job].state == WAITS and jobs[job].cell_before >= 0:
            world.queue[kept] = job
            kept += 1
    core.waiting = kept


@compiled_with_arrays
def decide_in_order(world: RoundsWorld) -> None:
    """A decision of an ordered rule."""
    if world.core[0].stops == ALL_COMPETE:
        compete(world)
    else:
        start_in_order(world)


# -- the actions of the public code, at random -------------------------------------------------------------------------
# The eight actions of the paper's public code, its greedy fallback, and its policy that draws actions at random.


@compiled
def draw(seed: int, now: int, number: int, among: int) -> int:
    """A number from 0 up to `among`, from a hash of the seed, the time and the number of the draw (splitmix64)."""
    state = np.uint64(seed) * np.uint64(0xD1342543DE82EF95) + np.uint64(now)
    for each in (np.uint64(number), np.uint64(0)):
        state = (state ^ each) + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return int(state >> np.uint64(33)) % among


@compiled_with_arrays
def find_candidates(world: RoundsWorld) -> int:
    """Set `competing` to the first waiting job of each demand, by ascending demand; returns their number."""
    count = 0
    for position in range(world.core[0].waiting):
        job = world.queue[position]
        gpus, slot = world.kinds[world.jobs[job].kind].gpus, count
        known = False
        for each in range(count):
            known = known or world.kinds[world.jobs[world.competing[each]].kind].gpus == gpus
        if known:
            continue
        while slot > 0 and world.kinds[world.jobs[world.competing[slot - 1]].kind].gpus > gpus:
            world.competing[slot] = world.competing[slot - 1]
            slot -= 1
        world.competing[slot] = job
        count += 1
    return count


@compiled_with_arrays
def start_on(world: RoundsWorld, nodes: int, count: int) -> bool:
    """Start the first candidate that has a cell with this many nodes and fits on these; whether there is one."""
    for position in range(count):
        job = world.competing[position]
        kind = world.kinds[world.jobs[job].kind]
        for cell in range(kind.first, kind.first + kind.cells):
            bits = 0
            for node in range(len(world.free)):
                bits += nodes >> node & 1
            if world.cells[cell].nodes == bits and fits(world, cell, nodes):
                start(world, job, cell, nodes, 0.0)
                return True
    return False


@compiled_with_arrays
def start_on_most_nodes(world: RoundsWorld, count: int) -> bool:
    """The public greedy step: the first candidate that fits, on as many nodes as it can; whether there is one."""
    for position in range(count):
        job = world.competing[position]
        kind = world.kinds[world.jobs[job].kind]
        for step in range(kind.cells):
            cell = kind.first + kind.cells - 1 - step
            nodes = some_nodes(world, cell, False)
            if nodes:
                start(world, job, cell, nodes, 0.0)
                return True
    return False


@compiled_with_arrays
def act(world: RoundsWorld, action: int, count: int) -> bool:
    """Carry out an action, a set of nodes or nothing, and the fallback if that starts no job; whether one is started.

    Args:
        world: within a decision, after `find_candidates`.
        action: the number of a set, or one more for nothing.
        count: of candidates.
    """
    if action < len(world.sets) and start_on(world, world.sets[action], count):
        return True
    return bool(world.core[0].fallback) and start_on_most_nodes(world, count)


@compiled_with_arrays
def decide_at_random(world: RoundsWorld) -> None:
    """Draw actions until one starts no job."""
    core, drawn = world.core[0], 0
    count = find_candidates(world)
    while count > 0 and act(world, draw(core.seed, core.now, drawn, len(world.sets) + 1), count):
        drawn += 1
        count = find_candidates(world)
