"""Gains of starting jobs: how much the weighted sum of speeds rises, the losses of neighbours taken off."""

from __future__ import annotations

import math

from placement.model.compiled import compiled, compiled_with_arrays
from placement.policies.schedulers.contention.places import combined, floored
from placement.policies.schedulers.contention.world import World

EQUAL = 1e-12
"""Gains that differ by less are equal, and the first wins."""

_HOUR_S, _LEAST_S = 3600.0, 60.0


@compiled
def remaining_s(world: World, job: int) -> float:
    """The remaining time of a job, at the best isolated throughput of its kind."""
    return world.jobs[job].remaining / world.kinds[world.jobs[job].kind].best


@compiled
def weight(world: World, job: int) -> float:
    """w, the weight of a job in the marginal rules: jobs with little left count more."""
    return math.sqrt(_HOUR_S / max(remaining_s(world, job), _LEAST_S))


@compiled_with_arrays
def gain(world: World, own: float, cell: int, nodes: int) -> float:
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
def utility(world: World) -> float:
    """U, the sum of weighted speeds of the running jobs."""
    total = 0.0
    for slot in range(world.core[0].running):
        total += world.slots[slot].value * floored(world.slots[slot].raw)
    return total


@compiled
def weigh_running(world: World) -> None:
    """Give the running jobs the weights of the marginal rules."""
    for slot in range(world.core[0].running):
        running = world.slots[slot]
        running.value = weight(world, running.job) * world.cells[running.cell].speed


@compiled
def weigh_running_by_gpus(world: World) -> None:
    """Give the running jobs their GPUs as weights."""
    for slot in range(world.core[0].running):
        running = world.slots[slot]
        gpus = world.cells[running.cell].gpus * world.cells[running.cell].nodes
        running.value = gpus * world.cells[running.cell].speed


@compiled
def find_heads(world: World) -> None:
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
