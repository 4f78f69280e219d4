"""A round: progress of the running jobs, their ends, and the costs of restarts."""

from __future__ import annotations

import math

from mltcp.core.quantities import NS_PER_S
from placement.model.compiled import compiled, compiled_with_arrays
from placement.policies.schedulers.contention.places import floored, remove_slot, set_ratios, stop_contended
from placement.policies.schedulers.contention.rule import STOPS_BY_RATIO
from placement.policies.schedulers.contention.world import ENDED, RoundsWorld

_SLACK = 1 + 1e-12


@compiled
def begin_decision(world: RoundsWorld) -> None:
    """Note where jobs run, so that those that are moved are found."""
    for position in range(world.core[0].waiting):
        world.jobs[world.queue[position]].cell_before = -1
    for slot in range(world.core[0].running):
        record = world.jobs[world.slots[slot].job]
        record.cell_before, record.nodes_before = record.cell, record.nodes


@compiled
def end_decision(world: RoundsWorld) -> None:
    """Count starts, and charge for those after a job's first. A job that is where it was has not been started."""
    core = world.core[0]
    core.news = False
    for slot in range(core.running):
        record = world.jobs[world.slots[slot].job]
        if record.cell_before == record.cell and record.nodes_before == record.nodes:
            continue
        record.hold = core.restart_s if record.starts > 0 else 0.0
        record.starts += 1
        record.rounds = 0
        record.started = core.now


@compiled_with_arrays
def run_round(world: RoundsWorld, begin_s: float) -> int:
    """Let the running jobs make progress for one round; returns the number of jobs that ended.

    Args:
        world: after a decision.
        begin_s: when the round begins, on the clock of the finish times.
    """
    core, jobs, ended = world.core[0], world.jobs, 0
    set_ratios(world)
    for slot in range(core.running):
        running = world.slots[slot]
        cell, record = world.cells[running.cell], jobs[running.job]
        record.ratio = floored(running.raw)
        held_up = min(record.hold, core.round_s)
        useful, rate = core.round_s - held_up, cell.rate * record.ratio
        record.hold -= held_up
        record.rounds += 1
        record.rounds_run += 1
        record.sensitivity += 1 / record.ratio
        core.gpu_rounds += cell.gpus * cell.nodes
        if record.remaining <= rate * useful * _SLACK and useful > 0:
            took = held_up + record.remaining / rate
            record.finish, record.held = begin_s + took, record.held + took
            record.remaining, record.state = 0.0, ENDED
            core.finish_sum += record.finish
            ended += 1
        else:
            record.remaining -= rate * useful
            record.held += core.round_s
    core.rounds += 1
    if ended > 0:
        remove_ended(world)
    return ended


MANY_ROUNDS = 4096
"""Longer times in which no job ends are passed at once in simulations of a decision (`pass_rounds`)."""

_LONGEST_S = 1e9


@compiled_with_arrays
def pass_rounds(world: RoundsWorld) -> int:
    """Pass the rounds, if there are many, until soon before a job ends; returns how many, 0 if there are not many.

    A job of a billion iterations would keep a decision from ever being made. Nothing is decided in these rounds.

    Args:
        world: after a round in which no job ended.
    """
    core, fewest = world.core[0], math.inf
    for slot in range(core.running):
        cell, record = world.cells[world.slots[slot].cell], world.jobs[world.slots[slot].job]
        if record.hold > 0.0:
            return 0
        fewest = min(fewest, record.remaining / (cell.rate * record.ratio * core.round_s))
    if core.running == 0 or fewest < MANY_ROUNDS:
        return 0
    count = max(int(min(fewest, _LONGEST_S / core.round_s)) - 1, 0)
    for slot in range(core.running):
        cell, record = world.cells[world.slots[slot].cell], world.jobs[world.slots[slot].job]
        record.remaining -= count * (cell.rate * record.ratio * core.round_s)
        record.held += count * core.round_s
        record.rounds += count
    return count


@compiled_with_arrays
def remove_ended(world: RoundsWorld) -> None:
    """Free the GPUs of jobs that have ended."""
    core, slot = world.core[0], 0
    core.news = True
    while slot < core.running:
        if world.jobs[world.slots[slot].job].state == ENDED:
            remove_slot(world, slot)
            core.ended += 1
        else:
            slot += 1


@compiled_with_arrays
def apply_stop_rule(world: RoundsWorld) -> None:
    """Stop the jobs that contention slows down most, if the rule has it; jobs are exempt after a costly restart."""
    core = world.core[0]
    if core.stops == STOPS_BY_RATIO:
        stop_contended(world, core.stop_ratio, exempt_rounds(core.restart_s, core.round_s))


@compiled
def is_exempt(world: RoundsWorld, job: int) -> bool:
    """Whether it is too early to stop a running job, because its restart cost a round or more."""
    core = world.core[0]
    rounds = exempt_rounds(core.restart_s, core.round_s)
    return rounds > 0 and core.now - world.jobs[job].started <= rounds * core.round_s * NS_PER_S


@compiled
def exempt_rounds(restart_s: float, round_s: float) -> int:
    """The rounds after a start in which a job may not be stopped.

    A restart that takes a whole round would otherwise let a job be stopped before it makes any progress, for ever.
    """
    return math.ceil(restart_s / round_s) + 1 if restart_s >= round_s else 0
