"""The look-aheads of the rules a step at a time: to be imitated, and to compare with what a network proposes."""

from __future__ import annotations

from placement.model.compiled import compiled_with_arrays
from placement.policies.schedulers.contention.gains import find_heads
from placement.policies.schedulers.contention.look_ahead import (
    NEVER,
    NOTHING,
    PLACE,
    WAIT,
    best_choice,
    copy_to,
    decide_ahead,
    find_choices,
    simulated,
)
from placement.policies.schedulers.contention.places import fits
from placement.policies.schedulers.contention.rounds import is_exempt
from placement.policies.schedulers.contention.rule import RULES
from placement.policies.schedulers.contention.steps import end_step, has_started, step_of, was_there
from placement.policies.schedulers.contention.world import REOPT_LOOK, World

LOOK_AHEADS = {False: RULES["greedy-look"], True: RULES["reopt-look"]}
"""The rule, by whether running jobs may be stopped."""


@compiled_with_arrays
def rule_step(world: World, plan: World, trial: World) -> int:
    """The next step of the look-ahead of the world's rule.

    Args:
        world: within a decision.
        plan, trial: scratch; see `new_world.trial_of`.
    """
    if world.core[0].family == REOPT_LOOK:
        return replanned_step(world, plan, trial)
    return look_ahead_step(world, trial)


@compiled_with_arrays
def rule_total(world: World, plan: World, trial: World, step: int, best: float) -> float:
    """The sum of completion times after the step that `rule_step` has just chosen, infinite once it exceeds `best`.

    From there on the rule decides without looking ahead.
    """
    if world.core[0].family == REOPT_LOOK:
        return simulated(plan, trial, NOTHING, 0, best)
    if step == end_step(world):
        return simulated(world, trial, WAIT, 0, best)
    for number in range(world.core[0].choices):
        chosen = world.choices[number]
        if step_of(world, chosen.job, chosen.nodes) == step:
            return simulated(world, trial, PLACE, number, best)
    return NEVER


@compiled_with_arrays
def look_ahead_step(world: World, trial: World) -> int:
    """The next step of `greedy-look`, for runs without stops; `trial` is scratch."""
    count = find_choices(world, world.core[0].choices)
    if count == 0:
        return end_step(world)
    kind, number = best_choice(world, trial, count, world.core[0].running > 0, False)
    if kind != PLACE:
        return end_step(world)
    chosen = world.choices[number]
    return step_of(world, chosen.job, chosen.nodes)


@compiled_with_arrays
def replanned_step(world: World, plan: World, trial: World) -> int:
    """The next step towards what `reopt-look` would do now, for runs with stops: first its stops, then its starts.

    Args:
        world: within a decision.
        plan, trial: scratch.
    """
    copy_to(world, plan)
    decide_ahead(plan, trial)
    end, core = end_step(world), world.core[0]
    if not has_started(world):
        for slot in range(core.running):
            now = world.slots[slot]
            if not runs_there(plan, now.job, now.cell, now.nodes) and not is_exempt(world, now.job):
                return end + 1 + slot
    find_heads(world)
    for slot in range(plan.core[0].running):
        then = plan.slots[slot]
        # A step starts the job of a kind that has the least left, whichever of them the rule would start.
        head = world.heads[world.jobs[then.job].kind]
        if (
            head >= 0
            and not runs_there(world, then.job, then.cell, then.nodes)
            and fits(world, then.cell, then.nodes)
            and not was_there(world, head, then.cell, then.nodes)
        ):
            return step_of(world, then.job, then.nodes)
    return end


@compiled_with_arrays
def runs_there(world: World, job: int, cell: int, nodes: int) -> bool:
    """Whether a job runs in this cell on these nodes."""
    for slot in range(world.core[0].running):
        each = world.slots[slot]
        if each.job == job:
            return bool(each.cell == cell and each.nodes == nodes)
    return False
