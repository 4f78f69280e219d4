"""The loop of rounds, compiled: admission, a decision, a round of progress, ends, and the stop rule."""

from __future__ import annotations

import numpy as np

from mltcp.core.quantities import NS_PER_S
from placement.model.compiled import compiled, compiled_with_arrays
from placement.policies.schedulers.contention.rounds import apply_stop_rule, run_round
from placement.policies.schedulers.contention.rounds_scheduler import decide
from placement.policies.schedulers.contention.world import WAITS, RoundsWorld

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
