"""Training of a policy: imitation of the look-ahead, then proximal policy optimisation with masks (sb3-contrib)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback

from placement.learning.episodes import Episodes, EpisodeSettings, kind_names
from placement.learning.imitation import imitate
from placement.learning.settings import TrainingSettings
from placement.learning.vectorized import ContentionRuns
from placement.policies.schedulers.contention.checkpoint import (
    FORMAT,
    Checkpoint,
    CheckpointHeader,
    digest_of_table,
)

_PACKAGES = ("numpy", "torch", "gymnasium", "stable-baselines3", "sb3-contrib")


def train(
    episodes: EpisodeSettings,
    settings: TrainingSettings,
    folder: Path,
    tell: Callable[[str, int, int, float | None], None] = lambda what, done, most, score: None,
) -> Checkpoint:
    """Train a policy; its checkpoint, and the whole model to go on from, are kept in a folder.

    Args:
        episodes: the runs to learn from.
        settings: of the training.
        folder: for ``policy.npz`` and ``model.zip``.
        tell: is told what is done, how far, and the mean completion time (s) of the last runs, if there are any.
    """
    torch.set_num_threads(1)
    runs = ContentionRuns(Episodes(episodes, settings.runs), settings.first_seed)
    model = MaskablePPO(
        "MlpPolicy",
        runs,
        learning_rate=lambda left: settings.rate * left,
        n_steps=settings.horizon,
        batch_size=settings.batch,
        n_epochs=settings.epochs,
        gamma=1.0,
        gae_lambda=settings.trace_decay,
        clip_range=settings.clip,
        ent_coef=settings.entropy,
        policy_kwargs={"net_arch": list(settings.hidden), "activation_fn": torch.nn.Tanh},
        seed=settings.seed,
        device="cpu",
    )
    began_s = time.monotonic()
    if settings.imitated:
        imitate(model.policy, episodes, settings, tell)
    imitation_s = time.monotonic() - began_s
    if settings.steps:
        model.learn(settings.steps, callback=_Teller(runs, settings.steps, tell))
    told = {"imitation_s": round(imitation_s), "all_s": round(time.monotonic() - began_s)}
    checkpoint = checkpoint_of(model, episodes, settings, told)
    folder.mkdir(parents=True, exist_ok=True)
    model.save(folder / "model.zip")
    checkpoint.save(folder / "policy.npz")
    return checkpoint


def checkpoint_of(
    model: MaskablePPO, episodes: EpisodeSettings, settings: TrainingSettings, told: dict[str, Any]
) -> Checkpoint:
    """The network that chooses steps, and its description."""
    parts = [*model.policy.mlp_extractor.policy_net, model.policy.action_net]
    linear = [part for part in parts if isinstance(part, torch.nn.Linear)]
    layers = tuple(
        (part.weight.detach().numpy().T.copy(), part.bias.detach().numpy().copy()) for part in linear
    )
    probe = Episodes(replace(episodes, jobs=1), 1)
    rounds = episodes.rounds
    header = CheckpointHeader(
        FORMAT,
        kind_names(rounds),
        rounds.nodes,
        rounds.gpus,
        layers[0][0].shape[0],
        layers[-1][0].shape[1],
        probe.slots,
        episodes.stops,
        episodes.gains,
        digest_of_table(rounds.model.table),
        {
            **asdict(settings),
            **told,
            "loads": episodes.loads,
            "mixes": episodes.mixes,
            "jobs": episodes.jobs,
            "reward": episodes.reward,
            "restart_ns": rounds.restart_ns,
            "first_trace": settings.first_seed,
            "versions": {name: version(name) for name in _PACKAGES},
        },
    )
    return Checkpoint(header, layers)


class _Teller(BaseCallback):
    """Tells after each batch of steps how far the training is."""

    def __init__(
        self, runs: ContentionRuns, steps: int, tell: Callable[[str, int, int, float | None], None]
    ) -> None:
        super().__init__()
        self._runs, self._steps, self._tell = runs, steps, tell

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        ended = self._runs.mean_jct_s
        score = float(np.mean(ended)) if ended else None
        ended.clear()
        self._tell("learning", min(self.num_timesteps, self._steps), self._steps, score)
