"""The steps that a network chooses from, a row of numbers each; nothing in a row names a node, a job or a model.

A row describes a step by what it does to the jobs and nodes that it touches: the job, its speed and ratio there, the
losses of its neighbours and when they end, the free GPUs, the jobs that wait and could become its neighbours, and, the
same in each row, the whole. So one network serves clusters of any number of nodes and GPUs, and jobs of any kind.

The first row ends the round. Then come starts, up to `OF_A_KIND` of each kind and `STARTS` in all, those with the
largest gain a GPU. Of places that differ only in the names of nodes there is one. Where running jobs may be stopped,
those whose stop raises the utility most follow, up to `STOPS`.

All numbers are rounded to multiples of 2^-16, sums are those of whole numbers, and which of equal steps is considered
follows from what they touch, so that the order of jobs and nodes changes no bit of a row.
"""

from __future__ import annotations

import math

import numpy as np

from mltcp.core.quantities import NS_PER_S, S_PER_HOUR
from placement.model.compiled import compiled, compiled_with_arrays
from placement.policies.schedulers.contention.marginal import lift, put_back
from placement.policies.schedulers.contention.places import (
    combined,
    find_heads,
    fits,
    floored,
    gain,
    remaining_s,
    utility,
    weigh_running,
    weight,
)
from placement.policies.schedulers.contention.rounds import is_exempt
from placement.policies.schedulers.contention.steps import end_step, has_started, was_there
from placement.policies.schedulers.contention.tables import Records
from placement.policies.schedulers.contention.world import PRODUCT, SUM, RoundsWorld

STARTS, OF_A_KIND, STOPS = 16, 4, 8

STEP = np.dtype(
    [
        ("step", "i8"),  # its number, see `steps`
        ("job", "i8"),  # that it starts or stops; -1: it ends the round
        ("cell", "i8"),  # of a start; -1 else
        ("nodes", "i8"),  # as bits
        ("worth", "f8"),  # the gain a GPU of a start, the rise of the utility by a stop
        ("alike", "i8"),  # equal for places that differ only in the names of nodes
    ]
)

NUMBERS = (
    *("end", "start", "stop", "remaining", "weight", "gpus_share", "gpus", "nodes", "speed"),
    *("of_its_kind", "waited", "gain", "gain_to_best", "efficiency", "ratio", "neighbours_loss"),
    *("neighbours_least_ratio", "neighbours", "first_neighbour_end", "last_neighbour_end", "free_before"),
    *("free_after", "nodes_filled", "cluster_free_after", "best_partner", "mean_partner", "ends"),
    *(
        "outlasts_neighbours",
        "all_free",
        "all_waiting",
        "all_running",
        "has_started",
        "next_end",
        "mean_left",
    ),
    *("mean_ratio", "queued_work", "best_gain", "cluster_nodes", "node_gpus", "product", "sum", "restart"),
    "choices",
)
"""What the numbers of a row are, in their order; those from `all_free` on are the same in each row."""

WIDTH = len(NUMBERS)
_OF_ALL = NUMBERS.index("all_free")
_SCALE, _HALF = 4.0, 0.25
_FINE, _WHOLE = 65536.0, 1048576.0

_MANY, _LONG_S = 64, 12.0 * S_PER_HOUR
"""More waiting jobs, longer waits and queues are told as these: what is to be done is the same, and no policy errs only
because it has never seen so many."""


def rows_of(stops: bool) -> int:
    """The most rows of a decision."""
    return 1 + STARTS + (STOPS if stops else 0)


@compiled
def log_hours(seconds: float) -> float:
    """The logarithm of a time, 0 for none, about 1 for two days."""
    return math.log1p(max(seconds, 0.0) / S_PER_HOUR) / _SCALE


@compiled
def squashed(value: float) -> float:
    """Between -1 and 1."""
    return value / (_HALF + abs(value))


@compiled
def fixed(value: float) -> int:
    """A multiple of 2^-20 as a whole number, to be added in any order."""
    return math.floor(value * _WHOLE + 0.5)


# -- which steps -------------------------------------------------------------------------------------------------------


@compiled_with_arrays
def find_rows(world: RoundsWorld, found: Records, marks: np.ndarray, stops: bool) -> int:
    """Set the steps that are worth considering; returns how many.

    Args:
        world: within a decision.
        found: of dtype `STEP`, `rows_of(stops) + OF_A_KIND` long, set to the steps.
        marks: scratch, a number a node.
        stops: whether running jobs may be stopped.
    """
    find_heads(world)
    weigh_running(world)
    mark_nodes(world, marks)
    set_step(found, 0, end_step(world), -1, -1, 0, 0.0, 0)
    count, spare = 0, len(found) - OF_A_KIND
    for kind in range(len(world.heads)):
        if world.heads[kind] >= 0:
            for each in range(find_starts(world, kind, found, spare, marks)):
                added = found[spare + each]
                at, job, cell, nodes = added.step, added.job, added.cell, added.nodes
                count = insert_step(
                    world, found, 1, count, STARTS, at, job, cell, nodes, added.worth, added.alike
                )
    if stops and not has_started(world):
        return 1 + count + find_stops(world, found, 1 + count)
    return 1 + count


@compiled_with_arrays
def find_starts(world: RoundsWorld, number: int, found: Records, offset: int, marks: np.ndarray) -> int:
    """Put the best places of a kind's head behind `offset`, of those that are alike the first; returns how many."""
    job, kind, count = world.heads[number], world.kinds[number], 0
    own = weight(world, job)
    for cell in range(kind.first, kind.first + kind.cells):
        for each in range(world.cells[cell].first, world.cells[cell].first + world.cells[cell].sets):
            nodes = world.sets[each]
            if not fits(world, cell, nodes) or was_there(world, job, cell, nodes):
                continue
            alike = cell
            for node in range(len(marks)):
                if nodes >> node & 1:
                    alike += marks[node]
            if is_known(found, offset, count, alike):
                continue
            worth = math.floor(gain(world, own, cell, nodes) / kind.gpus * _WHOLE + 0.5) / _WHOLE
            step = number * len(world.sets) + each
            count = insert_step(world, found, offset, count, OF_A_KIND, step, job, cell, nodes, worth, alike)
    return count


@compiled_with_arrays
def find_stops(world: RoundsWorld, found: Records, offset: int) -> int:
    """Put the stops that raise the utility most behind `offset`; returns how many."""
    before, count = utility(world), 0
    for slot in range(world.core[0].running):
        job, cell, nodes = world.slots[slot].job, world.slots[slot].cell, world.slots[slot].nodes
        if is_exempt(world, job):
            continue
        lift(world, slot)
        worth = math.floor((utility(world) - before) * _WHOLE + 0.5) / _WHOLE
        put_back(world)
        step = end_step(world) + 1 + slot
        count = insert_step(world, found, offset, count, STOPS, step, job, cell, nodes, worth, job)
    return count


@compiled
def mark_nodes(world: RoundsWorld, marks: np.ndarray) -> None:
    """Give the nodes equal numbers whose free GPUs and jobs are the same, and others, but by chance, different ones."""
    for node in range(len(marks)):
        marks[node] = world.free[node] + 1
    for slot in range(world.core[0].running):
        mark = (world.slots[slot].job + 1) * 2654435761 & 0x3FFFFFFF
        for node in range(len(marks)):
            if world.slots[slot].nodes >> node & 1:
                marks[node] += mark * mark
    for node in range(len(marks)):
        low = marks[node] & 0x7FFFFFFF
        marks[node] = (low * 48271 ^ marks[node] >> 13) & 0xFFFFFFFFFFFF


@compiled
def is_known(found: Records, offset: int, count: int, alike: int) -> bool:
    """Whether a place like this is among those behind `offset`."""
    each = offset
    while each < offset + count and found[each].alike != alike:
        each += 1
    return each < offset + count


@compiled
def set_step(
    found: Records, row: int, step: int, job: int, cell: int, nodes: int, worth: float, alike: int
) -> None:
    """Set a step."""
    record = found[row]
    record.step, record.job, record.cell, record.nodes = step, job, cell, nodes
    record.worth, record.alike = worth, alike


@compiled_with_arrays
def insert_step(
    world: RoundsWorld,
    found: Records,
    offset: int,
    count: int,
    most: int,
    step: int,
    job: int,
    cell: int,
    nodes: int,
    worth: float,
    alike: int,
) -> int:
    """Insert a step into a part that is sorted by worth, and among equals by what they touch (`key_of`)."""
    position, key = count, 0
    while position > 0:
        before = found[offset + position - 1]
        if before.worth > worth:
            break
        if before.worth == worth:
            key = key_of(world, job, cell, nodes) if key == 0 else key
            if key_of(world, before.job, before.cell, before.nodes) >= key:
                break
        position -= 1
    if position >= most:
        return count
    last = min(count, most - 1)
    while last > position:
        found[offset + last] = found[offset + last - 1]
        last -= 1
    set_step(found, offset + position, step, job, cell, nodes, worth, alike)
    return min(count + 1, most)


@compiled
def key_of(world: RoundsWorld, job: int, cell: int, nodes: int) -> int:
    """A number that does not depend on the names of jobs and nodes: of a step's job, its neighbours and free GPUs."""
    key = math.floor(remaining_s(world, job) * 8 + 0.5) * 7919 + cell * 104729
    for slot in range(world.core[0].running):
        other = world.slots[slot]
        if other.nodes & nodes:
            key += math.floor(left_s(world, slot) * 8 + 0.5) * 31337 + other.cell * 15485863
    for node in range(len(world.free)):
        if nodes >> node & 1:
            key += world.free[node] * world.free[node] * 49979687
    return key


# -- what is told of them ----------------------------------------------------------------------------------------------


@compiled_with_arrays
def describe_rows(world: RoundsWorld, found: Records, count: int, rows: np.ndarray) -> None:
    """Set the rows of these steps; `rows` is (`rows_of`, `WIDTH`), and zero behind them.

    Args:
        world: within a decision.
        found: as `find_rows` has set it.
        count: of steps.
        rows: float32.
    """
    rows[:, :] = 0.0
    starts = 0
    while 1 + starts < count and found[1 + starts].cell >= 0 and found[1 + starts].step < end_step(world):
        starts += 1
    best = found[1].worth if starts > 0 else 0.0
    describe_all(world, best, starts, rows[0])
    rows[0, 0] = 1.0
    for row in range(1, count):
        rows[row, _OF_ALL:] = rows[0, _OF_ALL:]
        if row <= starts:
            describe_start(world, found, row, best, rows[row])
        else:
            describe_stop(world, found, row, rows[row])
    for row in range(count):
        for column in range(rows.shape[1]):
            rows[row, column] = math.floor(rows[row, column] * _FINE + 0.5) / _FINE


@compiled
def left_s(world: RoundsWorld, slot: int) -> float:
    """When a running job ends, from now, if its neighbours stay."""
    running = world.slots[slot]
    job = world.jobs[running.job]
    return job.hold + job.remaining / (world.cells[running.cell].rate * floored(running.raw))


@compiled
def capacity(world: RoundsWorld, node: int) -> int:
    """The GPUs of a node, those that are given out included."""
    gpus = world.free[node]
    for slot in range(world.core[0].running):
        if world.slots[slot].nodes >> node & 1:
            gpus += world.cells[world.slots[slot].cell].gpus
    return gpus


@compiled_with_arrays
def describe_all(world: RoundsWorld, best: float, starts: int, row: np.ndarray) -> None:
    """Set the numbers that are the same in each row."""
    core, total, free, largest = world.core[0], 0, 0, 1
    for node in range(len(world.free)):
        gpus = capacity(world, node)
        total += gpus
        free += world.free[node]
        largest = max(largest, gpus)
    next_s, left, ratios = 1e12, 0, 0
    for slot in range(core.running):
        each_s = left_s(world, slot)
        next_s = min(next_s, each_s)
        left += fixed(log_hours(each_s))
        ratios += fixed(floored(world.slots[slot].raw))
    work = 0
    for position in range(core.waiting):
        job = world.queue[position]
        work += fixed(remaining_s(world, job) * world.kinds[world.jobs[job].kind].gpus / S_PER_HOUR)
    running = max(core.running, 1)
    column = _OF_ALL
    for value in (
        free / max(total, 1),
        math.log1p(min(core.waiting, _MANY)) / _SCALE,
        math.log1p(core.running) / _SCALE,
        1.0 if has_started(world) else 0.0,
        log_hours(next_s) if core.running > 0 else 0.0,
        left / _WHOLE / running,
        ratios / _WHOLE / running if core.running > 0 else 1.0,
        log_hours(min(work / _WHOLE / max(total, 1) * S_PER_HOUR, _LONG_S)),
        squashed(best),
        math.log2(len(world.free)) / _SCALE,
        math.log2(largest) / _SCALE,
        1.0 if core.combination == PRODUCT else 0.0,
        1.0 if core.combination == SUM else 0.0,
        log_hours(core.restart_s * 60),
        starts / STARTS,
    ):
        row[column] = value
        column += 1


@compiled_with_arrays
def describe_job(world: RoundsWorld, job: int, cell: int, since: int, row: np.ndarray) -> None:
    """Set what is told of the job of a step."""
    kind = world.kinds[world.jobs[job].kind]
    same, total = 0, 0
    for position in range(world.core[0].waiting):
        same += world.jobs[world.queue[position]].kind == world.jobs[job].kind
    for node in range(len(world.free)):
        total += capacity(world, node)
    column = 3
    for value in (
        log_hours(remaining_s(world, job)),
        math.log(weight(world, job)) / _SCALE,
        kind.gpus / max(total, 1),
        math.log2(kind.gpus) / _SCALE,
        math.log2(world.cells[cell].nodes) / _SCALE,
        world.cells[cell].speed,
        math.log1p(min(same, _MANY)) / _SCALE,
        log_hours(min((world.core[0].now - since) / NS_PER_S, _LONG_S)),
    ):
        row[column] = value
        column += 1


@compiled_with_arrays
def describe_start(world: RoundsWorld, found: Records, number: int, best: float, row: np.ndarray) -> None:
    """Set the row of a start."""
    chosen, core = found[number], world.core[0]
    job, cell, nodes = chosen.job, world.cells[chosen.cell], chosen.nodes
    row[1] = 1.0
    describe_job(world, job, chosen.cell, world.jobs[job].arrival, row)
    own, gpus = weight(world, job), cell.gpus * cell.nodes
    raw, loss, least, beside = 1.0, 0, 1.0, 0
    first_s, last_s = 1e12, 0.0
    for slot in range(core.running):
        other = world.slots[slot]
        if other.nodes & nodes:
            raw = combined(world, raw, world.ratios[chosen.cell, other.cell])
            after = floored(combined(world, other.raw, world.ratios[other.cell, chosen.cell]))
            loss += fixed(other.value * (floored(other.raw) - after))
            least, beside = min(least, after), beside + 1
            first_s, last_s = min(first_s, left_s(world, slot)), max(last_s, left_s(world, slot))
    own_s = world.jobs[job].remaining / (cell.rate * floored(raw))
    free, whole, filled, all_free, total = 0, 0, 0, 0, 0
    for node in range(len(world.free)):
        all_free += world.free[node]
        total += capacity(world, node)
        if nodes >> node & 1:
            free += world.free[node]
            whole += capacity(world, node)
            filled += world.free[node] == cell.gpus
    partner, partners, known = 0.0, 0, 0
    for other in range(len(world.heads)):
        if world.heads[other] >= 0 and world.heads[other] != job:
            both = fitting_ratio(world, chosen.cell, other)
            partner, partners, known = max(partner, both), partners + fixed(both), known + 1
    column = 11
    for value in (
        squashed(chosen.worth),
        max(min(chosen.worth / best, 1.0), -1.0) if best > 0 else 0.0,
        max(chosen.worth * gpus / own, -2.0),
        floored(raw),
        squashed(loss / _WHOLE / gpus),
        least,
        math.log1p(beside) / _SCALE,
        log_hours(first_s) if beside > 0 else 0.0,
        log_hours(last_s),
        free / whole,
        (free - gpus) / whole,
        filled / cell.nodes,
        (all_free - gpus) / max(total, 1),
        partner,
        partners / _WHOLE / max(known, 1),
        log_hours(own_s),
        squashed((own_s - last_s) / S_PER_HOUR) if beside > 0 else 0.0,
    ):
        row[column] = value
        column += 1


@compiled
def fitting_ratio(world: RoundsWorld, cell: int, kind: int) -> float:
    """The mean of the two ratios of a cell and the fastest one of a kind beside each other."""
    first = world.kinds[kind].first
    fastest = first
    for each in range(first, first + world.kinds[kind].cells):
        if world.cells[each].speed > world.cells[fastest].speed:
            fastest = each
    return (world.ratios[cell, fastest] + world.ratios[fastest, cell]) / 2


@compiled_with_arrays
def describe_stop(world: RoundsWorld, found: Records, number: int, row: np.ndarray) -> None:
    """Set the row of a stop: what is told of a start that has been made."""
    chosen, core = found[number], world.core[0]
    slot = chosen.step - end_step(world) - 1
    job, cell, nodes = world.jobs[chosen.job], world.cells[chosen.cell], chosen.nodes
    row[2] = 1.0
    describe_job(world, chosen.job, chosen.cell, job.started, row)
    beside, least, first_s, last_s = 0, 1.0, 1e12, 0.0
    for other in range(core.running):
        if other != slot and world.slots[other].nodes & nodes:
            beside, least = beside + 1, min(least, floored(world.slots[other].raw))
            first_s, last_s = min(first_s, left_s(world, other)), max(last_s, left_s(world, other))
    free, whole = 0, 0
    for node in range(len(world.free)):
        if nodes >> node & 1:
            free += world.free[node]
            whole += capacity(world, node)
    row[11] = squashed(chosen.worth / (cell.gpus * cell.nodes))
    row[14], row[16], row[17] = floored(world.slots[slot].raw), least, math.log1p(beside) / _SCALE
    row[18], row[19] = log_hours(first_s) if beside > 0 else 0.0, log_hours(last_s)
    row[20], row[21] = free / whole, (free + cell.gpus * cell.nodes) / whole
    row[26] = log_hours(left_s(world, slot))
    row[27] = squashed((left_s(world, slot) - last_s) / S_PER_HOUR) if beside > 0 else 0.0
