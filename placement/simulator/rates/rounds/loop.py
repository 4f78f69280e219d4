"""The loop of rounds, compiled: admission, a decision, a round of progress, ends, and the stop rule."""

from __future__ import annotations

import numpy as np

from mltcp.core.quantities import NS_PER_S, S_PER_HOUR
from placement.model.compiled import compiled, compiled_with_arrays
from placement.policies.schedulers.contention.places import floored, set_ratios
from placement.policies.schedulers.contention.rounds import (
    apply_stop_rule,
    begin_decision,
    end_decision,
    run_round,
)
from placement.policies.schedulers.contention.rounds_scheduler import decide
from placement.policies.schedulers.contention.steps import find_steps, take_step
from placement.policies.schedulers.contention.world import WAITS, Records, RoundsWorld

IDLE_ROUNDS = 100
"""A run fails after this many rounds in a row in which no job runs, if no more jobs are to arrive."""


@compiled_with_arrays
def run(world: RoundsWorld, trial: RoundsWorld, rounds_by_gpus: np.ndarray) -> bool:
    """Run until all jobs have ended; False if the rest is never placed.

    Args:
        world: a run that has not begun.
        trial: scratch for look-ahead.
        rounds_by_gpus: for each number of GPUs, counts the rounds in which so many are given out.
    """
    core, idle = world.core[0], 0
    while core.ended < len(world.jobs):
        admit(world)
        decide(world, trial)
        idle = 0 if core.running > 0 or core.seen < len(world.jobs) else idle + 1
        if idle > IDLE_ROUNDS:
            return False
        before = core.gpu_rounds
        run_round(world, core.now / NS_PER_S)
        rounds_by_gpus[core.gpu_rounds - before] += 1
        apply_stop_rule(world)
        core.now += int(core.round_s * NS_PER_S)
    return True


@compiled
def admit(world: RoundsWorld) -> None:
    """Put the jobs that have arrived at the end of the queue."""
    core, jobs = world.core[0], world.jobs
    while core.seen < len(jobs) and jobs[core.seen].arrival <= core.now:
        jobs[core.seen].state = WAITS
        world.queue[core.waiting] = core.seen
        core.waiting += 1
        core.seen += 1
        core.news = True


# -- one choice at a time: a run that stops wherever a policy may choose, for learning ---------------------------------
# The reward of a round is minus the hours that all jobs of the trace spend in the system in it, so that their sum is
# minus the sum of the completion times, in hours; or one of the two of the paper, which contain no queueing: -W1 CS +
# W2 U with the mean CS = 1 / r of the running jobs and the share U of the GPUs that are given out; and, as its public
# code has it, -W1 mean(1 - r) + W2 times the exponentially weighted mean of U (span 10) over the rounds before.

MOST_ROUNDS = 5000
"""An episode that takes more rounds fails."""

COMPLETION, PAPER, CODE = range(3)
"""The rewards."""

OBJECTIVE = np.dtype(
    [
        ("reward", "i8"),
        ("w1", "f8"),
        ("w2", "f8"),
        ("used", "f8"),  # the weighted sum of U over the rounds before
        ("weight", "f8"),  # the sum of its weights
    ]
)

_DECAY = 1 - 2 / 11


@compiled_with_arrays
def begin(world: RoundsWorld, objective: Records, mask: np.ndarray) -> float:
    """Go from the beginning of a run to its first choice; returns the reward of the rounds before it."""
    admit(world)
    begin_decision(world)
    return run_on(world, objective, mask)


@compiled_with_arrays
def advance(world: RoundsWorld, objective: Records, step: int, mask: np.ndarray) -> float:
    """Take a step, and go on to the next choice or the end of the run; returns the reward."""
    reward = 0.0
    if take_step(world, step):
        reward = pass_round(world, objective)
    return reward + run_on(world, objective, mask)


@compiled_with_arrays
def run_on(world: RoundsWorld, objective: Records, mask: np.ndarray) -> float:
    """Pass rounds until there is something to choose, all jobs have ended, or there were too many; sets the mask."""
    reward = 0.0
    while world.core[0].ended < len(world.jobs) and not find_steps(world, mask):
        reward += pass_round(world, objective)
        if world.core[0].rounds > MOST_ROUNDS:
            break
    return reward


@compiled_with_arrays
def pass_round(world: RoundsWorld, objective: Records) -> float:
    """End the decision, run the round, apply the stop rule, and begin the next decision; returns the reward."""
    core = world.core[0]
    end_decision(world)
    of_paper = reward_of_paper(world, objective)
    end_ns = core.now + int(core.round_s * NS_PER_S)
    present = core.waiting + core.running
    before_s, now_s = core.finish_sum, core.now / NS_PER_S
    ended = run_round(world, now_s)
    present_s = (present - ended) * core.round_s + (core.finish_sum - before_s) - ended * now_s
    present_s += seconds_before_admission(world, end_ns)
    apply_stop_rule(world)
    core.now = end_ns
    admit(world)
    begin_decision(world)
    return -present_s / S_PER_HOUR if objective[0].reward == COMPLETION else of_paper


@compiled_with_arrays
def reward_of_paper(world: RoundsWorld, objective: Records) -> float:
    """The reward of a round as the paper or its code has it, before the round is run."""
    core, given = world.core[0], objective[0]
    set_ratios(world)
    used, sensitivity, loss = 0, 0.0, 0.0
    for slot in range(core.running):
        running = world.slots[slot]
        ratio = floored(running.raw)
        used += world.cells[running.cell].gpus * world.cells[running.cell].nodes
        sensitivity += 1 / ratio
        loss += 1 - ratio
    free = 0
    for node in range(len(world.free)):
        free += world.free[node]
    share, jobs = used / (used + free), max(core.running, 1)
    before = given.used / given.weight if given.weight > 0 else 0.0
    given.used, given.weight = share + _DECAY * given.used, 1.0 + _DECAY * given.weight
    if given.reward == PAPER:
        return -given.w1 * sensitivity / jobs + given.w2 * share
    if core.running == 0:
        return 0.0
    return -given.w1 * loss / jobs + given.w2 * before


@compiled
def seconds_before_admission(world: RoundsWorld, end_ns: int) -> float:
    """The time between arrival and the end of the round of the jobs that arrive during it."""
    total, job = 0, world.core[0].seen
    while job < len(world.jobs) and world.jobs[job].arrival < end_ns:
        total += end_ns - world.jobs[job].arrival
        job += 1
    return total / NS_PER_S
