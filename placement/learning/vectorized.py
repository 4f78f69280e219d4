"""Many runs as one vectorised environment of stable-baselines3."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

from placement.learning.environment import HIGHEST
from placement.learning.episodes import Episodes

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
