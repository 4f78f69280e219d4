"""The gymnasium environment `placement/Contention-v0`: a step is a start, a stop, or the end of a round.

::

    import gymnasium
    import placement.learning.environment  # registers it

    environment = gymnasium.make("placement/Contention-v0", loads=(0.6, 0.6))
    observation, info = environment.reset(seed=10_000)
    mask = environment.unwrapped.action_masks()
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from placement.learning.episodes import FIRST_SEED, Episodes, EpisodeSettings
from placement.model.throughput_table import TableModel, published_table
from placement.simulator.rates.rounds.run import RoundsSettings

NAME = "placement/Contention-v0"

HIGHEST = 8.0
"""No feature is larger."""


class ContentionEnvironment(gymnasium.Env[np.ndarray, np.int64]):
    """One run at a time; the trace of a reset follows from its seed, and of those after it from the next seeds.

    Args:
        settings: of the runs; default: the published table on its cluster.
        options: fields of `EpisodeSettings`, where `settings` are left out.

    Raises:
        UsageError: an option is out of range.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - gymnasium's own declaration

    def __init__(self, settings: EpisodeSettings | None = None, **options: Any) -> None:
        if settings is None:
            rounds = options.pop("rounds", None) or RoundsSettings(TableModel(published_table()))
            settings = EpisodeSettings(rounds, **options)
        self.episodes = Episodes(settings, 1)
        width = self.episodes.observations.shape[1]
        self.observation_space = spaces.Box(-1.0, HIGHEST, (width,), np.float32)
        self.action_space = spaces.Discrete(self.episodes.masks.shape[1])
        self._seed = FIRST_SEED

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin the run of a seed, or of the one after the last."""
        super().reset(seed=seed)
        if seed is not None:
            self._seed = seed
        self.episodes.reset(0, self._seed)
        info = {"seed": self._seed}
        self._seed += 1
        return self.episodes.observations[0].copy(), info

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take a step; one that the mask does not allow ends the round, because a checker draws without the mask.

        Raises:
            MltcpError: the run has taken too many rounds.
        """
        allowed = bool(self.episodes.masks[0, int(action)])
        self.episodes.step([int(action) if allowed else self.episodes.end_step])
        done = self.episodes.is_done(0)
        info: dict[str, Any] = {"mean_jct_s": self.episodes.mean_jct_s(0)} if done else {}
        return self.episodes.observations[0].copy(), float(self.episodes.rewards[0]), done, False, info

    def action_masks(self) -> np.ndarray:
        """The steps that are allowed, as sb3-contrib's MaskablePPO asks for them."""
        return self.episodes.masks[0].copy()


if NAME not in gymnasium.registry:
    gymnasium.register(NAME, entry_point=f"{__name__}:{ContentionEnvironment.__name__}")
