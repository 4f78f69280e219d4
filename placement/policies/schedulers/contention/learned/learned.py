"""Learned policies as schedulers: one start or stop after the other, until the round is ended.

``learned:FILE`` takes the steps that a network prefers; ``learned-look:FILE`` tries a few of them by simulation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mltcp.core.errors import UsageError
from mltcp.core.quantities import NS_PER_S
from placement.model.compiled import compiled, compiled_with_arrays
from placement.policies.schedulers.contention.learned.checkpoint import (
    STEPS,
    CheckpointScheduler,
    Layers,
    load_view,
    pass_layer,
    squash,
)
from placement.policies.schedulers.contention.learned.features import observe_features
from placement.policies.schedulers.contention.look_ahead import EQUAL_S, NEVER, copy_to
from placement.policies.schedulers.contention.rounds import begin_decision, end_decision, run_round
from placement.policies.schedulers.contention.steps import (
    LOOK_AHEADS,
    end_step,
    find_steps,
    rule_step,
    rule_total,
    take_step,
)
from placement.policies.schedulers.contention.world import RoundsWorld, trial_of

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


class GuideNetwork(NamedTuple):
    """A network of three layers, the shapes that it reads and gives, and scratch for its computation.

    Attributes:
        first, first_bias, second, second_bias, third, third_bias: W and b of the layers.
        sizes: the GPUs of each node.
        slots: the most jobs that run, as an array of one number.
        features, one, two: scratch: its input, and the outputs of the first two layers.
        logits, trial_logits: scratch: of the steps, in the decision and in the simulation.
        mask, trial_mask: scratch: the steps that are allowed.
    """

    first: np.ndarray
    first_bias: np.ndarray
    second: np.ndarray
    second_bias: np.ndarray
    third: np.ndarray
    third_bias: np.ndarray
    sizes: np.ndarray
    slots: np.ndarray
    features: np.ndarray
    one: np.ndarray
    two: np.ndarray
    logits: np.ndarray
    trial_logits: np.ndarray
    mask: np.ndarray
    trial_mask: np.ndarray


def network_of(layers: Layers, sizes: tuple[int, ...], slots: int) -> GuideNetwork:
    """The network of these layers.

    Raises:
        UsageError: there are not three of them.
    """
    if len(layers) != 3:
        raise UsageError(f"layers: expected 3 of a network that guides a look-ahead, got {len(layers)}")
    one, two, three = (
        tuple(np.ascontiguousarray(values, np.float32) for values in layer) for layer in layers
    )
    logits, mask = np.zeros(len(three[1]), np.float32), np.zeros(len(three[1]), np.bool_)
    scratch = [np.zeros(width, np.float32) for width in (len(one[0]), len(one[1]), len(two[1]))]
    shapes = np.array(sizes, np.int64), np.array([slots], np.int64)
    return GuideNetwork._make(
        (*one, *two, *three, *shapes, *scratch, logits, logits.copy(), mask, mask.copy())
    )


@compiled_with_arrays
def guided_step(world: RoundsWorld, plan: RoundsWorld, trial: RoundsWorld, network: GuideNetwork) -> int:
    """The next step: the rule's, or one that the network prefers, after which the completion times sum to least.

    Args:
        world: within a decision; its rule is one of `steps.LOOK_AHEADS`.
        plan, trial: scratch; see `world.trial_of`.
        network: that guides.
    """
    if not find_steps(world, network.mask):
        return end_step(world)
    if world.core[0].running == 0:
        network.mask[end_step(world)] = False
    prefer(world, network, network.logits)
    by_rule = rule_step(world, plan, trial)
    preferred = take_best(network.logits, network.mask)
    least = network.logits[preferred] - WORTH_TRYING
    if preferred == by_rule and is_alone(network, preferred, least):
        return preferred
    found, best = -1, NEVER
    if network.mask[by_rule]:
        found, best = by_rule, rule_total(world, plan, trial, by_rule, NEVER)
    for _ in range(TRIED):
        step = take_best(network.logits, network.mask)
        if step < 0 or network.logits[step] < least:
            break
        network.mask[step] = False
        total = simulated_with(world, trial, network, step, best)
        if found < 0 or total < best - EQUAL_S:
            found, best = step, total
    return found


@compiled
def is_alone(network: GuideNetwork, preferred: int, least: float) -> bool:
    """Whether no other allowed step than the preferred one has a logit of at least so much."""
    for step in range(len(network.mask)):
        if step != preferred and network.mask[step] and network.logits[step] >= least:
            return False
    return True


@compiled
def take_best(logits: np.ndarray, mask: np.ndarray) -> int:
    """The step with the highest logit that the mask allows, of equals the first; -1 if there is none."""
    found = -1
    for step in range(len(mask)):
        if mask[step] and (found < 0 or logits[step] > logits[found]):
            found = step
    return found


@compiled_with_arrays
def simulated_with(
    world: RoundsWorld, trial: RoundsWorld, network: GuideNetwork, step: int, best: float
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
        if run_round(trial, now_s) == 0 and before == 0:
            return NEVER
        now_s += core.round_s
        core.now += int(core.round_s * NS_PER_S)
        if core.finish_sum + (core.waiting + core.running) * now_s > best:
            return NEVER
        begin_decision(trial)
        goes_on = core.news
    return core.finish_sum


@compiled_with_arrays
def decide_alone(world: RoundsWorld, network: GuideNetwork) -> None:
    """Take the steps that the network prefers until it ends the round; the cluster is never left idle."""
    end = end_step(world)
    while find_steps(world, network.trial_mask):
        if world.core[0].running == 0:
            network.trial_mask[end] = False
        prefer(world, network, network.trial_logits)
        if take_step(world, take_best(network.trial_logits, network.trial_mask)):
            return


@compiled_with_arrays
def prefer(world: RoundsWorld, network: GuideNetwork, logits: np.ndarray) -> None:
    """Set the logits of all steps."""
    observe_features(world, network.slots[0], network.sizes, network.features)
    pass_layer(network.features, network.first, network.first_bias, network.one)
    squash(network.one)
    pass_layer(network.one, network.second, network.second_bias, network.two)
    squash(network.two)
    pass_layer(network.two, network.third, network.third_bias, logits)


# -- the scheduler -----------------------------------------------------------------------------------------------------


LEARNED_LOOK = "learned-look:"


@dataclass(frozen=True)
class LearnedScheduler(CheckpointScheduler):
    """A network that takes one step after the other, or guides the look-ahead of a rule.

    Attributes:
        looks_ahead: whether the steps that it prefers are tried by simulation.
    """

    looks_ahead: bool = False

    def _decide(self, world: RoundsWorld) -> None:
        header, end = self.checkpoint.header, end_step(world)
        sizes = np.full(header.nodes, header.gpus, np.int64)
        if self.looks_ahead:
            decide_guided(world, network_of(self.checkpoint.layers, tuple(sizes.tolist()), header.slots))
            return
        features, mask = np.zeros(header.features, np.float32), np.zeros(header.steps, np.bool_)
        begin_decision(world)
        while find_steps(world, mask):
            observe_features(world, header.slots, sizes, features)
            # The cluster is never left idle while a job could run.
            mask[end] = bool(world.core[0]["running"] > 0)
            if take_step(world, int(self.checkpoint.choose(features, mask))):
                break
        end_decision(world)


def decide_guided(world: RoundsWorld, network: GuideNetwork) -> None:
    """A decision by a look-ahead that a network guides."""
    plan, trial, end = trial_of(world), trial_of(world), end_step(world)
    begin_decision(world)
    while (step := guided_step(world, plan, trial, network)) != end:
        take_step(world, step)
    end_decision(world)


def load_learned(name: str) -> LearnedScheduler:
    """The scheduler of ``learned:FILE`` or ``learned-look:FILE``.

    Raises:
        UsageError: the file cannot be read, is no checkpoint, or one of the paper's policies.
    """
    checkpoint = load_view(name, STEPS, "rl-base:FILE and rl-hybrid:FILE")
    rule, looks_ahead = LOOK_AHEADS[checkpoint.header.stops], name.startswith(LEARNED_LOOK)
    return LearnedScheduler(name, rule, looks_ahead=looks_ahead, checkpoint=checkpoint)
