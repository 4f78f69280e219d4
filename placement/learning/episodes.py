"""Runs of traces, many at once, in which a policy chooses every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.quantities import NS_PER_S
from placement.model.compiled import compiled_with_arrays
from placement.policies.schedulers.contention.learned.step_rows import (
    OF_A_KIND,
    STEP,
    WIDTH,
    describe_rows,
    find_rows,
    rows_of,
)
from placement.policies.schedulers.contention.steps import LOOK_AHEADS
from placement.policies.schedulers.contention.tables import (
    JobKind,
    Records,
    TableProfile,
    all_kinds,
    kinds_on,
    name_of,
    node_counts,
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
from placement.traces.contention import JOBS, MIXES, ContentionMix, ContentionTrace

REWARDS = {"completion": COMPLETION, "paper": PAPER, "code": CODE}
"""The rewards by name."""

MOST_WITHOUT_STOPS = rows_of(stops=False)
"""Runs with more rows may stop jobs."""

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
        reward: one of `REWARDS`.
        w1: W1 of the paper's rewards; W2 is 1 - W1.
        at_once: the share of the runs in which all jobs come at time 0 whatever the loads are.
        trace: of which runs are parts, in place of drawn traces: so many jobs in a row, their arrivals stretched to the
            run's load; None for drawn traces.

    Raises:
        UsageError: a value is out of range.
    """

    rounds: RoundsSettings
    loads: tuple[float, float] | None = (0.4, 0.8)
    mixes: tuple[str, ...] = ("normal",)
    jobs: int = JOBS
    stops: bool = False
    reward: str = "completion"
    w1: float = 0.4
    at_once: float = 0.0
    trace: ContentionTrace | None = None

    def __post_init__(self) -> None:
        if self.loads is not None and not 0.001 <= self.loads[0] <= self.loads[1] <= 1000:
            raise UsageError(f"loads: expected a range within 0.001 to 1000, got {self.loads}")
        if not self.mixes or not set(self.mixes) <= set(MIXES):
            raise UsageError(f"mixes: expected some of {', '.join(MIXES)}, got {', '.join(self.mixes)}")
        if not 1 <= self.jobs <= 100_000:
            raise UsageError(f"jobs: expected 1 to 100000, got {self.jobs}")
        if self.reward not in REWARDS:
            raise UsageError(f"reward: expected {', '.join(REWARDS)}, got {self.reward}")
        if self.trace is not None and len(self.trace.jobs) < self.jobs:
            raise UsageError(
                f"jobs: expected up to {len(self.trace.jobs)}, which {self.trace.name} has, got {self.jobs}"
            )
        for name in ("w1", "at_once"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name}: expected 0 to 1, got {getattr(self, name)}")

    def mix(self, seed: int) -> ContentionMix:
        """The mix and the load of a seed: the same seed has the same ones whatever the range of seeds."""
        chance = np.random.default_rng([seed, 3])
        load, mix = chance.random(), self.mixes[int(chance.integers(len(self.mixes)))]
        gpus = self.rounds.nodes * self.rounds.gpus
        if self.loads is None or chance.random() < self.at_once:
            return ContentionMix(None, mix, self.jobs, gpus)
        low, high = self.loads
        return ContentionMix(low + load * (high - low), mix, self.jobs, gpus)

    def trace_of(self, seed: int) -> ContentionTrace:
        """The trace of a seed.

        Raises:
            UsageError: a negative seed, or the table has no row for a job.
        """
        mix, table = self.mix(seed), self.rounds.model.table
        return mix.trace(seed, table) if self.trace is None else mix.part_of(self.trace, seed, table)


@dataclass(eq=False)
class Episodes:
    """So many runs at once.

    A step is chosen by its row; see `step_rows`. Rows that are not there are zero.

    Attributes:
        settings: of the runs.
        count: how many.
        worlds: their states, stacked.
        found: the steps of each run, as many as it has `counts`.
        rows: what they are described by, (count, rows, numbers).
        counts: of the steps of each run.
        masks: the rows that each may choose; the end of a round is none where nothing runs and a job could be started.
        rewards: of the last step of each.
        rounds: that the last step of each has taken.
        states: GOES_ON, DONE or TOO_LONG, after the last step of each.
    """

    settings: EpisodeSettings
    count: int
    worlds: RoundsWorld = field(init=False)
    found: Records = field(init=False)
    rows: np.ndarray = field(init=False)
    counts: np.ndarray = field(init=False)
    masks: np.ndarray = field(init=False)
    rewards: np.ndarray = field(init=False)
    rounds: np.ndarray = field(init=False)
    states: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        settings, rounds = self.settings, self.settings.rounds
        sizes = (rounds.gpus,) * rounds.nodes
        kinds = kinds_of(rounds)
        tables = tables_of(kinds, sizes, with_sets=True)
        round_s, restart_s = rounds.round_ns / NS_PER_S, rounds.restart_ns / NS_PER_S
        rule, combination = LOOK_AHEADS[settings.stops], rounds.model.combination
        world = new_world(tables, sizes, settings.jobs, rule, round_s, restart_s, combination)
        self._fresh, self.worlds = world, stack(world, self.count)
        self._numbers = {kind: number for number, kind in enumerate(kinds)}
        most, slots = rows_of(settings.stops), len(world.slots) if settings.stops else 0
        self.found = np.zeros((self.count, most + OF_A_KIND), STEP)
        self.rows = np.zeros((self.count, most, WIDTH), np.float32)
        self.counts = np.zeros(self.count, np.int64)
        self.masks = np.zeros((self.count, most), np.bool_)
        self.rewards, self.states = np.zeros(self.count), np.zeros(self.count, np.int64)
        self.rounds = np.zeros(self.count, np.int64)
        self._before = np.zeros(self.count)
        self._objectives = np.zeros((self.count, 1), OBJECTIVE)
        self._allowed = np.zeros(len(kinds) * len(tables.sets) + 1 + slots, np.bool_)
        self._marks = np.zeros(rounds.nodes, np.int64)

    def reset(self, number: int, seed: int) -> None:
        """Begin a run anew with the trace of a seed; the reward before its first choice counts for its first step.

        Raises:
            UsageError: a negative seed, a job of which the table has no row, or one that fits on no number of nodes.
        """
        trace, model = self.settings.trace_of(seed), self.settings.rounds.model
        kinds = [self._numbers.get(JobKind(TableProfile(model, job.model), job.gpus)) for job in trace.jobs]
        for job, kind in zip(trace.jobs, kinds, strict=True):
            if kind is None:
                raise UsageError(
                    f"{trace.name}: job {job.name}: expected one that the table has a row for and that fits, "
                    f"got {job.model} on {job.gpus} GPUs"
                )
        for name, value in self.worlds._asdict().items():
            if name not in SHARED:
                value[number] = getattr(self._fresh, name)
        jobs = self.worlds.jobs[number]
        jobs["arrival"], jobs["kind"] = [job.arrival_ns for job in trace.jobs], kinds
        jobs["remaining"] = [job.samples for job in trace.jobs]
        self.states[number] = GOES_ON
        objective = self._objectives[number]
        objective[0] = REWARDS[self.settings.reward], self.settings.w1, 1 - self.settings.w1, 0, 0
        self._before[number] = begin_row(self.worlds, number, self._objectives, self._allowed, *self._views())

    def step(self, chosen: Sequence[int] | np.ndarray) -> None:
        """Take the steps of these rows in the runs that are not done; rows, masks, rewards and states follow.

        Raises:
            UsageError: a row that the mask does not allow.
            MltcpError: a run has taken too many rounds.
        """
        of_runs = np.asarray(chosen, np.int64)
        allowed = self.masks[np.arange(self.count), of_runs] | (self.states == DONE)
        if not allowed.all():
            number = int(np.argmin(allowed))
            raise UsageError(
                f"step: expected one that the mask allows, got {of_runs[number]} in run {number}"
            )
        self.take(self.found["step"][np.arange(self.count), of_runs])

    def take(self, steps: np.ndarray) -> None:
        """Take steps by their numbers (`steps`), whether they have a row or not, if they are allowed.

        Raises:
            MltcpError: a run has taken too many rounds.
        """
        advance_rows(
            self.worlds,
            self._objectives,
            steps,
            self._allowed,
            *self._views(),
            self.rewards,
            self.rounds,
            self.states,
        )
        self.rewards += self._before
        self._before[:] = 0
        if (self.states == TOO_LONG).any():
            raise MltcpError(f"a run has taken more than {MOST_ROUNDS} rounds: its policy places nothing")

    def is_done(self, number: int) -> bool:
        """Whether all jobs of a run have ended."""
        return bool(self.states[number] == DONE)

    def mean_jct_s(self, number: int) -> float:
        """The mean completion time of a run that is done."""
        jobs = self.worlds.jobs[number]
        return float(np.mean(jobs["finish"] - jobs["arrival"] / NS_PER_S))

    def _views(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        return self.found, self._marks, self.rows, self.counts, self.masks


def kind_names(rounds: RoundsSettings) -> tuple[str, ...]:
    """The names of these kinds, in their order."""
    return tuple(name_of(kind) for kind in kinds_of(rounds))


def kinds_of(rounds: RoundsSettings) -> tuple[JobKind, ...]:
    """All kinds of jobs of the table that fit, in an order that does not depend on the trace.

    Raises:
        UsageError: none fits.
    """
    sizes = (rounds.gpus,) * rounds.nodes
    kinds = tuple(kind for kind in all_kinds(rounds.model) if node_counts(kind, sizes))
    if not kinds:
        raise UsageError(
            f"table {rounds.model.table.name}: expected a kind of jobs that fits on {rounds.nodes} nodes of "
            f"{rounds.gpus} GPUs, got none"
        )
    return kinds_on(sizes, kinds)


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
    allowed: np.ndarray,
    found: Records,
    marks: np.ndarray,
    rows: np.ndarray,
    counts: np.ndarray,
    masks: np.ndarray,
) -> float:
    """Go to the first choice of a run; returns the reward so far."""
    reward = begin(row(worlds, number), objectives[number], allowed)
    view_row(worlds, number, found, marks, rows, counts, masks)
    return reward


@compiled_with_arrays
def advance_rows(
    worlds: RoundsWorld,
    objectives: Records,
    steps: np.ndarray,
    allowed: np.ndarray,
    found: Records,
    marks: np.ndarray,
    rows: np.ndarray,
    counts: np.ndarray,
    masks: np.ndarray,
    rewards: np.ndarray,
    rounds: np.ndarray,
    states: np.ndarray,
) -> None:
    """Take a step in every run that is not done.

    Args:
        worlds: stacked.
        objectives: of each run.
        steps: of each run, which are allowed.
        allowed: scratch, a value for each step that there is.
        found, rows, counts, masks: set to the next steps; see `Episodes`.
        marks: scratch.
        rewards: set to the rewards.
        rounds: set to how many the step has taken.
        states: of each run, GOES_ON, DONE or TOO_LONG; set anew.
    """
    for number in range(len(steps)):
        rewards[number], rounds[number] = 0.0, 0
        if states[number] == DONE:
            continue
        world = row(worlds, number)
        before = world.core[0].rounds
        rewards[number] = advance(world, objectives[number], steps[number], allowed)
        rounds[number] = world.core[0].rounds - before
        if world.core[0].ended == len(world.jobs):
            states[number] = DONE
        else:
            states[number] = TOO_LONG if world.core[0].rounds > MOST_ROUNDS else GOES_ON
        view_row(worlds, number, found, marks, rows, counts, masks)


@compiled_with_arrays
def view_row(
    worlds: RoundsWorld,
    number: int,
    found: Records,
    marks: np.ndarray,
    rows: np.ndarray,
    counts: np.ndarray,
    masks: np.ndarray,
) -> None:
    """Set what a run may choose next, and what it looks like."""
    world = row(worlds, number)
    stops = masks.shape[1] > MOST_WITHOUT_STOPS
    count = find_rows(world, found[number], marks, stops)
    describe_rows(world, found[number], count, rows[number])
    counts[number] = count
    masks[number] = False
    masks[number, :count] = True
    masks[number, 0] = count == 1 or world.core[0].running > 0
