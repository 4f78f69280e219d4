"""The steps of look-aheads in many runs: those of the rules, to be imitated, and that which a policy guides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from placement.learning.episodes import Episodes
from placement.learning.stacked import DONE, row
from placement.model.compiled import compiled_with_arrays
from placement.policies.schedulers.contention.checkpoint import Checkpoint
from placement.policies.schedulers.contention.guided import Network, guided_step, network_of
from placement.policies.schedulers.contention.new_world import trial_of
from placement.policies.schedulers.contention.rule_steps import rule_step
from placement.policies.schedulers.contention.world import World

Player = Callable[[Episodes], np.ndarray]
"""Chooses a step for each run."""


def look_ahead_of(episodes: Episodes, guide: Checkpoint | None) -> Player:
    """The look-ahead of these runs' rule, or the one that a network guides.

    Raises:
        UsageError: the network has too few layers or too many.
    """
    plan, trial = trial_of(row(episodes.worlds, 0)), trial_of(row(episodes.worlds, 0))
    steps = np.zeros(episodes.count, np.int64)
    if guide is None:

        def play(episodes: Episodes) -> np.ndarray:
            rule_steps(episodes.worlds, episodes.states, plan, trial, steps)
            return steps

    else:
        rounds = episodes.settings.rounds
        network = network_of(guide.layers, (rounds.gpus,) * rounds.nodes, episodes.slots)

        def play(episodes: Episodes) -> np.ndarray:
            guided_steps(episodes.worlds, episodes.states, plan, trial, network, steps)
            return steps

    return play


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
