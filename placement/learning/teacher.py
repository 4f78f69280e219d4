"""The steps of look-aheads in many runs: that over `greedy`, to be imitated, and that which a policy guides."""

from __future__ import annotations

import numpy as np

from placement.learning.stacked import DONE, row
from placement.model.compiled import compiled_with_arrays
from placement.policies.schedulers.contention.guided import Network, guided_step
from placement.policies.schedulers.contention.look_ahead import PLACE, best_choice, find_choices
from placement.policies.schedulers.contention.steps import end_step, step_of
from placement.policies.schedulers.contention.world import World


@compiled_with_arrays
def look_ahead_step(world: World, trial: World) -> int:
    """The next step of `greedy-look`; `trial` is scratch."""
    count = find_choices(world, world.core[0].choices)
    if count == 0:
        return end_step(world)
    kind, number = best_choice(world, trial, count, world.core[0].running > 0, False)
    if kind != PLACE:
        return end_step(world)
    chosen = world.choices[number]
    return step_of(world, chosen.job, chosen.nodes)


@compiled_with_arrays
def look_ahead_steps(worlds: World, states: np.ndarray, trial: World, steps: np.ndarray) -> None:
    """Set the next step of each of these stacked worlds whose run is not done."""
    for number in range(len(steps)):
        if states[number] != DONE:
            steps[number] = look_ahead_step(row(worlds, number), trial)


@compiled_with_arrays
def guided_steps(
    worlds: World, states: np.ndarray, trial: World, network: Network, steps: np.ndarray
) -> None:
    """Set the next step of each of these stacked worlds whose run is not done; a network guides the look-ahead."""
    for number in range(len(steps)):
        if states[number] != DONE:
            steps[number] = guided_step(row(worlds, number), trial, network)
