"""Training of a policy: imitation of the look-ahead, then proximal policy optimisation with masks (sb3-contrib).

A folder keeps the training as it goes on (`training_folder`), so that one that was interrupted goes on there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger, make_output_format
from stable_baselines3.common.vec_env import VecEnv

from mltcp.core.errors import UsageError
from placement.learning.environment import HIGHEST
from placement.learning.episodes import Episodes, EpisodeSettings, kind_names
from placement.learning.evaluation import check_fits
from placement.learning.lessons import Lessons, Tell, watch
from placement.learning.training_folder import TrainingFolder, TrainingSettings
from placement.policies.schedulers.contention.learned.checkpoint import (
    FORMAT,
    STEPS,
    Checkpoint,
    CheckpointHeader,
    Layers,
    best_steps,
    digest_of_table,
)
from placement.simulator.rates.rounds.run import RoundsSettings

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
    kept = TrainingFolder(folder, described)
    runs = ContentionRuns(Episodes(episodes, settings.runs), settings.first_seed + kept.traces)
    model = _model(runs, settings)
    model.set_logger(_logger(tensorboard))
    if kept.parts or kept.steps:
        model.set_parameters(str(folder / _MODEL))
        model.num_timesteps = kept.steps

    def save() -> None:
        kept.write(_MODEL, model.save)

    def keep(steps: int) -> None:
        save()
        kept.note(steps=steps, traces=runs.next_seed - settings.first_seed)

    def report(steps: int) -> None:
        score = float(np.mean(runs.mean_jct_s)) if runs.mean_jct_s else None
        runs.mean_jct_s.clear()
        tell("learning", min(steps, settings.steps), settings.steps, score)

    if settings.imitated:
        imitate(model.policy, episodes, settings, kept, save, tell, guide)
    imitation_s = kept.seconds
    if kept.steps < settings.steps:
        rollouts = Rollouts(report, keep)
        model.learn(settings.steps - kept.steps, callback=rollouts, reset_num_timesteps=False)
        save()
        kept.note(steps=max(settings.steps, model.num_timesteps))
    told = {"imitation_s": round(imitation_s), "all_s": round(kept.seconds)}
    slots = Episodes(replace(episodes, jobs=1), 1).slots
    shape = {"slots": slots, "stops": episodes.stops, "gains": episodes.gains}
    checkpoint = checkpoint_of(model.policy, episodes.rounds, STEPS, described | told, **shape)
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


def checkpoint_of(
    policy: Any, rounds: RoundsSettings, view: str, told: dict[str, Any], **shape: Any
) -> Checkpoint:
    """The network of a policy that chooses steps, and its description.

    Args:
        policy: of stable-baselines3.
        rounds: the cluster and its table.
        view: `STEPS` or `PUBLISHED`.
        told: settings, seeds and versions, for people.
        shape: `slots`, `stops` and `gains` of the header; nothing for `PUBLISHED`.
    """
    layers = layers_of(policy)
    header = CheckpointHeader(
        FORMAT,
        view,
        kind_names(rounds),
        rounds.nodes,
        rounds.gpus,
        features=len(layers[0][0]),
        steps=len(layers[-1][1]),
        table=digest_of_table(rounds.model.table),
        training=told,
        **({"slots": 0, "stops": False, "gains": False} | shape),
    )
    return Checkpoint(header, layers)


class Rollouts(BaseCallback):
    """Calls back before and after each rollout, with the steps that are done.

    Args:
        ended: after a rollout.
        begins: before one.
    """

    def __init__(
        self, ended: Callable[[int], None], begins: Callable[[int], None] = lambda steps: None
    ) -> None:
        super().__init__()
        self._ended, self._begins = ended, begins

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self._begins(self.num_timesteps)

    def _on_rollout_end(self) -> None:
        self._ended(self.num_timesteps)


# -- imitation of the look-ahead ---------------------------------------------------------------------------------------
# Imitation of the look-ahead by cross-entropy, in parts: after the first one, the policy itself plays.
#
# A policy that has seen only its teacher's states errs in those that its own errors lead to. So the look-ahead says
# what it would do there, too, and the policy learns from all parts together (DAgger: Ross, Gordon, Bagnell, AISTATS
# 2011).


_RATE = 1e-3
_VALUE_WEIGHT = 0.5


def imitate(
    policy: Any,
    episodes: EpisodeSettings,
    settings: TrainingSettings,
    kept: TrainingFolder,
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


# -- many runs as one vectorised environment of stable-baselines3 ------------------------------------------------------


_MASKS = "action_masks"


class ContentionRuns(VecEnv):
    """Runs side by side; one that has ended begins again with the trace of the next seed that no run has had.

    Attributes:
        next_seed: of the next run.
        mean_jct_s: of the runs that have ended since it was last emptied.

    Args:
        episodes: the runs.
        first_seed: of the first run.
    """

    def __init__(self, episodes: Episodes, first_seed: int) -> None:
        self._episodes, self.next_seed = episodes, first_seed
        self.mean_jct_s: list[float] = []
        width = episodes.observations.shape[1]
        observed = spaces.Box(-1.0, HIGHEST, (width,), np.float32)
        super().__init__(episodes.count, observed, spaces.Discrete(episodes.masks.shape[1]))

    def reset(self) -> np.ndarray:
        """Begin all runs anew."""
        for number in range(self.num_envs):
            self._begin(number)
        return self._episodes.observations.copy()

    def step_async(self, actions: np.ndarray) -> None:
        """Take a step in each run."""
        self._episodes.step(actions)

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """The outcome of the step."""
        # A job's share, so that values do not grow with the trace.
        rewards = (self._episodes.rewards / self._episodes.settings.jobs).astype(np.float32)
        done = np.array([self._episodes.is_done(number) for number in range(self.num_envs)])
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for number in np.flatnonzero(done).tolist():
            infos[number]["terminal_observation"] = self._episodes.observations[number].copy()
            self.mean_jct_s.append(self._episodes.mean_jct_s(number))
            self._begin(number)
        return self._episodes.observations.copy(), rewards, done, infos

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """The masks, the only method that the runs have."""
        if method_name != _MASKS:
            raise AttributeError(method_name)
        return list(self._episodes.masks.copy())

    def has_attr(self, attr_name: str) -> bool:
        """Whether runs have a method of this name."""
        return attr_name == _MASKS

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Runs have no attributes, except that they are not rendered."""
        if attr_name == "render_mode":
            return [None] * self.num_envs
        raise AttributeError(attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Runs have no attributes."""
        raise AttributeError(attr_name)

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """No run is wrapped."""
        return [False] * self.num_envs

    def close(self) -> None:
        """There is nothing to close."""

    def _begin(self, number: int) -> None:
        self._episodes.reset(number, self.next_seed)
        self.next_seed += 1
