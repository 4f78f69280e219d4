"""The eight actions of the paper's public code, its greedy fallback, and its policy that draws actions at random."""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled, compiled_with_arrays
from placement.policies.schedulers.contention.ordered import some_nodes
from placement.policies.schedulers.contention.places import fits, start
from placement.policies.schedulers.contention.world import World


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
def find_candidates(world: World) -> int:
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
def start_on(world: World, nodes: int, count: int) -> bool:
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
def start_on_most_nodes(world: World, count: int) -> bool:
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
def act(world: World, action: int, count: int) -> bool:
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
def decide_at_random(world: World) -> None:
    """Draw actions until one starts no job."""
    core, drawn = world.core[0], 0
    count = find_candidates(world)
    while count > 0 and act(world, draw(core.seed, core.now, drawn, len(world.sets) + 1), count):
        drawn += 1
        count = find_candidates(world)
