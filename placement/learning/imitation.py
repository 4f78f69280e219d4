"""Imitation of the look-ahead by cross-entropy, in parts: after the first one, the policy itself plays.

A policy that has seen only its teacher's states errs in those that its own errors lead to. So the look-ahead says what
it would do there, too, and the policy learns from all parts together (DAgger: Ross, Gordon, Bagnell, AISTATS 2011).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from placement.learning.episodes import Episodes, EpisodeSettings
from placement.learning.kept import KeptTraining
from placement.learning.lessons import Lessons, Tell, watch
from placement.learning.settings import TrainingSettings
from placement.policies.schedulers.contention.checkpoint import Checkpoint
from placement.policies.schedulers.contention.perceptron import Layers, best_steps

_RATE = 1e-3
_VALUE_WEIGHT = 0.5


def imitate(
    policy: Any,
    episodes: EpisodeSettings,
    settings: TrainingSettings,
    kept: KeptTraining,
    save: Callable[[], None],
    tell: Tell,
    guide: Checkpoint | None = None,
) -> None:
    """Teach a policy of sb3-contrib the steps of the look-ahead, and its values the returns.

    Args:
        policy: with masks.
        episodes: the runs; all of the teacher's traces have seeds below those that are learned from later.
        settings: how many runs, and the batch.
        kept: the parts that are done, to which those that follow are added.
        save: the policy, to go on from.
        tell: is told how far it is.
        guide: of the look-ahead; None for that of the rule.
    """
    if kept.parts >= settings.parts:
        return
    lessons = [kept.read_lessons(part) for part in range(kept.parts)]
    first_seed = settings.first_seed - settings.imitated
    for part, runs in enumerate(np.array_split(np.arange(settings.imitated), settings.parts)):
        if part < kept.parts:
            continue
        layers = layers_of(policy)
        player = None if part == 0 else lambda episodes, layers=layers: _play(episodes, layers)
        lessons.append(watch(episodes, first_seed + int(runs[0]), len(runs), player, tell, guide))
        kept.write_lessons(part, lessons[-1])
        is_last = part == settings.parts - 1
        passes = settings.passes if is_last else max(1, settings.passes // 3)
        _learn(policy, lessons, settings.batch, passes, np.random.default_rng([settings.seed, part]), tell)
        save()
        kept.note(parts=part + 1)


def layers_of(policy: Any) -> Layers:
    """The network of a policy of sb3-contrib that chooses steps."""
    parts = [*policy.mlp_extractor.policy_net, policy.action_net]
    linear = [part for part in parts if isinstance(part, torch.nn.Linear)]
    return tuple(
        (part.weight.detach().numpy().T.copy(), part.bias.detach().numpy().copy()) for part in linear
    )


def _play(episodes: Episodes, layers: Layers) -> np.ndarray:
    return best_steps(layers, episodes.observations, episodes.masks_without_idling())


def _learn(
    policy: Any, lessons: Sequence[Lessons], size: int, passes: int, chance: np.random.Generator, tell: Tell
) -> None:
    optimizer = torch.optim.Adam(policy.parameters(), lr=_RATE)
    for done in range(passes):
        for group in optimizer.param_groups:
            group["lr"] = _RATE * (1 - done / passes)
        for each, rows in _batches(lessons, size, chance):
            values, log_probability, _ = policy.evaluate_actions(
                torch.as_tensor(each.observations[rows], dtype=torch.float32),
                torch.as_tensor(each.steps[rows]),
                action_masks=each.masks[rows],
            )
            errors = values.flatten() - torch.as_tensor(each.returns[rows], dtype=torch.float32)
            loss = -log_probability.mean() + _VALUE_WEIGHT * errors.square().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()
        tell("imitation", done + 1, passes, None)


def _batches(
    lessons: Sequence[Lessons], size: int, chance: np.random.Generator
) -> list[tuple[Lessons, np.ndarray]]:
    """All rows once, a batch from one part each: the parts together would need twice the memory."""
    found = []
    for each in lessons:
        order = chance.permutation(len(each.steps))
        found += [(each, rows) for rows in np.array_split(order, max(1, len(order) // size))]
    return [found[number] for number in chance.permutation(len(found))]
