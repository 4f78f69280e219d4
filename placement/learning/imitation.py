"""Imitation of the look-ahead: its steps on drawn traces, learned by cross-entropy, and the return from each state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from placement.learning.episodes import Episodes, EpisodeSettings
from placement.learning.settings import TrainingSettings
from placement.learning.stacked import row
from placement.learning.teacher import look_ahead_steps
from placement.policies.schedulers.contention.new_world import trial_of

_PASSES = 12
_RATE = 1e-3
_VALUE_WEIGHT = 0.5
_AT_ONCE = 32


class Lessons(NamedTuple):
    """The choices of the teacher, one a row: observations, masks, steps, and the sums of the rewards from there on."""

    observations: np.ndarray
    masks: np.ndarray
    steps: np.ndarray
    returns: np.ndarray


def imitate(
    policy: Any,
    episodes: EpisodeSettings,
    settings: TrainingSettings,
    tell: Callable[[str, int, int, float | None], None],
) -> None:
    """Teach a policy of sb3-contrib the steps of the look-ahead, and its values the returns.

    Args:
        policy: with masks.
        episodes: the runs; all of the teacher's traces have seeds below those that are learned from later.
        settings: how many runs, and the batch.
        tell: is told how far it is.
    """
    lessons = watch(episodes, settings.first_seed - settings.imitated, settings.imitated, tell)
    chance = np.random.default_rng(settings.seed)
    optimizer = torch.optim.Adam(policy.parameters(), lr=_RATE)
    batches = max(1, len(lessons.steps) // settings.batch)
    for done in range(_PASSES):
        order = chance.permutation(len(lessons.steps))
        for group in optimizer.param_groups:
            group["lr"] = _RATE * (1 - done / _PASSES)
        for rows in np.array_split(order, batches):
            values, log_probability, _ = policy.evaluate_actions(
                torch.as_tensor(lessons.observations[rows], dtype=torch.float32),
                torch.as_tensor(lessons.steps[rows]),
                action_masks=lessons.masks[rows],
            )
            errors = values.flatten() - torch.as_tensor(lessons.returns[rows], dtype=torch.float32)
            loss = -log_probability.mean() + _VALUE_WEIGHT * errors.square().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()
        tell("imitation", done + 1, _PASSES, None)


def watch(
    settings: EpisodeSettings,
    first_seed: int,
    count: int,
    tell: Callable[[str, int, int, float | None], None] = lambda what, done, most, score: None,
) -> Lessons:
    """Let the teacher play so many runs, from a seed on."""
    episodes = Episodes(settings, min(count, _AT_ONCE))
    trial = trial_of(row(episodes.worlds, 0))
    steps = np.zeros(episodes.count, np.int64)
    playing = {number: first_seed + number for number in range(episodes.count)}
    for number, seed in playing.items():
        episodes.reset(number, seed)
    next_seed, found = first_seed + episodes.count, []
    kept: dict[int, list[tuple[np.ndarray, np.ndarray, int, float]]] = {number: [] for number in playing}
    while playing:
        look_ahead_steps(episodes.worlds, trial, steps)
        before = episodes.observations.astype(np.float16), episodes.masks.copy(), steps.copy()
        episodes.step(steps)
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
