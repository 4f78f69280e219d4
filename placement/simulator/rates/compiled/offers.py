"""The shares and ranks of the non-preemptive schedulers, compiled.

See `placement.policies.schedulers.drs.scheme` and `placement.policies.schedulers.ordered`.
"""

from __future__ import annotations

from placement.model.compiled import compiled, compiled_with_arrays
from placement.simulator.rates.compiled.world import (
    BY_ARRIVAL,
    BY_DEADLINE,
    BY_SLACK,
    NEVER,
    SHARE_CLUSTER,
    SHARE_NODE,
    Offer,
    World,
)


@compiled_with_arrays
def offer(world: World, number: int, now: int, largest: int, total: int, nodes: int, smallest: int) -> Offer:
    """The GPUs that a waiting job would get now.

    Args:
        world: the state.
        number: of the job.
        now: the time.
        largest: the most free GPUs of a node.
        total: the free GPUs of all nodes.
        nodes: how many nodes have free GPUs.
        smallest: the fewest free GPUs of these.
    """
    job = world.jobs[number]
    share = world.core[0].share
    if share == SHARE_CLUSTER:
        if total < world.run_ns.shape[2] - 1:
            return Offer(0, 0, 0)
        cross = 1 if total > largest else 0
        return Offer(total, cross, now + world.run_ns[job.workload, cross, total])
    if share == SHARE_NODE:
        for node in range(len(world.free)):
            if world.free[node] == world.size[node]:
                gpus = world.size[node]
                return Offer(gpus, 0, now + world.run_ns[job.workload, 0, gpus])
        return Offer(0, 0, 0)
    across = Offer(0, 0, 0)
    if nodes > 1:
        across = expected(world, number, now, 1, total)
        if smallest < across.gpus:
            return across
    single = expected(world, number, now, 0, largest)
    if single.gpus > 0:
        return single
    if nodes > 1:
        across = late(world, number, now, 1, total)
        if smallest < across.gpus:
            return across
    return late(world, number, now, 0, largest)


@compiled
def expected(world: World, number: int, now: int, cross: int, most: int) -> Offer:
    """The scheme with the largest PR (12) of those that meet the deadline; the fewest GPUs of equals."""
    job = world.jobs[number]
    latest = job.deadline - now
    best, best_slack = 0, 0
    for gpus in range(1, most + 1):
        if gpus > 1 and not world.gains[job.workload, cross, gpus]:
            continue
        slack = latest - world.run_ns[job.workload, cross, gpus]
        if slack >= 0 and (best == 0 or slack * best > best_slack * gpus):
            best, best_slack = gpus, slack
    if best == 0:
        return Offer(0, 0, 0)
    return Offer(best, cross if best > 1 else 0, job.deadline - best_slack)


@compiled
def late(world: World, number: int, now: int, cross: int, most: int) -> Offer:
    """The scheme that ends first of those that miss the deadline; the fewest GPUs of equals."""
    job = world.jobs[number]
    latest = job.deadline - now
    best, shortest = 0, NEVER
    for gpus in range(1, most + 1):
        run = world.run_ns[job.workload, cross, gpus]
        if latest < run < shortest and (gpus == 1 or world.gains[job.workload, cross, gpus]):
            best, shortest = gpus, run
    if best == 0:
        return Offer(0, 0, 0)
    return Offer(best, cross if best > 1 else 0, now + shortest)


@compiled_with_arrays
def first(world: World, now: int) -> tuple[int, Offer]:
    """The position in the queue of the job to start, and its offer; -1 if none can be started."""
    largest, total, nodes, smallest = 0, 0, 0, NEVER
    for node in range(len(world.free)):
        count = world.free[node]
        if count > 0:
            largest, smallest = max(largest, count), min(smallest, count)
            total += count
            nodes += 1
    found, chosen = -1, Offer(0, 0, 0)
    if total == 0:
        return found, chosen
    order = world.core[0].order
    first_rank, second_rank, third_rank = NEVER, NEVER, NEVER
    for position in range(world.core[0].waiting):
        number = world.queue[position]
        given = offer(world, number, now, largest, total, nodes, smallest)
        if given.gpus == 0:
            continue
        job = world.jobs[number]
        is_late = 1 if given.end > job.deadline else 0
        rank, then, last = 0, job.deadline, 0
        if order == BY_ARRIVAL:
            then = job.arrival
        elif order != BY_DEADLINE:
            rank, then = is_late, given.end if is_late else job.deadline
            if order == BY_SLACK and not is_late:
                then, last = job.deadline - given.end, job.deadline
        if rank < first_rank or (
            rank == first_rank and (then < second_rank or (then == second_rank and last < third_rank))
        ):
            first_rank, second_rank, third_rank = rank, then, last
            found, chosen = position, given
    return found, chosen
