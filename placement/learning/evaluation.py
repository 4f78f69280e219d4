"""Comparison of learned policies with rules on traces that none of them has seen, paired trace by trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mltcp.core.errors import UsageError
from placement.learning.episodes import DONE, Episodes, EpisodeSettings, row
from placement.learning.lessons import preferred
from placement.model.compiled import compiled_with_arrays
from placement.policies.schedulers.contention.learned.checkpoint import STEPS, Checkpoint, digest_of_table
from placement.policies.schedulers.contention.learned.learned import (
    StepNetwork,
    guided_step,
    network_of,
)
from placement.policies.schedulers.contention.rule import NAMES, find_rule
from placement.policies.schedulers.contention.world import RoundsWorld, trial_of
from placement.simulator.rates.rounds.run import run_rule

RESAMPLES = 50_000

LOOKING = " with look-ahead"
"""Behind the name of a policy that guides a look-ahead."""

_AT_ONCE = 64


@dataclass(frozen=True, eq=False)
class LearnedComparison:
    """Completion times of policies on the same traces.

    Attributes:
        rule: that all are compared with.
        policies: the names of the others.
        seeds: of the traces.
        rule_s: the rule's mean completion time on each trace.
        policies_s: of each policy (row) on each trace (column).
    """

    rule: str
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    rule_s: np.ndarray
    policies_s: np.ndarray

    @property
    def ratios(self) -> np.ndarray:
        """Policy / rule, a row a policy."""
        return np.asarray(self.policies_s / self.rule_s)


@dataclass(frozen=True)
class RatioEstimate:
    """The interquartile mean of ratios, and its 95 % interval.

    Attributes:
        mean: of the middle half of all ratios, over policies and traces.
        low: where the interval begins.
        high: where it ends.
        below_1: the share of ratios below 1.
        worst_decile: the 90th percentile of the ratios.
    """

    mean: float
    low: float
    high: float
    below_1: float
    worst_decile: float


def estimate(ratios: np.ndarray, resamples: int = RESAMPLES, seed: int = 0) -> RatioEstimate:
    """The interquartile mean with a stratified bootstrap interval, as Agarwal et al. (NeurIPS 2021) propose it.

    Args:
        ratios: a row a training seed, a column a trace; of each trace, rows are drawn anew with replacement, and with
            one row, traces are.
        resamples: how many.
        seed: of the draws.
    """
    chance = np.random.default_rng(seed)
    rows, columns = ratios.shape
    means = np.empty(resamples)
    for number in range(resamples):
        if rows > 1:
            drawn = ratios[chance.integers(rows, size=(rows, columns)), np.arange(columns)]
        else:
            drawn = ratios[0, chance.integers(columns, size=columns)]
        means[number] = _interquartile_mean(drawn)
    low, high = np.quantile(means, (0.025, 0.975))
    return RatioEstimate(
        _interquartile_mean(ratios),
        float(low),
        float(high),
        float((ratios < 1).mean()),
        float(np.quantile(ratios, 0.9)),
    )


def compare(
    checkpoints: Sequence[tuple[str, Checkpoint]],
    rules: Sequence[str],
    settings: EpisodeSettings,
    seeds: Sequence[int],
    look_ahead: bool = False,
    advance: Callable[[str], None] = lambda what: None,
) -> LearnedComparison:
    """Run learned policies and rules on the same traces; the first rule is the one that all are compared with.

    With `look_ahead`, each policy also guides a look-ahead.

    Raises:
        UsageError: no rule, an unknown one, or a checkpoint of another shape.
    """
    if not rules:
        raise UsageError("rules: expected one or more, got none")
    traces = [settings.trace_of(seed) for seed in seeds]
    times: list[np.ndarray] = []
    for name in rules:
        rule = find_rule(name)
        if rule is None:
            raise UsageError(f"rules: expected {NAMES.allowed}, got {name}")
        times.append(np.array([run_rule(trace, settings.rounds, name, rule).mean_jct_s for trace in traces]))
        advance(name)
    names = list(rules[1:])
    for name, checkpoint in checkpoints:
        for looks_ahead in (False, True) if look_ahead else (False,):
            times.append(np.array(play(checkpoint, settings, seeds, looks_ahead)))
            names.append(f"{name}{LOOKING if looks_ahead else ''}")
            advance(names[-1])
    return LearnedComparison(rules[0], tuple(names), tuple(seeds), times[0], np.array(times[1:]))


def play(
    checkpoint: Checkpoint, settings: EpisodeSettings, seeds: Sequence[int], looks_ahead: bool = False
) -> list[float]:
    """The mean completion times under a policy that always takes the step that it prefers, or guides a look-ahead.

    Raises:
        UsageError: the checkpoint has another shape.
    """
    check_fits(checkpoint, settings)
    found: dict[int, float] = {}
    for begin in range(0, len(seeds), _AT_ONCE):
        some = seeds[begin : begin + _AT_ONCE]
        episodes = Episodes(settings, len(some))
        network, ahead = (
            network_of(checkpoint.layers, settings.rounds.nodes, settings.stops) for _ in range(2)
        )
        for number, seed in enumerate(some):
            episodes.reset(number, seed)
        playing, steps = set(range(len(some))), np.zeros(len(some), np.int64)
        plan, trial = trial_of(row(episodes.worlds, 0)), trial_of(row(episodes.worlds, 0))
        while playing:
            if looks_ahead:
                guided_steps(episodes.worlds, episodes.states, plan, trial, network, ahead, steps)
                episodes.take(steps)
            else:
                episodes.step(preferred(episodes, network))
            for number in [each for each in playing if episodes.is_done(each)]:
                found[some[number]] = episodes.mean_jct_s(number)
                playing.discard(number)
    return [found[seed] for seed in seeds]


@compiled_with_arrays
def guided_steps(
    worlds: RoundsWorld,
    states: np.ndarray,
    plan: RoundsWorld,
    trial: RoundsWorld,
    network: StepNetwork,
    ahead: StepNetwork,
    steps: np.ndarray,
) -> None:
    """Set the next step of each of these stacked worlds whose run is not done; a network guides the look-ahead."""
    for number in range(len(steps)):
        if states[number] != DONE:
            steps[number] = guided_step(row(worlds, number), plan, trial, network, ahead)[0]


def check_fits(checkpoint: Checkpoint, settings: EpisodeSettings) -> None:
    """Refuse a checkpoint that sees something else, or may stop jobs where runs have no stops, or the other way round.

    Raises:
        UsageError: it does.
    """
    for name, expected, given in (
        ("view", STEPS, checkpoint.header.view),
        ("stops", settings.stops, checkpoint.header.stops),
    ):
        if expected != given:
            raise UsageError(f"checkpoint: {name}: expected {expected}, got {given}")


def uses_table_of(checkpoint: Checkpoint, settings: EpisodeSettings) -> bool:
    """Whether the checkpoint was trained with the table of these settings."""
    return digest_of_table(settings.rounds.model.table) in checkpoint.header.tables


def _interquartile_mean(values: np.ndarray) -> float:
    ordered = np.sort(values, axis=None)
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())
