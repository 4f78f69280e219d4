"""Look-ahead guided by a network: the steps that it prefers are tried by simulating the present jobs to their end.

As the look-ahead over a rule (`look_ahead`), with a network in both places of the rule: it says which steps are worth
trying, and it decides in the simulation. A policy that is looked ahead from is the better the better it is alone. What
the rule's own look-ahead would do is tried too, with the rule in the simulation, so that a network that is poor in a
state which it was not trained for does little harm there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mltcp.core.errors import UsageError
from mltcp.core.quantities import NS_PER_S
from placement.model.compiled import compiled, compiled_with_arrays
from placement.policies.schedulers.contention.features import observe_features
from placement.policies.schedulers.contention.look_ahead import EQUAL_S, NEVER, copy_to
from placement.policies.schedulers.contention.perceptron import Layers, pass_layer, squash
from placement.policies.schedulers.contention.rounds import begin_decision, end_decision, run_round
from placement.policies.schedulers.contention.rule_steps import rule_step, rule_total
from placement.policies.schedulers.contention.steps import end_step, find_steps, take_step
from placement.policies.schedulers.contention.world import World

TRIED = 4
"""The most steps of the network that are tried."""

WORTH_TRYING = 5.0
"""Steps whose logit is lower than the best one's by more are not tried: less likely by a factor of 150."""


class Network(NamedTuple):
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


def network_of(layers: Layers, sizes: tuple[int, ...], slots: int) -> Network:
    """The network of these layers.

    Raises:
        UsageError: there are not three of them.
    """
    if len(layers) != 3:
        raise UsageError(f"layers: expected 3 of a network that guides a look-ahead, got {len(layers)}")
    (one, two, three) = (
        tuple(np.ascontiguousarray(values, np.float32) for values in layer) for layer in layers
    )
    features, *hidden, logits = (
        np.zeros(width, np.float32) for width in (len(one[0]), len(one[1]), len(two[1]), len(three[1]))
    )
    mask = np.zeros(len(logits), np.bool_)
    return Network(
        one[0],
        one[1],
        two[0],
        two[1],
        three[0],
        three[1],
        np.array(sizes, np.int64),
        np.array([slots], np.int64),
        features,
        hidden[0],
        hidden[1],
        logits,
        logits.copy(),
        mask,
        mask.copy(),
    )


@compiled_with_arrays
def guided_step(world: World, plan: World, trial: World, network: Network) -> int:
    """The next step: the rule's, or one that the network prefers, after which the completion times sum to least.

    Args:
        world: within a decision; its rule is one of `rule_steps.LOOK_AHEADS`.
        plan, trial: scratch; see `new_world.trial_of`.
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
def is_alone(network: Network, preferred: int, least: float) -> bool:
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
def simulated_with(world: World, trial: World, network: Network, step: int, best: float) -> float:
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
def decide_alone(world: World, network: Network) -> None:
    """Take the steps that the network prefers until it ends the round; the cluster is never left idle."""
    end = end_step(world)
    while find_steps(world, network.trial_mask):
        if world.core[0].running == 0:
            network.trial_mask[end] = False
        prefer(world, network, network.trial_logits)
        if take_step(world, take_best(network.trial_logits, network.trial_mask)):
            return


@compiled_with_arrays
def prefer(world: World, network: Network, logits: np.ndarray) -> None:
    """Set the logits of all steps."""
    observe_features(world, network.slots[0], network.sizes, network.features)
    pass_layer(network.features, network.first, network.first_bias, network.one)
    squash(network.one)
    pass_layer(network.one, network.second, network.second_bias, network.two)
    squash(network.two)
    pass_layer(network.two, network.third, network.third_bias, logits)
