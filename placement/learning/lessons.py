"""Lessons: what the look-ahead would do in the states of runs that it, or somebody else, plays."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from placement.learning.episodes import Episodes, EpisodeSettings
from placement.learning.teacher import Player, look_ahead_of
from placement.policies.schedulers.contention.checkpoint import Checkpoint

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
    """Let somebody play so many runs, from a seed on, and note what the look-ahead would do.

    Args:
        settings: of the runs.
        first_seed: of the first run.
        count: of runs.
        player: who plays; the look-ahead itself if None.
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
