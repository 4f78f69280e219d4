"""Decisions in steps, for policies that are learned: one start, one stop, or the end of the round at a time.

The number of a step is KIND * SETS + SET for a start, where KIND is one of the world's kinds and SET one of its sets of
nodes: it starts the waiting job of the kind that has the least left, and of equals the first. The next number ends the
round. Behind it, where jobs may be stopped, are the stops of the running jobs by slot. Jobs are stopped before any is
started in a round, and not as long as a costly restart exempts them.
"""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled, compiled_with_arrays
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
from placement.policies.schedulers.contention.places import find_heads, fits, start, stop, weight
from placement.policies.schedulers.contention.rounds import is_exempt
from placement.policies.schedulers.contention.rule import REOPT_LOOK, RULES
from placement.policies.schedulers.contention.world import RoundsWorld


@compiled
def end_step(world: RoundsWorld) -> int:
    """The number of the step that ends the round."""
    return len(world.kinds) * len(world.sets)


@compiled
def cell_on(world: RoundsWorld, kind: int, each: int) -> int:
    """The cell of a kind on this set of nodes; -1 if it has none on so many."""
    cells = world.kinds[kind]
    for cell in range(cells.first, cells.first + cells.cells):
        first = world.cells[cell].first
        if first <= each < first + world.cells[cell].sets:
            return cell
    return -1


@compiled
def has_started(world: RoundsWorld) -> bool:
    """Whether a job has been started in this decision."""
    for slot in range(world.core[0].running):
        job = world.jobs[world.slots[slot].job]
        if job.cell != job.cell_before or job.nodes != job.nodes_before:
            return True
    return False


@compiled
def was_there(world: RoundsWorld, job: int, cell: int, nodes: int) -> bool:
    """Whether a waiting job has been stopped on these nodes in this decision; to start it there would undo that."""
    return world.jobs[job].cell_before == cell and world.jobs[job].nodes_before == nodes


@compiled_with_arrays
def find_steps(world: RoundsWorld, mask: np.ndarray) -> bool:
    """Set the mask of the steps that are allowed, as long as it is; whether there are others than to end the round."""
    find_heads(world)
    end, some = end_step(world), False
    mask[:] = False
    mask[end] = True
    for kind in range(len(world.kinds)):
        if world.heads[kind] < 0:
            continue
        for each in range(len(world.sets)):
            cell, nodes = cell_on(world, kind, each), world.sets[each]
            if (
                cell >= 0
                and fits(world, cell, nodes)
                and not was_there(world, world.heads[kind], cell, nodes)
            ):
                mask[kind * len(world.sets) + each] = True
                some = True
    if len(mask) > end + 1 and not has_started(world):
        for slot in range(world.core[0].running):
            if not is_exempt(world, world.slots[slot].job):
                mask[end + 1 + slot] = True
                some = True
    return some


@compiled_with_arrays
def take_step(world: RoundsWorld, step: int) -> bool:
    """Carry out a step that is allowed; whether it ends the round."""
    end = end_step(world)
    if step == end:
        return True
    if step > end:
        stop(world, step - end - 1)
        return False
    find_heads(world)
    kind, each = step // len(world.sets), step % len(world.sets)
    job, cell = world.heads[kind], cell_on(world, kind, each)
    start(world, job, cell, world.sets[each], weight(world, job) * world.cells[cell].speed)
    return False


@compiled_with_arrays
def step_of(world: RoundsWorld, job: int, nodes: int) -> int:
    """The number of the step that starts a job on these nodes."""
    for each in range(len(world.sets)):
        if world.sets[each] == nodes:
            return world.jobs[job].kind * len(world.sets) + each
    return -1


# -- the look-aheads of the rules, a step at a time: to be imitated, and to compare with what a network proposes -------


LOOK_AHEADS = {False: RULES["greedy-look"], True: RULES["reopt-look"]}
"""The rule, by whether running jobs may be stopped."""


@compiled_with_arrays
def rule_step(world: RoundsWorld, plan: RoundsWorld, trial: RoundsWorld) -> int:
    """The next step of the look-ahead of the world's rule.

    Args:
        world: within a decision.
        plan, trial: scratch; see `world.trial_of`.
    """
    if world.core[0].family == REOPT_LOOK:
        return replanned_step(world, plan, trial)
    return look_ahead_step(world, trial)


@compiled_with_arrays
def rule_total(world: RoundsWorld, plan: RoundsWorld, trial: RoundsWorld, step: int, best: float) -> float:
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
def look_ahead_step(world: RoundsWorld, trial: RoundsWorld) -> int:
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
def replanned_step(world: RoundsWorld, plan: RoundsWorld, trial: RoundsWorld) -> int:
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
def runs_there(world: RoundsWorld, job: int, cell: int, nodes: int) -> bool:
    """Whether a job runs in this cell on these nodes."""
    for slot in range(world.core[0].running):
        each = world.slots[slot]
        if each.job == job:
            return bool(each.cell == cell and each.nodes == nodes)
    return False
