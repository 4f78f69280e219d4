"""The state of a decision as numbers for a network: running jobs, waiting jobs by kind, free GPUs, and gains.

All numbers lie between -1 and about 2. The layout, for K kinds, N nodes and S sets of nodes:
    slots * (K + N + 4): of each running job, by slot: its kind as one of K, its share of the GPUs of each node, r, the
        logarithms of its remaining hours and of the rounds since its start, and 1 (0 for a slot without a job);
    K * 4: of each kind that waits: the logarithms of the number of its jobs, and of the least and the mean remaining
        hours and of the longest wait in hours;
    N: the share of the GPUs of each node that is free;
    3: the logarithms of the jobs that wait and run, and whether a job has been started in this decision;
    K * S, unless left out: the gain of `greedy` for each GPU, squashed, for each start that is possible.
"""

from __future__ import annotations

import math

import numpy as np

from mltcp.core.quantities import NS_PER_S, S_PER_HOUR
from placement.model.compiled import compiled, compiled_with_arrays
from placement.policies.schedulers.contention.places import (
    find_heads,
    fits,
    floored,
    gain,
    remaining_s,
    weigh_running,
    weight,
)
from placement.policies.schedulers.contention.steps import cell_on, has_started
from placement.policies.schedulers.contention.world import RoundsWorld

OF_A_SLOT, OF_A_KIND, OF_ALL = 4, 4, 3
"""How many numbers describe a running job beside its kind and its nodes, a waiting kind, and the whole."""

_SCALE = 4.0


def feature_count(kinds: int, nodes: int, sets: int, slots: int, gains: bool) -> int:
    """How many numbers an observation has."""
    fixed = slots * (kinds + nodes + OF_A_SLOT) + kinds * OF_A_KIND + nodes + OF_ALL
    return fixed + (kinds * sets if gains else 0)


@compiled
def log_hours(seconds: float) -> float:
    """The logarithm of a time, 0 for none, about 1 for two days."""
    return math.log1p(seconds / S_PER_HOUR) / _SCALE


@compiled_with_arrays
def observe_features(world: RoundsWorld, slots: int, sizes: np.ndarray, found: np.ndarray) -> None:
    """Fill an observation.

    Args:
        world: within a decision.
        slots: the most jobs that can run.
        sizes: the GPUs of each node.
        found: the observation; gains are left out if it is too short for them.
    """
    kinds, nodes, sets = len(world.kinds), len(world.free), len(world.sets)
    found[:] = 0.0
    weigh_running(world)
    of_running(world, sizes, found)
    base = slots * (kinds + nodes + OF_A_SLOT)
    of_waiting(world, found[base : base + kinds * OF_A_KIND])
    base += kinds * OF_A_KIND
    for node in range(nodes):
        found[base + node] = world.free[node] / sizes[node]
    base += nodes
    found[base] = math.log1p(world.core[0].waiting) / _SCALE
    found[base + 1] = math.log1p(world.core[0].running) / _SCALE
    found[base + 2] = 1.0 if has_started(world) else 0.0
    base += OF_ALL
    if len(found) >= base + kinds * sets:
        of_starts(world, found[base : base + kinds * sets])


@compiled_with_arrays
def of_running(world: RoundsWorld, sizes: np.ndarray, found: np.ndarray) -> None:
    """Describe the running jobs."""
    core, kinds, nodes = world.core[0], len(world.kinds), len(world.free)
    for slot in range(core.running):
        running, base = world.slots[slot], slot * (kinds + nodes + OF_A_SLOT)
        job = world.jobs[running.job]
        found[base + job.kind] = 1.0
        base += kinds
        for node in range(nodes):
            if running.nodes >> node & 1:
                found[base + node] = world.cells[running.cell].gpus / sizes[node]
        base += nodes
        found[base] = floored(running.raw)
        found[base + 1] = log_hours(remaining_s(world, running.job))
        rounds = (core.now - job.started) / (core.round_s * NS_PER_S) if job.cell_before >= 0 else 0.0
        found[base + 2] = math.log1p(rounds) / _SCALE
        found[base + 3] = 1.0


@compiled_with_arrays
def of_waiting(world: RoundsWorld, found: np.ndarray) -> None:
    """Describe the waiting jobs by kind."""
    core = world.core[0]
    for position in range(core.waiting):
        number = world.queue[position]
        job = world.jobs[number]
        base, left_s = job.kind * OF_A_KIND, remaining_s(world, number)
        wait_s = (core.now - job.arrival) / NS_PER_S
        least = left_s if found[base] == 0.0 else min(found[base + 1], left_s)
        found[base] += 1.0
        found[base + 1] = least
        found[base + 2] += left_s
        found[base + 3] = max(found[base + 3], wait_s)
    for kind in range(len(world.kinds)):
        base = kind * OF_A_KIND
        count = found[base]
        if count > 0.0:
            found[base] = math.log1p(count) / _SCALE
            found[base + 1] = log_hours(found[base + 1])
            found[base + 2] = log_hours(found[base + 2] / count)
            found[base + 3] = log_hours(found[base + 3])


@compiled_with_arrays
def of_starts(world: RoundsWorld, found: np.ndarray) -> None:
    """The gains of the starts that are possible, between -1 and 1."""
    find_heads(world)
    for kind in range(len(world.kinds)):
        head = world.heads[kind]
        if head < 0:
            continue
        own, gpus = weight(world, head), world.kinds[kind].gpus
        for each in range(len(world.sets)):
            cell = cell_on(world, kind, each)
            if cell >= 0 and fits(world, cell, world.sets[each]):
                worth = gain(world, own, cell, world.sets[each]) / gpus
                found[kind * len(world.sets) + each] = worth / (0.25 + abs(worth))
