"""Runs of drawn traces, many at once, in which a policy chooses every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.quantities import NS_PER_S
from placement.model.compiled import compiled_with_arrays
from placement.policies.schedulers.contention.learned.features import feature_count, observe_features
from placement.policies.schedulers.contention.steps import LOOK_AHEADS
from placement.policies.schedulers.contention.tables import (
    JobKind,
    Records,
    TableProfile,
    kinds_on,
    name_of,
    tables_of,
)
from placement.policies.schedulers.contention.world import SHARED, RoundsWorld, new_world
from placement.simulator.rates.rounds.loop import (
    CODE,
    COMPLETION,
    MOST_ROUNDS,
    OBJECTIVE,
    PAPER,
    advance,
    begin,
)
from placement.simulator.rates.rounds.run import RoundsSettings
from placement.traces.contention import DEMANDS, JOBS, MIXES, MODELS, ContentionMix

REWARDS = {"completion": COMPLETION, "paper": PAPER, "code": CODE}
"""The rewards by name."""

FIRST_SEED = 10_000
"""Traces to learn from have this seed or a larger one."""


@dataclass(frozen=True)
class EpisodeSettings:
    """The runs to draw.

    Attributes:
        rounds: the cluster, its throughput model, and the cost of a restart.
        loads: the range from which a run's load is drawn; None for all jobs at time 0.
        mixes: of which a run's mix is drawn.
        jobs: of a run.
        stops: whether running jobs may be stopped.
        gains: whether observations contain the gains of `greedy`.
        reward: one of `REWARDS`.
        w1: W1 of the paper's rewards; W2 is 1 - W1.
        at_once: the share of the runs in which all jobs come at time 0 whatever the loads are.

    Raises:
        UsageError: a value is out of range.
    """

    rounds: RoundsSettings
    loads: tuple[float, float] | None = (0.4, 0.8)
    mixes: tuple[str, ...] = ("normal",)
    jobs: int = JOBS
    stops: bool = False
    gains: bool = True
    reward: str = "completion"
    w1: float = 0.4
    at_once: float = 0.0

    def __post_init__(self) -> None:
        if self.loads is not None and not 0.001 <= self.loads[0] <= self.loads[1] <= 1000:
            raise UsageError(f"loads: expected a range within 0.001 to 1000, got {self.loads}")
        if not self.mixes or not set(self.mixes) <= set(MIXES):
            raise UsageError(f"mixes: expected some of {', '.join(MIXES)}, got {', '.join(self.mixes)}")
        if not 1 <= self.jobs <= 100_000:
            raise UsageError(f"jobs: expected 1 to 100000, got {self.jobs}")
        if self.reward not in REWARDS:
            raise UsageError(f"reward: expected {', '.join(REWARDS)}, got {self.reward}")
        for name in ("w1", "at_once"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name}: expected 0 to 1, got {getattr(self, name)}")

    def mix(self, seed: int) -> ContentionMix:
        """The mix and the load of a seed: the same seed has the same ones whatever the range of seeds."""
        chance = np.random.default_rng([seed, 3])
        load, mix = chance.random(), self.mixes[int(chance.integers(len(self.mixes)))]
        if self.loads is None or chance.random() < self.at_once:
            return ContentionMix(None, mix, self.jobs)
        low, high = self.loads
        return ContentionMix(low + load * (high - low), mix, self.jobs)


@dataclass(eq=False)
class Episodes:
    """So many runs at once.

    Attributes:
        settings: of the runs.
        count: how many.
        worlds: their states, stacked.
        observations: a row each; see `placement.policies.schedulers.contention.features`.
        masks: the steps that each may take.
        rewards: of the last step of each.
        states: GOES_ON, DONE or TOO_LONG, after the last step of each.
    """

    settings: EpisodeSettings
    count: int
    worlds: RoundsWorld = field(init=False)
    observations: np.ndarray = field(init=False)
    masks: np.ndarray = field(init=False)
    rewards: np.ndarray = field(init=False)
    states: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        settings, rounds = self.settings, self.settings.rounds
        sizes = (rounds.gpus,) * rounds.nodes
        kinds = kinds_of(rounds)
        tables = tables_of(kinds, sizes, with_sets=True)
        round_s, restart_s = rounds.round_ns / NS_PER_S, rounds.restart_ns / NS_PER_S
        rule, combination = LOOK_AHEADS[settings.stops], rounds.model.combination
        world = new_world(tables, sizes, settings.jobs, rule, round_s, restart_s, combination)
        self._sizes = np.array(sizes, np.int64)
        self._fresh, self.worlds = world, stack(world, self.count)
        # Of the cluster, not of the runs, so that a policy fits runs of any number of jobs.
        self.slots = sum(sizes) // min(kind.gpus for kind in kinds)
        model, table = rounds.model, rounds.model.table
        self._kind_of = np.array(
            [[kinds.index(JobKind(TableProfile(model, name), gpus)) for gpus in DEMANDS] for name in MODELS]
        )
        self._samples_of = np.array([[table.job_samples(name, gpus) for gpus in DEMANDS] for name in MODELS])
        steps = len(kinds) * len(tables.sets) + 1 + (self.slots if settings.stops else 0)
        width = feature_count(len(kinds), rounds.nodes, len(tables.sets), self.slots, settings.gains)
        self.observations = np.zeros((self.count, width), np.float32)
        self.masks = np.zeros((self.count, steps), np.bool_)
        self.rewards, self.states = np.zeros(self.count), np.zeros(self.count, np.int64)
        self._before = np.zeros(self.count)
        self._objectives = np.zeros((self.count, 1), OBJECTIVE)

    def reset(self, number: int, seed: int) -> None:
        """Begin a run anew with the trace of a seed; the reward before its first choice counts for its first step.

        Raises:
            UsageError: a negative seed.
        """
        models, demands, arrivals_ns = self.settings.mix(seed).draw(seed)
        columns = np.searchsorted(DEMANDS, demands)
        for name, value in self.worlds._asdict().items():
            if name not in SHARED:
                value[number] = getattr(self._fresh, name)
        jobs = self.worlds.jobs[number]
        jobs["arrival"], jobs["kind"] = arrivals_ns, self._kind_of[models, columns]
        jobs["remaining"] = self._samples_of[models, columns]
        self.states[number] = GOES_ON
        objective = self._objectives[number]
        objective[0] = REWARDS[self.settings.reward], self.settings.w1, 1 - self.settings.w1, 0, 0
        self._before[number] = begin_row(
            self.worlds, number, self._objectives, self.slots, self._sizes, self.observations, self.masks
        )

    def step(self, steps: Sequence[int] | np.ndarray) -> None:
        """Take a step in each run that is not done; observations, masks, rewards and states follow.

        Raises:
            UsageError: a step that the mask does not allow.
            MltcpError: a run has taken too many rounds.
        """
        chosen = np.asarray(steps, np.int64)
        allowed = self.masks[np.arange(self.count), chosen] | (self.states == DONE)
        if not allowed.all():
            number = int(np.argmin(allowed))
            raise UsageError(f"step: expected one that the mask allows, got {chosen[number]} in run {number}")
        advance_rows(
            self.worlds,
            self._objectives,
            chosen,
            self.slots,
            self._sizes,
            self.observations,
            self.masks,
            self.rewards,
            self.states,
        )
        self.rewards += self._before
        self._before[:] = 0
        if (self.states == TOO_LONG).any():
            raise MltcpError(f"a run has taken more than {MOST_ROUNDS} rounds: its policy places nothing")

    def masks_without_idling(self) -> np.ndarray:
        """The masks without the end of the round where nothing runs and something could be started."""
        masks = self.masks.copy()
        idle = (self.worlds.core["running"][:, 0] == 0) & (masks.sum(axis=1) > 1)
        masks[idle, self.end_step] = False
        return masks

    def is_done(self, number: int) -> bool:
        """Whether all jobs of a run have ended."""
        return bool(self.states[number] == DONE)

    @property
    def end_step(self) -> int:
        """The step that ends the round."""
        return len(self.worlds.kinds) * len(self.worlds.sets)

    def mean_jct_s(self, number: int) -> float:
        """The mean completion time of a run that is done."""
        jobs = self.worlds.jobs[number]
        return float(np.mean(jobs["finish"] - jobs["arrival"] / NS_PER_S))


def kind_names(rounds: RoundsSettings) -> tuple[str, ...]:
    """The names of these kinds, in their order."""
    return tuple(name_of(kind) for kind in kinds_of(rounds))


def kinds_of(rounds: RoundsSettings) -> tuple[JobKind, ...]:
    """All kinds of jobs of the table that fit, in an order that does not depend on the trace."""
    sizes = (rounds.gpus,) * rounds.nodes
    drawn = [JobKind(TableProfile(rounds.model, model), gpus) for model in MODELS for gpus in DEMANDS]
    return kinds_on(sizes, drawn)


# -- many runs at once: the state of each in one row of larger arrays, stepped in compiled code ------------------------


GOES_ON, DONE, TOO_LONG = range(3)
"""The state of a run after a step."""


def stack(world: RoundsWorld, count: int) -> RoundsWorld:
    """So many copies of a world, as rows of each field that they do not share."""
    fields = world._asdict()
    return RoundsWorld(
        **{
            name: value if name in SHARED else np.repeat(value[None], count, axis=0)
            for name, value in fields.items()
        }
    )


@compiled_with_arrays
def row(worlds: RoundsWorld, number: int) -> RoundsWorld:
    """One of the stacked worlds; changes to it change the stack."""
    return RoundsWorld(
        worlds.core[number],
        worlds.jobs[number],
        worlds.kinds,
        worlds.cells,
        worlds.ratios,
        worlds.sets,
        worlds.free[number],
        worlds.room[number],
        worlds.queue[number],
        worlds.slots[number],
        worlds.spare_slots[number],
        worlds.spare_free[number],
        worlds.heads[number],
        worlds.competing[number],
        worlds.choices[number],
    )


@compiled_with_arrays
def begin_row(
    worlds: RoundsWorld,
    number: int,
    objectives: Records,
    slots: int,
    sizes: np.ndarray,
    found: np.ndarray,
    masks: np.ndarray,
) -> float:
    """Go to the first choice of a run; returns the reward so far."""
    world = row(worlds, number)
    reward = begin(world, objectives[number], masks[number])
    observe_features(world, slots, sizes, found[number])
    return reward


@compiled_with_arrays
def advance_rows(
    worlds: RoundsWorld,
    objectives: Records,
    steps: np.ndarray,
    slots: int,
    sizes: np.ndarray,
    found: np.ndarray,
    masks: np.ndarray,
    rewards: np.ndarray,
    states: np.ndarray,
) -> None:
    """Take a step in every run that is not done.

    Args:
        worlds: stacked.
        objectives: of each run.
        steps: of each run, allowed by its mask.
        slots: the most jobs that can run.
        sizes: the GPUs of each node.
        found: set to the observations.
        masks: set to the steps that are allowed next.
        rewards: set to the rewards.
        states: of each run, GOES_ON, DONE or TOO_LONG; set anew.
    """
    for number in range(len(steps)):
        if states[number] == DONE:
            rewards[number] = 0.0
            continue
        world = row(worlds, number)
        rewards[number] = advance(world, objectives[number], steps[number], masks[number])
        if world.core[0].ended == len(world.jobs):
            states[number] = DONE
        else:
            states[number] = TOO_LONG if world.core[0].rounds > MOST_ROUNDS else GOES_ON
        observe_features(world, slots, sizes, found[number])
