"""Many runs at once: the state of each in one row of larger arrays, stepped in compiled code."""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled_with_arrays
from placement.policies.schedulers.contention.features import observe_features
from placement.policies.schedulers.contention.world import Records, World
from placement.simulator.rates.rounds.loop import MOST_ROUNDS, advance, begin

SHARED = frozenset({"kinds", "cells", "ratios", "sets"})
"""The fields of a world that all runs share."""

GOES_ON, DONE, TOO_LONG = range(3)
"""The state of a run after a step."""


def stack(world: World, count: int) -> World:
    """So many copies of a world, as rows of each field that they do not share."""
    fields = world._asdict()
    return World(
        **{
            name: value if name in SHARED else np.repeat(value[None], count, axis=0)
            for name, value in fields.items()
        }
    )


@compiled_with_arrays
def row(worlds: World, number: int) -> World:
    """One of the stacked worlds; changes to it change the stack."""
    return World(
        worlds.core[number],
        worlds.jobs[number],
        worlds.kinds,
        worlds.cells,
        worlds.ratios,
        worlds.sets,
        worlds.free[number],
        worlds.room[number],
        worlds.queue[number],
        worlds.slots[number],
        worlds.spare_slots[number],
        worlds.spare_free[number],
        worlds.heads[number],
        worlds.competing[number],
        worlds.choices[number],
    )


@compiled_with_arrays
def begin_row(
    worlds: World,
    number: int,
    objectives: Records,
    slots: int,
    sizes: np.ndarray,
    found: np.ndarray,
    masks: np.ndarray,
) -> float:
    """Go to the first choice of a run; returns the reward so far."""
    world = row(worlds, number)
    reward = begin(world, objectives[number], masks[number])
    observe_features(world, slots, sizes, found[number])
    return reward


@compiled_with_arrays
def advance_rows(
    worlds: World,
    objectives: Records,
    steps: np.ndarray,
    slots: int,
    sizes: np.ndarray,
    found: np.ndarray,
    masks: np.ndarray,
    rewards: np.ndarray,
    states: np.ndarray,
) -> None:
    """Take a step in every run that is not done.

    Args:
        worlds: stacked.
        objectives: of each run.
        steps: of each run, allowed by its mask.
        slots: the most jobs that can run.
        sizes: the GPUs of each node.
        found: set to the observations.
        masks: set to the steps that are allowed next.
        rewards: set to the rewards.
        states: of each run, GOES_ON, DONE or TOO_LONG; set anew.
    """
    for number in range(len(steps)):
        if states[number] == DONE:
            rewards[number] = 0.0
            continue
        world = row(worlds, number)
        rewards[number] = advance(world, objectives[number], steps[number], masks[number])
        if world.core[0].ended == len(world.jobs):
            states[number] = DONE
        else:
            states[number] = TOO_LONG if world.core[0].rounds > MOST_ROUNDS else GOES_ON
        observe_features(world, slots, sizes, found[number])
