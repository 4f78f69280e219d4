"""The gymnasium environments `placement/Contention-v0` and, as the paper has it, `placement/PublishedContention-v0`.

::

    import gymnasium
    import placement.learning.environment  # registers them

    environment = gymnasium.make("placement/Contention-v0", loads=(0.6, 0.6))
    observation, info = environment.reset(seed=10_000)
    mask = environment.unwrapped.action_masks()

    environment = gymnasium.make("placement/PublishedContention-v0", reward="code", w1=0.4)
    grid, info = environment.reset(seed=10_000)

In the first an observation has a row for each step that is worth considering, a start, a stop or the end of the round
(`placement.policies.schedulers.contention.learned.step_rows`), and an action is the number of a row. In the second an
action is one of the eight of the paper on its grid: a set of nodes, on which the first candidate that fits is started,
or nothing. What starts no job ends the round. The stop rule is on, and no action is masked, as in the public code.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from mltcp.core.quantities import NS_PER_S
from placement.learning.episodes import FIRST_SEED, REWARDS, Episodes, EpisodeSettings
from placement.model.throughput_table import TableModel, published_table
from placement.policies.schedulers.contention.learned.published import RULE_OF, new_grid, observe_grid
from placement.policies.schedulers.contention.ordered import act, find_candidates
from placement.policies.schedulers.contention.rounds import begin_decision
from placement.simulator.rates.rounds.loop import MOST_ROUNDS, OBJECTIVE, admit, pass_round
from placement.simulator.rates.rounds.run import RoundsSettings, world_of

# -- ours --------------------------------------------------------------------------------------------------------------


NAME = "placement/Contention-v0"

HIGHEST = 8.0
"""No number of a row is larger, nor less than minus this."""


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
        self.episodes = Episodes(settings or _settings(**options), 1)
        shape = self.episodes.rows.shape[1:]
        self.observation_space = spaces.Box(-HIGHEST, HIGHEST, shape, np.float32)
        self.action_space = spaces.Discrete(shape[0])
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
        return self.episodes.rows[0].copy(), info

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take the step of a row; where the mask forbids it, that of the first it allows: a checker knows no mask.

        Raises:
            MltcpError: the run has taken too many rounds.
        """
        mask = self.episodes.masks[0]
        self.episodes.step([int(action) if mask[int(action)] else int(mask.argmax())])
        done = self.episodes.is_done(0)
        info: dict[str, Any] = {"mean_jct_s": self.episodes.mean_jct_s(0)} if done else {}
        return self.episodes.rows[0].copy(), float(self.episodes.rewards[0]), done, False, info

    def action_masks(self) -> np.ndarray:
        """The rows that may be chosen."""
        return self.episodes.masks[0].copy()


if NAME not in gymnasium.registry:
    gymnasium.register(NAME, entry_point=f"{__name__}:{ContentionEnvironment.__name__}")


def _settings(rounds: RoundsSettings | None = None, **options: Any) -> EpisodeSettings:
    return EpisodeSettings(rounds or RoundsSettings(TableModel(published_table())), **options)


# -- that of the paper -------------------------------------------------------------------------------------------------


PUBLISHED_NAME = "placement/PublishedContention-v0"

EPISODES_A_TRACE = 20
"""The paper repeats each of its ten sets of jobs so often."""

TRACES = 10
"""The sets of jobs of a training."""


class PublishedEnvironment(gymnasium.Env[np.ndarray, np.int64]):
    """One run at a time; after a reset with a seed come the traces of ten seeds from there on, each 20 times.

    Args:
        settings: of the runs; default: the published table, all jobs at time 0, and the reward of the public code.
        first_seed: of the ten, until a reset gives another.
        options: fields of `EpisodeSettings`, where `settings` are left out.

    Raises:
        UsageError: an option is out of range.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - gymnasium's own declaration

    def __init__(
        self, settings: EpisodeSettings | None = None, first_seed: int = FIRST_SEED, **options: Any
    ) -> None:
        settings = settings or _settings(**{"loads": None, "reward": "code", **options})
        self.settings = settings
        self._first_seed, self._episode = first_seed, 0
        self._before = 0.0
        self._objective = np.zeros(1, OBJECTIVE)
        self.grid = new_grid(settings.rounds.nodes, settings.rounds.gpus)
        self._begin(first_seed)
        kinds = len(self.world.kinds)
        self.observation_space = spaces.Box(0, kinds, (self.grid.size,), np.float32)
        self.action_space = spaces.Discrete(len(self.world.sets) + 1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin the run of a seed, or the next one."""
        super().reset(seed=seed)
        if seed is not None:
            self._first_seed, self._episode = seed, 0
        given = self._first_seed + self._episode // EPISODES_A_TRACE % TRACES
        self._episode += 1
        self._begin(given)
        return self._observation(), {"seed": given}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take an action; the run is cut off if it takes too many rounds."""
        reward, self._before = self._before, 0.0
        if not act(self.world, int(action), self._candidates):
            reward += self._pass_rounds()
        self._look()
        if self._candidates == 0 and not self.is_done:
            reward += self._pass_rounds()
        info: dict[str, Any] = {"mean_jct_s": self.mean_jct_s} if self.is_done else {}
        return self._observation(), reward, self.is_done, self._is_too_long, info

    @property
    def is_done(self) -> bool:
        """Whether all jobs have ended."""
        return bool(self.world.core[0]["ended"] == len(self.world.jobs))

    @property
    def mean_jct_s(self) -> float:
        """The mean completion time of a run that is done."""
        jobs = self.world.jobs
        return float(np.mean(jobs["finish"] - jobs["arrival"] / NS_PER_S))

    @property
    def _is_too_long(self) -> bool:
        return not self.is_done and bool(self.world.core[0]["rounds"] > MOST_ROUNDS)

    def _begin(self, seed: int) -> None:
        settings = self.settings
        trace = settings.trace_of(seed)
        self.world = world_of(trace, settings.rounds, RULE_OF["rl-base"])
        self._objective[0] = REWARDS[settings.reward], settings.w1, 1 - settings.w1, 0, 0
        admit(self.world)
        begin_decision(self.world)
        self._look()
        # Counts for the first step.
        self._before = 0.0 if self._candidates else self._pass_rounds()

    def _pass_rounds(self) -> float:
        """Pass rounds until a job waits, all have ended, or there were too many; returns the reward."""
        reward = 0.0
        while True:
            reward += pass_round(self.world, self._objective)
            self._look()
            if self._candidates or self.is_done or self._is_too_long:
                return reward

    def _look(self) -> None:
        self._candidates = find_candidates(self.world)
        observe_grid(self.world, self._candidates, self.grid)

    def _observation(self) -> np.ndarray:
        return self.grid.reshape(-1).copy()


if PUBLISHED_NAME not in gymnasium.registry:
    gymnasium.register(PUBLISHED_NAME, entry_point=f"{__name__}:{PublishedEnvironment.__name__}")
