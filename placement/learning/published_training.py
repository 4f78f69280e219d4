"""Training of the paper's policy: proximal policy optimisation with the defaults of stable-baselines3, no imitation."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import set_random_seed

from mltcp.core.atomic_files import make_folder
from placement.learning.environment import PublishedEnvironment
from placement.learning.episodes import EpisodeSettings, kind_names
from placement.policies.schedulers.contention.learned.checkpoint import (
    FORMAT,
    PUBLISHED,
    Checkpoint,
    CheckpointHeader,
    digest_of_table,
)

_PACKAGES = ("numpy", "torch", "gymnasium", "stable-baselines3")


def train_published(
    episodes: EpisodeSettings,
    seed: int,
    first_trace: int,
    steps: int,
    folder: Path,
    tell: Callable[[int], None] = lambda done: None,
) -> Checkpoint:
    """Train a policy, and write it.

    Args:
        episodes: the runs to learn from.
        seed: of the network and its actions.
        first_trace: the seed of the first of the ten traces.
        steps: of the environment.
        folder: for ``policy.npz``.
        tell: is told how many steps are done.

    Raises:
        UsageError: the folder cannot be made, or the file not be written.
    """
    make_folder(folder)
    torch.set_num_threads(1)
    # Not PPO's own argument: it would also be the seed of the first trace.
    set_random_seed(seed)
    model = PPO("MlpPolicy", PublishedEnvironment(episodes, first_trace), device="cpu")
    model.set_logger(Logger(folder=None, output_formats=[]))
    model.learn(steps, callback=Rollouts(tell))
    rounds = episodes.rounds
    told = {
        "seed": seed,
        "first_trace": first_trace,
        "steps": model.num_timesteps,
        "loads": episodes.loads,
        "mixes": episodes.mixes,
        "jobs": episodes.jobs,
        "reward": episodes.reward,
        "w1": episodes.w1,
        "restart_ns": rounds.restart_ns,
        "versions": {name: version(name) for name in _PACKAGES},
    }
    linear = [
        part
        for part in (*model.policy.mlp_extractor.policy_net, model.policy.action_net)
        if isinstance(part, torch.nn.Linear)
    ]
    layers = tuple(
        (part.weight.detach().numpy().T.copy(), part.bias.detach().numpy().copy()) for part in linear
    )
    header = CheckpointHeader(
        FORMAT,
        PUBLISHED,
        features=len(layers[0][0]),
        outputs=len(layers[-1][1]),
        stops=False,
        tables=(digest_of_table(rounds.model.table),),
        training=told,
        kinds=kind_names(rounds),
        nodes=rounds.nodes,
        gpus=rounds.gpus,
    )
    checkpoint = Checkpoint(header, layers)
    checkpoint.save(folder / "policy.npz")
    return checkpoint


class Rollouts(BaseCallback):
    """Calls back after each rollout, with the steps that are done.

    Args:
        ended: after a rollout.
    """

    def __init__(self, ended: Callable[[int], None]) -> None:
        super().__init__()
        self._ended = ended

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self._ended(self.num_timesteps)
