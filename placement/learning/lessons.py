"""Lessons: what each step would cost, by simulation, in the states of runs that a look-ahead plays, or a policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from placement.learning.episodes import DONE, Episodes, EpisodeSettings, row
from placement.model.compiled import compiled_with_arrays
from placement.policies.schedulers.contention.learned.checkpoint import Checkpoint
from placement.policies.schedulers.contention.learned.learned import (
    StepNetwork,
    network_of,
    score_rows,
    simulated_with,
)
from placement.policies.schedulers.contention.look_ahead import NEVER, PLACE, WAIT, simulated
from placement.policies.schedulers.contention.rule import REOPT_LOOK
from placement.policies.schedulers.contention.steps import end_step, rule_step
from placement.policies.schedulers.contention.world import RoundsWorld, trial_of

Tell = Callable[[str, int, int, float | None], None]
"""Is told what is done, how far, of how much, and the mean completion time (s) of the last runs, if there are any."""

_AT_ONCE = 32

TOLD_APART = 0.01
"""Sums of completion times are told apart by this share of the least one.

Whatever a step changes, other jobs later start at other times and places, which moves the sum by one to two per cent:
by 1,600 s where 5 to 20 jobs wait, by 300,000 s where 160 and more do. To tell apart less is to learn from chance.
"""

_MOST = 1.0 + 6.0 * TOLD_APART
"""Sums that exceed the least one by more than this factor are not simulated to their end."""


class Lessons(NamedTuple):
    """Choices, one a row.

    Attributes:
        rows: of each, what is told of its steps, (choices, steps, numbers); see `step_rows`.
        targets: the probabilities with which its steps should be taken, (choices, steps).
    """

    rows: np.ndarray
    targets: np.ndarray


def watch(
    settings: EpisodeSettings,
    first_seed: int,
    count: int,
    player: Checkpoint | None = None,
    tell: Tell = lambda what, done, most, score: None,
    guide: Checkpoint | None = None,
) -> Lessons:
    """Play runs from a seed on, and note what the steps in each state cost.

    Each step is tried by simulating the present jobs to their end, with the rule `greedy` in the simulation or the
    guide. A step after which the sum of the times at which they end, from now, is larger than the least by a share s is
    to be taken less often by exp(-s / `TOLD_APART`): so a mistake that costs little is little of a mistake (Ross and
    Bagnell, AggreVaTe, 2014). Where jobs may be stopped and nothing guides, the step of `reopt-look` alone is to be
    taken.

    Args:
        settings: of the runs.
        first_seed: of the first run.
        count: of runs.
        player: chooses the steps; None for those that cost least.
        tell: is told how far it is.
        guide: of the simulations; None for the rule.
    """
    episodes = Episodes(settings, min(count, _AT_ONCE))
    nodes, plan, trial = (
        settings.rounds.nodes,
        trial_of(row(episodes.worlds, 0)),
        trial_of(row(episodes.worlds, 0)),
    )
    ahead = None if guide is None else network_of(guide.layers, nodes, settings.stops)
    plays = None if player is None else network_of(player.layers, nodes, settings.stops)
    playing = {number: first_seed + number for number in range(episodes.count)}
    for number, seed in playing.items():
        episodes.reset(number, seed)
    next_seed, ended = first_seed + episodes.count, 0
    rows, targets = [], []
    weights = np.zeros(episodes.masks.shape)
    while playing:
        if ahead is None:
            weigh_by_rule(
                episodes.worlds, episodes.states, plan, trial, episodes.found, episodes.masks, weights
            )
        else:
            weigh_by_guide(
                *(episodes.worlds, episodes.states, trial, ahead, episodes.found, episodes.masks, weights)
            )
        open_runs = [
            number for number in playing if episodes.counts[number] > 1 and weights[number].sum() > 0
        ]
        rows.append(episodes.rows[open_runs].astype(np.float16))
        targets.append(weights[open_runs].astype(np.float16))
        chosen = weights.argmax(axis=1) if plays is None else preferred(episodes, plays)
        episodes.step(
            np.where(episodes.masks[np.arange(episodes.count), chosen], chosen, episodes.masks.argmax(axis=1))
        )
        for number in [each for each in playing if episodes.is_done(each)]:
            del playing[number]
            ended += 1
            tell("teacher", ended, count, None)
            if next_seed < first_seed + count:
                playing[number] = next_seed
                episodes.reset(number, next_seed)
                next_seed += 1
    return Lessons(np.concatenate(rows), np.concatenate(targets))


def preferred(
    episodes: Episodes, network: StepNetwork, chance: np.random.Generator | None = None
) -> np.ndarray:
    """The row that a network prefers in each run, or one drawn from its probabilities."""
    logits = np.zeros(episodes.masks.shape, np.float32)
    score_runs(network, episodes.rows, episodes.counts, logits)
    if chance is not None:
        logits += chance.gumbel(size=logits.shape).astype(np.float32)
    return np.asarray(np.where(episodes.masks, logits, -np.inf).argmax(axis=1))


@compiled_with_arrays
def score_runs(network: StepNetwork, rows: np.ndarray, counts: np.ndarray, logits: np.ndarray) -> None:
    """Set the logits of the rows of many runs."""
    for number in range(len(rows)):
        score_rows(network, rows[number], counts[number], logits[number])


# -- what steps cost ---------------------------------------------------------------------------------------------------


@compiled_with_arrays
def weigh_by_rule(
    worlds: RoundsWorld,
    states: np.ndarray,
    plan: RoundsWorld,
    trial: RoundsWorld,
    found: np.ndarray,
    masks: np.ndarray,
    weights: np.ndarray,
) -> None:
    """Set the probabilities of the steps of each run that is not done, by the look-ahead of its rule.

    Args:
        worlds: stacked.
        states: of the runs.
        plan, trial: scratch.
        found, masks: the steps of each run; see `Episodes`.
        weights: set to the probabilities.
    """
    for number in range(len(states)):
        weights[number] = 0.0
        if states[number] == DONE:
            continue
        world = row(worlds, number)
        if world.core[0].family == REOPT_LOOK:
            step = rule_step(world, plan, trial)
            for each in range(masks.shape[1]):
                if masks[number, each] and found[number, each].step == step:
                    weights[number, each] = 1.0
            continue
        best = NEVER
        for each in range(masks.shape[1]):
            if not masks[number, each]:
                weights[number, each] = NEVER
                continue
            tried = found[number, each]
            bound = best * _MOST
            if tried.step == end_step(world):
                weights[number, each] = simulated(world, trial, WAIT, 0, bound)
            else:
                chosen = world.choices[0]
                chosen.job, chosen.cell, chosen.nodes = tried.job, tried.cell, tried.nodes
                weights[number, each] = simulated(world, trial, PLACE, 0, bound)
            best = min(best, weights[number, each])
        soften(weights[number], best)


@compiled_with_arrays
def weigh_by_guide(
    worlds: RoundsWorld,
    states: np.ndarray,
    trial: RoundsWorld,
    network: StepNetwork,
    found: np.ndarray,
    masks: np.ndarray,
    weights: np.ndarray,
) -> None:
    """As `weigh_by_rule`, with a network that decides in the simulations."""
    for number in range(len(states)):
        weights[number] = 0.0
        if states[number] == DONE:
            continue
        world = row(worlds, number)
        best = NEVER
        for each in range(masks.shape[1]):
            total = NEVER
            if masks[number, each]:
                total = simulated_with(world, trial, network, found[number, each].step, best * _MOST)
            weights[number, each], best = total, min(best, total)
        soften(weights[number], best)


@compiled_with_arrays
def soften(totals: np.ndarray, best: float) -> None:
    """Turn sums of completion times into probabilities."""
    whole = 0.0
    for each in range(len(totals)):
        totals[each] = math.exp((1.0 - totals[each] / best) / TOLD_APART) if totals[each] < NEVER else 0.0
        whole += totals[each]
    for each in range(len(totals)):
        totals[each] /= max(whole, 1e-300)
