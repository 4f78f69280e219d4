"""Training of a policy: imitation of the look-ahead, then proximal policy optimisation with masks (sb3-contrib).

A folder keeps the training as it goes on (`placement.learning.kept`), so that one that was interrupted goes on there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger, make_output_format

from mltcp.core.errors import UsageError
from placement.learning.episodes import Episodes, EpisodeSettings, kind_names
from placement.learning.evaluation import check_fits
from placement.learning.imitation import imitate, layers_of
from placement.learning.kept import KeptTraining
from placement.learning.lessons import Tell
from placement.learning.settings import TrainingSettings
from placement.learning.vectorized import ContentionRuns
from placement.policies.schedulers.contention.checkpoint import (
    FORMAT,
    STEPS,
    Checkpoint,
    CheckpointHeader,
    digest_of_table,
)

_PACKAGES = ("numpy", "torch", "gymnasium", "stable-baselines3", "sb3-contrib")
_MODEL = "model.zip"


def train(
    episodes: EpisodeSettings,
    settings: TrainingSettings,
    folder: Path,
    tell: Tell = lambda what, done, most, score: None,
    tensorboard: Path | None = None,
    guide: Checkpoint | None = None,
) -> Checkpoint:
    """Train a policy, or go on with a training that was interrupted.

    Args:
        episodes: the runs to learn from.
        settings: of the training.
        folder: for ``policy.npz``, ``model.zip``, and what is needed to go on.
        tell: is told how far it is.
        tensorboard: a folder for its log; None for none.
        guide: a policy that guides the look-ahead that is imitated (expert iteration: Anthony, Tian and Barber, NIPS
            2017); None to imitate the look-ahead of the rule.

    Raises:
        UsageError: the folder has a training with other settings, a log is asked for without the package, or the guide
            has another shape.
    """
    torch.set_num_threads(1)
    if guide is not None:
        check_fits(guide, Episodes(replace(episodes, jobs=1), 1))
    described = _description(episodes, settings) | {"guide": guide.digest if guide else None}
    kept = KeptTraining(folder, described)
    runs = ContentionRuns(Episodes(episodes, settings.runs), settings.first_seed + kept.traces)
    model = _model(runs, settings)
    model.set_logger(_logger(tensorboard))
    if kept.parts or kept.steps:
        model.set_parameters(str(folder / _MODEL))
        model.num_timesteps = kept.steps

    def save() -> None:
        kept.write(_MODEL, model.save)

    if settings.imitated:
        imitate(model.policy, episodes, settings, kept, save, tell, guide)
    imitation_s = kept.seconds
    if kept.steps < settings.steps:
        watcher = _Watcher(runs, settings, kept, save, tell)
        model.learn(settings.steps - kept.steps, callback=watcher, reset_num_timesteps=False)
        save()
        kept.note(steps=max(settings.steps, model.num_timesteps))
    told = {"imitation_s": round(imitation_s), "all_s": round(kept.seconds)}
    checkpoint = checkpoint_of(model, episodes, described | told)
    kept.write("policy.npz", checkpoint.save)
    kept.remove_lessons()
    return checkpoint


def _model(runs: ContentionRuns, settings: TrainingSettings) -> MaskablePPO:
    return MaskablePPO(
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


def _logger(tensorboard: Path | None) -> Logger:
    """Without a log, nothing is written: sb3 would make a folder among the temporary files."""
    if tensorboard is None:
        return Logger(folder=None, output_formats=[])
    if find_spec("tensorboard") is None:
        raise UsageError("--tensorboard: expected the package tensorboard, which is not installed")
    return Logger(
        folder=str(tensorboard), output_formats=[make_output_format("tensorboard", str(tensorboard))]
    )


def _description(episodes: EpisodeSettings, settings: TrainingSettings) -> dict[str, Any]:
    """All that decides what is learned, for people and to compare."""
    rounds = episodes.rounds
    return {
        **asdict(settings),
        "loads": episodes.loads,
        "at_once": episodes.at_once,
        "mixes": episodes.mixes,
        "jobs": episodes.jobs,
        "stops": episodes.stops,
        "gains": episodes.gains,
        "reward": episodes.reward,
        "restart_ns": rounds.restart_ns,
        "table": digest_of_table(rounds.model.table),
        "first_trace": settings.first_seed,
        "versions": {name: version(name) for name in _PACKAGES},
    }


def checkpoint_of(model: MaskablePPO, episodes: EpisodeSettings, told: dict[str, Any]) -> Checkpoint:
    """The network that chooses steps, and its description."""
    layers, rounds = layers_of(model.policy), episodes.rounds
    header = CheckpointHeader(
        FORMAT,
        STEPS,
        kind_names(rounds),
        rounds.nodes,
        rounds.gpus,
        layers[0][0].shape[0],
        layers[-1][0].shape[1],
        Episodes(replace(episodes, jobs=1), 1).slots,
        episodes.stops,
        episodes.gains,
        digest_of_table(rounds.model.table),
        told,
    )
    return Checkpoint(header, layers)


class _Watcher(BaseCallback):
    """Keeps the training after each update, and tells how far it is."""

    def __init__(
        self,
        runs: ContentionRuns,
        settings: TrainingSettings,
        kept: KeptTraining,
        save: Callable[[], None],
        tell: Tell,
    ) -> None:
        super().__init__()
        self._runs, self._settings, self._kept, self._save, self._tell = runs, settings, kept, save, tell

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self._save()
        self._kept.note(steps=self.num_timesteps, traces=self._runs.next_seed - self._settings.first_seed)

    def _on_rollout_end(self) -> None:
        ended, steps = self._runs.mean_jct_s, self._settings.steps
        score = float(np.mean(ended)) if ended else None
        ended.clear()
        self._tell("learning", min(self.num_timesteps, steps), steps, score)
