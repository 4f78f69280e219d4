"""Lessons: the step of the look-ahead in each state of runs that it plays itself, or a policy that learns from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from placement.learning.episodes import DONE, Episodes, EpisodeSettings, row
from placement.model.compiled import compiled_with_arrays
from placement.policies.schedulers.contention.learned.checkpoint import Checkpoint
from placement.policies.schedulers.contention.learned.learned import GuideNetwork, guided_step, network_of
from placement.policies.schedulers.contention.steps import rule_step
from placement.policies.schedulers.contention.world import RoundsWorld, trial_of

Tell = Callable[[str, int, int, float | None], None]
"""Is told what is done, how far, of how much, and the mean completion time (s) of the last runs, if there are any."""

_AT_ONCE = 32


class Lessons(NamedTuple):
    """Choices, one a row: observations, masks, the look-ahead's steps, and the sums of the rewards from there on."""

    observations: np.ndarray
    masks: np.ndarray
    steps: np.ndarray
    returns: np.ndarray


def watch(
    settings: EpisodeSettings,
    first_seed: int,
    count: int,
    player: Player | None = None,
    tell: Tell = lambda what, done, most, score: None,
    guide: Checkpoint | None = None,
) -> Lessons:
    """Play runs from a seed on, and note the step of the look-ahead in each state.

    Args:
        settings: of the runs.
        first_seed: of the first run.
        count: of runs.
        player: chooses the steps; the look-ahead itself if None.
        tell: is told how far it is.
        guide: of the look-ahead; None for that of the rule.
    """
    episodes = Episodes(settings, min(count, _AT_ONCE))
    look_ahead = look_ahead_of(episodes, guide)
    playing = {number: first_seed + number for number in range(episodes.count)}
    for number, seed in playing.items():
        episodes.reset(number, seed)
    next_seed, found = first_seed + episodes.count, []
    kept: dict[int, list[tuple[np.ndarray, np.ndarray, int, float]]] = {number: [] for number in playing}
    while playing:
        steps = look_ahead(episodes)
        before = episodes.observations.astype(np.float16), episodes.masks.copy(), steps.copy()
        episodes.step(steps if player is None else player(episodes))
        for number in list(playing):
            kept[number].append(
                (before[0][number], before[1][number], int(before[2][number]), episodes.rewards[number])
            )
            if not episodes.is_done(number):
                continue
            found.append(_lessons(kept.pop(number), settings.jobs))
            tell("teacher", len(found), count, None)
            del playing[number]
            if next_seed < first_seed + count:
                playing[number], kept[number] = next_seed, []
                episodes.reset(number, next_seed)
                next_seed += 1
    return Lessons(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def _lessons(kept: list[tuple[np.ndarray, np.ndarray, int, float]], jobs: int) -> Lessons:
    observations, masks, steps, rewards = zip(*kept, strict=True)
    returns = np.cumsum(np.array(rewards)[::-1])[::-1] / jobs
    return Lessons(np.array(observations), np.array(masks), np.array(steps), returns)


# -- the steps of look-aheads in many runs: of the rules, to be imitated, and that which a policy guides ---------------


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
def rule_steps(
    worlds: RoundsWorld, states: np.ndarray, plan: RoundsWorld, trial: RoundsWorld, steps: np.ndarray
) -> None:
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
    worlds: RoundsWorld,
    states: np.ndarray,
    plan: RoundsWorld,
    trial: RoundsWorld,
    network: GuideNetwork,
    steps: np.ndarray,
) -> None:
    """Set the next step of each of these stacked worlds whose run is not done; a network guides the look-ahead."""
    for number in range(len(steps)):
        if states[number] != DONE:
            steps[number] = guided_step(row(worlds, number), plan, trial, network)
