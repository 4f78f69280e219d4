"""Learned policies as schedulers: one start or stop after the other, until the round is ended.

``learned`` takes the steps that a network prefers, ``learned-look`` tries a few of them by simulation; both with the
policy that is shipped, or with ``:FILE`` behind the name with another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from mltcp.core.quantities import NS_PER_S
from placement.model.cluster import Cluster
from placement.model.compiled import compiled, compiled_with_arrays
from placement.policies.schedulers.contention.learned.checkpoint import (
    STEPS,
    Checkpoint,
    Layers,
    load_view,
    pass_layer,
)
from placement.policies.schedulers.contention.learned.step_rows import (
    NUMBERS,
    OF_A_KIND,
    STEP,
    WIDTH,
    describe_rows,
    find_rows,
    rows_of,
)
from placement.policies.schedulers.contention.look_ahead import EQUAL_S, NEVER, copy_to
from placement.policies.schedulers.contention.rounds import (
    begin_decision,
    end_decision,
    pass_rounds,
    run_round,
)
from placement.policies.schedulers.contention.rounds_scheduler import RoundsScheduler, observe
from placement.policies.schedulers.contention.steps import (
    LOOK_AHEADS,
    end_step,
    rule_step,
    rule_total,
    take_step,
)
from placement.policies.schedulers.contention.tables import Records
from placement.policies.schedulers.contention.world import RoundsWorld, trial_of
from placement.policies.schedulers.scheduler import JobView

# -- the network -------------------------------------------------------------------------------------------------------


class StepNetwork(NamedTuple):
    """The layers of a network that scores steps, and scratch for its computation.

    Attributes:
        first, first_bias, second, second_bias: of each row by itself.
        third, third_bias: of a row's numbers and, in the lower half, the largest ones of all rows.
        fourth, fourth_bias: one number a row.
        found: the steps of the last decision; see `step_rows.find_rows`.
        marks: scratch, a number a node.
        rows: of the last decision.
        hidden, one, two, base, pooled: scratch.
        logits: of the last decision.
        stops: whether running jobs may be stopped, an array of one number.
    """

    first: np.ndarray
    first_bias: np.ndarray
    second: np.ndarray
    second_bias: np.ndarray
    third: np.ndarray
    third_bias: np.ndarray
    fourth: np.ndarray
    fourth_bias: np.ndarray
    found: Records
    marks: np.ndarray
    rows: np.ndarray
    hidden: np.ndarray
    one: np.ndarray
    two: np.ndarray
    base: np.ndarray
    pooled: np.ndarray
    logits: np.ndarray
    stops: np.ndarray


def network_of(layers: Layers, nodes: int, stops: bool) -> StepNetwork:
    """The network of these layers, for a cluster of so many nodes."""
    weights = [np.ascontiguousarray(values, np.float32) for layer in layers for values in layer]
    most, width, last = rows_of(stops), len(weights[3]), len(weights[5])
    return StepNetwork._make(
        (
            *weights,
            np.zeros(most + OF_A_KIND, STEP),
            np.zeros(nodes, np.int64),
            np.zeros((most, WIDTH), np.float32),
            np.zeros((most, width), np.float32),
            np.zeros(len(weights[1]), np.float32),
            np.zeros(last, np.float32),
            np.zeros(last, np.float32),
            np.zeros(width, np.float32),
            np.zeros(most, np.float32),
            np.array([stops]),
        )
    )


@compiled_with_arrays
def score_rows(network: StepNetwork, rows: np.ndarray, count: int, logits: np.ndarray) -> None:
    """Set the logits of so many rows (Deep Sets: Zaheer et al., NIPS 2017, with a maximum in place of the sum).

    A row x becomes h = relu(W2 relu(W1 x + b1) + b2); p is the largest h of all rows, number by number; a row's logit
    is W4 relu(W3 (h, p) + b3) + b4. A maximum is the same in whatever order, to the last bit.
    """
    width, pooled = network.hidden.shape[1], network.pooled
    pooled[:] = 0.0
    for row in range(count):
        pass_layer(rows[row], network.first, network.first_bias, network.one)
        rectify(network.one)
        pass_layer(network.one, network.second, network.second_bias, network.hidden[row])
        rectify(network.hidden[row])
        for column in range(width):
            pooled[column] = max(pooled[column], network.hidden[row, column])
    pass_layer(pooled, network.third[width:], network.third_bias, network.base)
    for row in range(count):
        pass_layer(network.hidden[row], network.third[:width], network.base, network.two)
        rectify(network.two)
        logit = network.fourth_bias[0]
        for column in range(len(network.two)):
            logit += network.two[column] * network.fourth[column, 0]
        logits[row] = logit


@compiled
def rectify(values: np.ndarray) -> None:
    """Set the negative values to 0."""
    for position in range(len(values)):
        values[position] = max(values[position], np.float32(0.0))


@compiled_with_arrays
def look(world: RoundsWorld, network: StepNetwork) -> int:
    """Find, describe and score the steps of a decision; returns how many."""
    count = find_rows(world, network.found, network.marks, network.stops[0])
    if count > 1:
        describe_rows(world, network.found, count, network.rows)
        score_rows(network, network.rows, count, network.logits)
    return count


@compiled
def best_row(world: RoundsWorld, logits: np.ndarray, count: int) -> int:
    """The row with the highest logit, of equals the first; the cluster is never left idle while a job could run."""
    found = 1 if world.core[0].running == 0 and count > 1 else 0
    for row in range(found + 1, count):
        if logits[row] > logits[found]:
            found = row
    return found


@compiled_with_arrays
def decide_alone(world: RoundsWorld, network: StepNetwork) -> None:
    """Take the steps that the network prefers until it ends the round."""
    while True:
        count = look(world, network)
        if count == 1 or take_step(world, network.found[best_row(world, network.logits, count)].step):
            return


# -- the look-ahead that a network guides ------------------------------------------------------------------------------
# Look-ahead guided by a network: the steps that it prefers are tried by simulating the present jobs to their end.
#
# As the look-ahead over a rule (`look_ahead`), with a network in both places of the rule: it says which steps are
# worth trying, and it decides in the simulation. The better a policy is alone, the better its look-ahead is. The step
# of the rule's own look-ahead is tried too, with the rule in the simulation, so that a network that is poor in a state
# for which it was not trained does little harm there.


TRIED = 4
"""The most steps of the network that are tried."""

WORTH_TRYING = 5.0
"""Steps whose logit is lower than the best one's by more are not tried: less likely by a factor of 150."""


@compiled_with_arrays
def guided_step(
    world: RoundsWorld, plan: RoundsWorld, trial: RoundsWorld, network: StepNetwork, ahead: StepNetwork
) -> tuple[int, float, float]:
    """The next step: the rule's, or one that the network prefers, after which the completion times sum to least.

    Args:
        world: within a decision; its rule is one of `steps.LOOK_AHEADS`.
        plan, trial: scratch; see `world.trial_of`.
        network: that guides.
        ahead: the same with scratch of its own, for the simulation.

    Returns:
        The step, the sum of the completion times after it, and after the rule's step; both 0 if nothing else was tried.
    """
    count, end = look(world, network), end_step(world)
    if count == 1:
        return end, 0.0, 0.0
    first = 1 if world.core[0].running == 0 else 0
    by_rule = rule_step(world, plan, trial)
    preferred = best_row(world, network.logits, count)
    least = network.logits[preferred] - WORTH_TRYING
    tried = 0
    for row in range(first, count):
        tried += network.logits[row] >= least
    if tried == 1 and network.found[preferred].step == by_rule:
        return by_rule, 0.0, 0.0
    found, best, of_rule = -1, NEVER, NEVER
    if by_rule != end or first == 0:
        of_rule = rule_total(world, plan, trial, by_rule, NEVER)
        found, best = by_rule, of_rule
    for _ in range(TRIED):
        row = best_row(world, network.logits, count)
        if network.logits[row] < least:
            break
        network.logits[row] = -NEVER
        total = simulated_with(world, trial, ahead, network.found[row].step, best)
        if found < 0 or total < best - EQUAL_S:
            found, best = network.found[row].step, total
    return found, best, of_rule


@compiled_with_arrays
def simulated_with(
    world: RoundsWorld, trial: RoundsWorld, network: StepNetwork, step: int, best: float
) -> float:
    """The sum of the times at which the present jobs end, from now, after a step and with the network from then on.

    It is infinite once it exceeds `best`.
    """
    copy_to(world, trial)
    core = trial.core[0]
    goes_on, now_s = not take_step(trial, step), 0.0
    while core.waiting > 0 or core.running > 0:
        if goes_on:
            decide_alone(trial, network)
        end_decision(trial)
        before = core.running
        passed_s = core.round_s
        if run_round(trial, now_s) == 0:
            if before == 0:
                return NEVER
            passed_s += pass_rounds(trial) * core.round_s
        now_s += passed_s
        core.now += int(passed_s * NS_PER_S)
        if core.finish_sum + (core.waiting + core.running) * now_s > best:
            return NEVER
        begin_decision(trial)
        goes_on = core.news
    return core.finish_sum


# -- the scheduler -----------------------------------------------------------------------------------------------------


LEARNED_LOOK = "learned-look"


@dataclass(frozen=True)
class LearnedScheduler(RoundsScheduler):
    """A network that takes one step after the other, or guides the look-ahead of a rule.

    It decides for a cluster of any size and for jobs of any kind, as the rules do.

    Attributes:
        checkpoint: the network.
        looks_ahead: whether the steps that it prefers are tried by simulation.
    """

    checkpoint: Checkpoint = field(kw_only=True)
    looks_ahead: bool = False

    def reasons(self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView]) -> dict[str, str]:
        """What it sees of each job that it starts or stops, for people; it decides anew, and to the same steps."""
        if not jobs:
            return {}
        world = observe(cluster, now_ns, jobs, self.rule, self.round_ns)
        return {jobs[job].name: text for job, text in self._steps(world, described=True)}

    def _decide(self, world: RoundsWorld) -> None:
        self._steps(world)

    def _steps(self, world: RoundsWorld, described: bool = False) -> list[tuple[int, str]]:
        """Take all steps of a decision; returns the job of each, and what was seen of it if that is asked for."""
        network, ahead = self._network(world), self._network(world)
        plan, trial, end = trial_of(world), trial_of(world), end_step(world)
        taken: list[tuple[int, str]] = []
        begin_decision(world)
        while True:
            if self.looks_ahead:
                step, total, of_rule = guided_step(world, plan, trial, network, ahead)
            elif (count := look(world, network)) > 1:
                step, total, of_rule = (
                    int(network.found[best_row(world, network.logits, count)]["step"]),
                    0.0,
                    0.0,
                )
            else:
                step = end
            if step == end:
                break
            if described:
                taken += [_described(network, row, total, of_rule) for row in _rows_of_step(network, step)]
            take_step(world, step)
        end_decision(world)
        return taken

    def _network(self, world: RoundsWorld) -> StepNetwork:
        return network_of(self.checkpoint.layers, len(world.free), self.checkpoint.header.stops)


def _rows_of_step(network: StepNetwork, step: int) -> list[int]:
    """The row of a step; none if only the rule has thought of it."""
    return [row for row in range(1, len(network.rows)) if network.found[row]["step"] == step][:1]


def _described(network: StepNetwork, row: int, total_s: float, of_rule_s: float) -> tuple[int, str]:
    seen = dict(zip(NUMBERS, network.rows[row].tolist(), strict=True))
    what = "stopped" if seen["stop"] else "started"
    text = f"{what} at a ratio of {seen['ratio']:.2f}, neighbours at {seen['neighbours_least_ratio']:.2f} or more"
    if seen["start"]:
        text += f", with {max(seen['gain_to_best'], 0):.0%} of the largest gain a GPU"
    if total_s and of_rule_s < NEVER:
        text += f"; in the simulation all jobs end {of_rule_s - total_s:.0f} s sooner in sum than by the rule"
    return int(network.found[row]["job"]), text


def load_learned(name: str) -> LearnedScheduler:
    """The scheduler of ``learned`` or ``learned-look``: the shipped one, or with ``:FILE`` behind it another.

    Raises:
        UsageError: the file cannot be read, is no checkpoint, or one of the paper's policies.
    """
    checkpoint = load_view(name, STEPS, "rl-base:FILE and rl-hybrid:FILE")
    rule = LOOK_AHEADS[checkpoint.header.stops]
    looks_ahead = name.partition(":")[0] == LEARNED_LOOK
    return LearnedScheduler(name, rule, checkpoint=checkpoint, looks_ahead=looks_ahead)
