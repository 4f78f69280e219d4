"""The steps of look-aheads in many runs: those of the rules, to be imitated, and that which a policy guides."""

from __future__ import annotations

import numpy as np

from placement.learning.stacked import DONE, row
from placement.model.compiled import compiled_with_arrays
from placement.policies.schedulers.contention.gains import find_heads
from placement.policies.schedulers.contention.guided import Network, guided_step
from placement.policies.schedulers.contention.look_ahead import (
    PLACE,
    best_choice,
    copy_to,
    decide_ahead,
    find_choices,
)
from placement.policies.schedulers.contention.places import fits
from placement.policies.schedulers.contention.rounds import is_exempt
from placement.policies.schedulers.contention.steps import end_step, has_started, step_of, was_there
from placement.policies.schedulers.contention.world import REOPT_LOOK, World


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


@compiled_with_arrays
def rule_steps(worlds: World, states: np.ndarray, plan: World, trial: World, steps: np.ndarray) -> None:
    """Set the next step of each of these stacked worlds whose run is not done, by the look-ahead of its rule.

    Args:
        worlds: stacked.
        states: of the runs.
        plan, trial: scratch.
        steps: set to the next ones.
    """
    for number in range(len(steps)):
        if states[number] == DONE:
            continue
        world = row(worlds, number)
        if world.core[0].family == REOPT_LOOK:
            steps[number] = replanned_step(world, plan, trial)
        else:
            steps[number] = look_ahead_step(world, trial)


@compiled_with_arrays
def guided_steps(
    worlds: World, states: np.ndarray, trial: World, network: Network, steps: np.ndarray
) -> None:
    """Set the next step of each of these stacked worlds whose run is not done; a network guides the look-ahead."""
    for number in range(len(steps)):
        if states[number] != DONE:
            steps[number] = guided_step(row(worlds, number), trial, network)
