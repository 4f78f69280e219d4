"""A decision of a deadline rule, compiled: running jobs may move, and waiting jobs start.

The schemes, the allocation and the migration are sections 3.1 to 3.3 of DRS (Fu, Hu, Li, Journal of Computer Research
and Development 60(6), 2023), and numbers in parentheses are its equations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placement.model.compiled import compiled, compiled_with_arrays
from placement.policies.schedulers.deadlines.rules import (
    BY_ARRIVAL,
    BY_DEADLINE,
    BY_RUN,
    BY_SLACK,
    LATE_LAST,
    NEVER,
    SHARE_BATCH,
    SHARE_CLUSTER,
    SHARE_NODE,
    SHARE_SCHEME,
    DeadlineWorld,
)

_SHORT = 1 << 46
"""Below it the product of a time and a number of GPUs, up to 2^17, fits into 64 bits."""


class FreeNodes(NamedTuple):
    """What is free.

    Attributes:
        largest: the most free GPUs of a node.
        total: the free GPUs of all nodes.
        nodes: how many nodes have free GPUs.
        smallest: the fewest free GPUs of these.
        gpus: of the cluster.
        per_node: the GPUs of the largest node.
    """

    largest: int
    total: int
    nodes: int
    smallest: int
    gpus: int
    per_node: int


@compiled_with_arrays
def decide(world: DeadlineWorld, now: int) -> None:
    """Decide once; `changed` tells which jobs have moved and started.

    Raises:
        ValueError: no rule has such a share or order.
    """
    core = world.core[0]
    core.moved, core.changed = 0, 0
    if core.share == SHARE_BATCH:
        start_batch(world)
        return
    if core.migrates:
        migrate(world)
    while True:
        position, gpus, cross = first(world, now)
        if position < 0:
            return
        start(world, position, gpus, cross)


@compiled_with_arrays
def start(world: DeadlineWorld, position: int, gpus: int, cross: int) -> None:
    """Start the job at a position of the queue."""
    core, number = world.core[0], world.queue[position]
    take(world.free, gpus, cross, world.held[number])
    note_held(world, number)
    for later in range(position + 1, core.waiting):
        world.queue[later - 1] = world.queue[later]
    core.waiting -= 1
    slot = core.running
    while slot > 0 and world.active[slot - 1] > number:
        world.active[slot] = world.active[slot - 1]
        slot -= 1
    world.active[slot] = number
    core.running += 1
    world.changed[core.changed] = number
    core.changed += 1


@compiled
def note_held(world: DeadlineWorld, number: int) -> None:
    """Set N and the kind of a job to those of the GPUs that it holds."""
    gpus, nodes = 0, 0
    for node in range(len(world.size)):
        gpus += world.held[number, node]
        nodes += 1 if world.held[number, node] > 0 else 0
    world.jobs[number].gpus, world.jobs[number].cross = gpus, 1 if nodes > 1 else 0


# -- order -------------------------------------------------------------------------------------------------------------


@compiled_with_arrays
def first(world: DeadlineWorld, now: int) -> tuple[int, int, int]:
    """The position in the queue of the job to start, N and its kind; -1 if none can be started."""
    found, chosen, kind = -1, 0, 0
    free = free_nodes(world)
    if free.total == 0:
        return found, chosen, kind
    first_rank, second_rank, third_rank = NEVER, NEVER, NEVER
    for position in range(world.core[0].waiting):
        number = world.queue[position]
        gpus, cross = share_of(world, number, now, free)
        if gpus == 0:
            continue
        job = world.jobs[number]
        rank, then, last = rank_of(world, number, now + job.restart + world.run[job.row, cross, gpus])
        if rank < first_rank or (
            rank == first_rank and (then < second_rank or (then == second_rank and last < third_rank))
        ):
            first_rank, second_rank, third_rank = rank, then, last
            found, chosen, kind = position, gpus, cross
    return found, chosen, kind


@compiled
def rank_of(world: DeadlineWorld, number: int, end: int) -> tuple[int, int, int]:
    """The rank of a waiting job that would end then: the least comes first."""
    job, order = world.jobs[number], world.core[0].order
    if order == BY_ARRIVAL:
        return 0, job.arrival, 0
    if order == BY_DEADLINE:
        return 0, job.deadline, 0
    if order == BY_RUN:
        return 0, world.run[job.row, 0, job.fewest], 0
    if order != BY_SLACK and order != LATE_LAST:
        raise ValueError("deadline rule: no such order")
    if end > job.deadline:
        return 1, end, 0
    return (0, job.deadline, 0) if order == LATE_LAST else (0, job.deadline - end, job.deadline)


# -- shares ------------------------------------------------------------------------------------------------------------


@compiled
def free_nodes(world: DeadlineWorld) -> FreeNodes:
    """What is free now."""
    largest, total, nodes, smallest, gpus, per_node = 0, 0, 0, NEVER, 0, 0
    for node in range(len(world.free)):
        count = world.free[node]
        if count > 0:
            largest, smallest = max(largest, count), min(smallest, count)
            total += count
            nodes += 1
        gpus += world.size[node]
        per_node = max(per_node, world.size[node])
    return FreeNodes(largest, total, nodes, smallest, gpus, per_node)


@compiled_with_arrays
def share_of(world: DeadlineWorld, number: int, now: int, free: FreeNodes) -> tuple[int, int]:
    """N (0 if it waits) and the kind (1 is across nodes, which one GPU never is) that a waiting job would get now."""
    share = world.core[0].share
    if share == SHARE_SCHEME:
        return scheme(world, number, now, free)
    if share == SHARE_CLUSTER:
        return whole_cluster(world, number, free)
    if share == SHARE_NODE:
        return whole_node(world, number, free)
    raise ValueError("deadline rule: no such share")


@compiled
def whole_cluster(world: DeadlineWorld, number: int, free: FreeNodes) -> tuple[int, int]:
    """All GPUs, or as many as the job can use, once all are free."""
    job = world.jobs[number]
    gpus = min(free.total, job.most)
    if free.total < free.gpus or gpus < job.fewest:
        return 0, 0
    return gpus, 1 if gpus > free.largest else 0


@compiled
def whole_node(world: DeadlineWorld, number: int, free: FreeNodes) -> tuple[int, int]:
    """All GPUs of a node, or as many as the job can use, once a node is free.

    A job that cannot run on as few GPUs as any node has gets the fewest whole nodes that it can run on.
    """
    job, gpus = world.jobs[number], 0
    cross = 0 if job.fewest <= free.per_node else 1
    for node in range(len(world.free)):
        if world.free[node] == world.size[node]:
            gpus = gpus * cross + world.size[node]
        if gpus >= job.fewest:
            return min(gpus, job.most), cross
    return 0, 0


@compiled_with_arrays
def scheme(world: DeadlineWorld, number: int, now: int, free: FreeNodes) -> tuple[int, int]:
    """The scheme decision of DRS (3.1): R_t, a number of GPUs and a kind. Only the multiset of free GPUs counts."""
    across = 0
    if free.nodes > 1:
        across = expected(world, number, now, 1, free.total)
        if free.smallest < across:
            return across, 1
    single = expected(world, number, now, 0, free.largest)
    if single > 0:
        return single, 0
    if free.nodes > 1:
        across = late(world, number, now, 1, free.total)
        if free.smallest < across:
            return across, 1
    return late(world, number, now, 0, free.largest), 0


@compiled
def expected(world: DeadlineWorld, number: int, now: int, cross: int, most: int) -> int:
    """N of the scheme with the largest PR = (T_dl - T_end) / N (12) of those in time; the fewest of equals, 0 if none.

    (11) refuses GPUs that make the job slower than on the fewest that it can run on, which always pass.
    """
    job = world.jobs[number]
    latest = job.deadline - now - job.restart
    best, best_slack = 0, 0
    for gpus in range(job.fewest, min(most, job.most) + 1):
        if gpus > job.fewest and not world.gains[job.row, cross, gpus]:
            continue
        slack = latest - world.run[job.row, cross, gpus]
        if slack >= 0 and (best == 0 or has_larger_ratio(slack, gpus, best_slack, best)):
            best, best_slack = gpus, slack
    return best


@compiled
def late(world: DeadlineWorld, number: int, now: int, cross: int, most: int) -> int:
    """N of the scheme that ends first of those that miss the deadline; the fewest of equals, 0 if there is none."""
    job = world.jobs[number]
    latest = job.deadline - now - job.restart
    best, shortest = 0, NEVER
    for gpus in range(job.fewest, min(most, job.most) + 1):
        run = world.run[job.row, cross, gpus]
        if latest < run < shortest and (gpus == job.fewest or world.gains[job.row, cross, gpus]):
            best, shortest = gpus, run
    return best


@compiled
def has_larger_ratio(slack: int, gpus: int, other_slack: int, other: int) -> bool:
    """Whether slack / gpus > other_slack / other, exactly; no slack is negative."""
    if max(slack, other_slack) < _SHORT:
        return slack * other > other_slack * gpus
    whole, other_whole = slack // gpus, other_slack // other
    if whole != other_whole:
        return whole > other_whole
    return (slack - whole * gpus) * other > (other_slack - other_whole * other) * gpus


# -- allocation (3.2) --------------------------------------------------------------------------------------------------


@compiled
def take(left: np.ndarray, gpus: int, cross: int, taken: np.ndarray) -> bool:
    """Take GPUs of the nodes with `left` free ones, by ascending free GPUs and then by number; False: no room.

    On one node it is the first that has room; across nodes all that each has, in turn. So few GPUs are left over in
    many places.

    Args:
        left: per node, is changed.
        gpus: how many.
        cross: whether across nodes.
        taken: is set to what each node gives.
    """
    for node in range(len(taken)):
        taken[node] = 0
    if not cross:
        node = tightest(left, gpus, taken)
        if node < 0:
            return False
        left[node] -= gpus
        taken[node] = gpus
        return True
    total = 0
    for node in range(len(left)):
        total += left[node]
    if total < gpus:
        return False
    missing = gpus
    while missing > 0:
        node = tightest(left, 1, taken)
        taken[node] = min(left[node], missing)
        missing -= taken[node]
    for node in range(len(left)):
        left[node] -= taken[node]
    return True


@compiled
def tightest(left: np.ndarray, gpus: int, taken: np.ndarray) -> int:
    """The node with the fewest free GPUs of those that have as many and gave none yet; -1 if there is none."""
    found, fewest = -1, NEVER
    for node in range(len(left)):
        if gpus <= left[node] < fewest and taken[node] == 0:
            found, fewest = node, left[node]
    return found


@compiled
def copy(source: np.ndarray, target: np.ndarray) -> None:
    """Copy all numbers; numpy's way would need to allocate."""
    for index in range(len(source)):
        target[index] = source[index]


# -- migration (3.3) ---------------------------------------------------------------------------------------------------


@compiled_with_arrays
def migrate(world: DeadlineWorld) -> None:
    """Pack running jobs onto fewer nodes if most nodes are used, but at most half, and the plan changes anything."""
    core, sparse = world.core[0], 0
    for node in range(len(world.size)):
        used = world.size[node] - world.free[node]
        if used > 0 and 2 * used <= world.size[node]:
            sparse += 1
    if 2 * sparse <= len(world.size) or not plan(world):
        return
    for position in range(core.running):
        number = world.active[position]
        if differs(world, number):
            world.changed[core.moved] = number
            core.moved += 1
    core.changed = core.moved
    if core.moved > 0:
        copy(world.left, world.free)
    for position in range(core.moved):
        number = world.changed[position]
        copy(world.planned[number], world.held[number])
        note_held(world, number)


@compiled_with_arrays
def plan(world: DeadlineWorld) -> bool:
    """Place all running jobs on an empty cluster: those on one node before the others, each by descending N.

    N and the kind of a job do not change. False: a job finds no room.
    """
    copy(world.size, world.left)
    running = world.core[0].running
    for position in range(running):
        world.marks[position] = 0
    for _ in range(running):
        best, best_cross, best_gpus = -1, 2, 0
        for position in range(running):
            job = world.jobs[world.active[position]]
            precedes = job.cross < best_cross or (job.cross == best_cross and job.gpus > best_gpus)
            if precedes and not world.marks[position]:
                best, best_cross, best_gpus = position, job.cross, job.gpus
        world.marks[best] = 1
        if not take(world.left, best_gpus, best_cross, world.planned[world.active[best]]):
            return False
    return True


@compiled_with_arrays
def differs(world: DeadlineWorld, number: int) -> bool:
    """Whether the plan gives a job other numbers of GPUs on some node."""
    different = False
    for node in range(len(world.size)):
        different = different or world.planned[number, node] != world.held[number, node]
    return different


# -- batches of the DRS paper's Themis ---------------------------------------------------------------------------------


@compiled_with_arrays
def start_batch(world: DeadlineWorld) -> None:
    """Start a batch if the cluster is empty: by descending N, each on one node if one has room."""
    core = world.core[0]
    if core.running > 0 or core.waiting == 0:
        return
    free = free_nodes(world)
    left = share_out(world, free.gpus, free.per_node)
    while left > 0:
        best = 0
        for position in range(1, left):
            if world.shares[position] > world.shares[best]:
                best = position
        gpus, room = world.shares[best], False
        for node in range(len(world.free)):
            room = room or world.free[node] >= gpus
        start(world, best, gpus, 0 if room else 1)
        left -= 1
        for later in range(best, left):
            world.shares[later] = world.shares[later + 1]


@compiled_with_arrays
def share_out(world: DeadlineWorld, gpus: int, per_node: int) -> int:
    """Divide all GPUs among the first jobs of the queue; returns how many jobs, whose numbers of GPUs are `shares`.

    Each has the fewest that it can run on; then the job with the longest run time gets the next larger number that
    shortens it, again and again.
    """
    jobs, left = 0, gpus
    while jobs < world.core[0].waiting and world.jobs[world.queue[jobs]].fewest <= left:
        world.shares[jobs] = world.jobs[world.queue[jobs]].fewest
        world.marks[jobs] = 1
        left -= world.shares[jobs]
        jobs += 1
    while left > 0:
        longest, found = -1, -1
        for position in range(jobs):
            if world.marks[position]:
                run = run_of(world, position, world.shares[position], per_node)
                if run > longest:
                    longest, found = run, position
        if found < 0:
            break
        larger = next_larger(world, found, left, per_node)
        if larger == 0:
            world.marks[found] = 0
        else:
            left -= larger - world.shares[found]
            world.shares[found] = larger
    return jobs


@compiled_with_arrays
def next_larger(world: DeadlineWorld, position: int, left: int, per_node: int) -> int:
    """The next larger number of GPUs that shortens the job; 0 if there is none within reach."""
    present, most = world.shares[position], world.jobs[world.queue[position]].most
    now = run_of(world, position, present, per_node)
    for gpus in range(present + 1, min(present + left, most) + 1):
        if run_of(world, position, gpus, per_node) < now:
            return gpus
    return 0


@compiled_with_arrays
def run_of(world: DeadlineWorld, position: int, gpus: int, per_node: int) -> int:
    """T_run of the job at a position of the queue, on one node if it fits there."""
    return world.run[world.jobs[world.queue[position]].row, 0 if gpus <= per_node else 1, gpus]
