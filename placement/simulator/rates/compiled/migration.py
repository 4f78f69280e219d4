"""The migration of DRS (3.3), compiled; see `placement.policies.schedulers.drs.migration`."""

from __future__ import annotations

from placement.model.compiled import compiled_with_arrays
from placement.simulator.rates.compiled.allocation import copy, take
from placement.simulator.rates.compiled.spans import close_span, open_span
from placement.simulator.rates.compiled.world import World


@compiled_with_arrays
def migrate(world: World, now: int) -> None:
    """Move running jobs if most nodes are used, but at most half, and the plan changes anything."""
    sparse = 0
    for node in range(len(world.size)):
        used = world.size[node] - world.free[node]
        if used > 0 and 2 * used <= world.size[node]:
            sparse += 1
    if 2 * sparse <= len(world.size) or not plan(world):
        return
    moves = False
    for position in range(world.core[0].running):
        moves = moves or differs(world, world.active[position])
    if not moves:
        return
    copy(world.left, world.free)
    for position in range(world.core[0].running):
        number = world.active[position]
        if differs(world, number):
            move(world, number, now)


@compiled_with_arrays
def plan(world: World) -> bool:
    """Place all running jobs on an empty cluster: those on one node before the others, each by descending N."""
    copy(world.size, world.left)
    running = world.core[0].running
    for position in range(running):
        world.marks[position] = 0
    for _ in range(running):
        best = -1
        for position in range(running):
            if not world.marks[position] and (best < 0 or precedes(world, position, best)):
                best = position
        world.marks[best] = 1
        number = world.active[best]
        job = world.jobs[number]
        if not take(world.left, job.gpus, job.cross, world.planned[number]):
            return False
    return True


@compiled_with_arrays
def precedes(world: World, position: int, other: int) -> bool:
    """Whether the job at a position is placed before the one at an earlier position."""
    this, that = world.jobs[world.active[position]], world.jobs[world.active[other]]
    return this.cross < that.cross or (this.cross == that.cross and this.gpus > that.gpus)


@compiled_with_arrays
def differs(world: World, number: int) -> bool:
    """Whether the plan gives a job other numbers of GPUs on some node."""
    different = False
    for node in range(len(world.size)):
        different = different or world.planned[number, node] != world.held[number, node]
    return different


@compiled_with_arrays
def move(world: World, number: int, now: int) -> None:
    """Stop a job and start it at its planned place, with what is left of its work."""
    job = world.jobs[number]
    useful = job.useful + max(now - job.useful_from, 0)
    left = job.end - max(now, job.useful_from)
    close_span(world, number, now)
    was_cross = job.cross
    copy(world.planned[number], world.held[number])
    open_span(world, number, now, world.core[0].restart)
    if job.cross != was_cross:
        left = left_at_other_rate(world, number, useful)
        useful = 0
    job.useful = useful
    job.end = job.useful_from + left


@compiled_with_arrays
def left_at_other_rate(world: World, number: int, useful: int) -> int:
    """The time on one node of what is left after so many ns across nodes, rounded up.

    With A samples, N GPUs, batches of b and steps of t and t' it is (A t - useful b N) t' / (b N t).
    """
    job = world.jobs[number]
    slow, fast = world.step[job.workload, 1, job.gpus], world.step[job.workload, 0, job.gpus]
    samples = world.batch[job.workload] * job.gpus
    return scaled_up(world.samples[job.workload] * slow - useful * samples, fast, samples * slow)


@compiled_with_arrays
def scaled_up(value: int, factor: int, divisor: int) -> int:
    """value * factor / divisor, rounded up, where the product may have more than 64 bits; the divisor has up to 62."""
    whole, part = value // divisor, value % divisor
    quotient, rest = 0, 0
    for bit in range(62, -1, -1):
        quotient, rest = 2 * quotient, 2 * rest
        if rest >= divisor:
            quotient, rest = quotient + 1, rest - divisor
        if (factor >> bit) & 1:
            rest += part
            if rest >= divisor:
                quotient, rest = quotient + 1, rest - divisor
    return whole * factor + quotient + (1 if rest > 0 else 0)
