"""The steps of look-aheads in many runs: those of the rules, to be imitated, and that which a policy guides."""

from __future__ import annotations

import numpy as np

from placement.learning.stacked import DONE, row
from placement.model.compiled import compiled_with_arrays
from placement.policies.schedulers.contention.guided import Network, guided_step
from placement.policies.schedulers.contention.rule_steps import rule_step
from placement.policies.schedulers.contention.world import World


@compiled_with_arrays
def rule_steps(worlds: World, states: np.ndarray, plan: World, trial: World, steps: np.ndarray) -> None:
    """Set the next step of each of these stacked worlds whose run is not done, by the look-ahead of its rule.

    Args:
        worlds: stacked.
        states: of the runs.
        plan, trial: scratch.
        steps: set to the next ones.
    """
    for number in range(len(steps)):
        if states[number] != DONE:
            steps[number] = rule_step(row(worlds, number), plan, trial)


@compiled_with_arrays
def guided_steps(
    worlds: World, states: np.ndarray, plan: World, trial: World, network: Network, steps: np.ndarray
) -> None:
    """Set the next step of each of these stacked worlds whose run is not done; a network guides the look-ahead."""
    for number in range(len(steps)):
        if states[number] != DONE:
            steps[number] = guided_step(row(worlds, number), plan, trial, network)
