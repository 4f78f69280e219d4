"""The loop of a compiled run: ends, arrivals, and a decision after both."""

from __future__ import annotations

from placement.model.compiled import compiled_with_arrays
from placement.simulator.rates.compiled.allocation import take
from placement.simulator.rates.compiled.batch import share_out
from placement.simulator.rates.compiled.migration import migrate
from placement.simulator.rates.compiled.offers import first
from placement.simulator.rates.compiled.spans import close_span, open_span
from placement.simulator.rates.compiled.world import ENDED, NEVER, SHARE_BATCH, WAITS, World


@compiled_with_arrays
def run(world: World) -> bool:
    """Run until all jobs have ended; False if the rest is never placed."""
    core, jobs = world.core[0], world.jobs
    while core.ended < len(jobs):
        now = jobs[core.arrived].arrival if core.arrived < len(jobs) else NEVER
        for position in range(core.running):
            now = min(now, jobs[world.active[position]].end)
        if now == NEVER:
            return False
        end_jobs(world, now)
        while core.arrived < len(jobs) and jobs[core.arrived].arrival <= now:
            jobs[core.arrived].state = WAITS
            world.queue[core.waiting] = core.arrived
            core.waiting += 1
            core.arrived += 1
        if core.share == SHARE_BATCH:
            start_batch(world, now)
            continue
        if core.migrates:
            migrate(world, now)
        start_first(world, now)
    return True


@compiled_with_arrays
def end_jobs(world: World, now: int) -> None:
    """End the jobs that are due, and free their GPUs."""
    core, kept = world.core[0], 0
    for position in range(core.running):
        number = world.active[position]
        if world.jobs[number].end > now:
            world.active[kept] = number
            kept += 1
            continue
        close_span(world, number, now)
        world.jobs[number].state = ENDED
        for node in range(len(world.free)):
            world.free[node] += world.held[number, node]
        core.ended += 1
    core.running = kept


@compiled_with_arrays
def start_first(world: World, now: int) -> None:
    """Start the first waiting job, again and again, until none can be started."""
    while True:
        position, given = first(world, now)
        if position < 0:
            return
        start(world, position, given.gpus, given.cross, now)


@compiled_with_arrays
def start(world: World, position: int, gpus: int, cross: int, now: int) -> None:
    """Start the job at a position of the queue."""
    core, number = world.core[0], world.queue[position]
    take(world.free, gpus, cross, world.held[number])
    open_span(world, number, now, 0)
    job = world.jobs[number]
    job.end = now + world.run_ns[job.workload, job.cross, gpus]
    for later in range(position + 1, core.waiting):
        world.queue[later - 1] = world.queue[later]
    core.waiting -= 1
    slot = core.running
    while slot > 0 and world.active[slot - 1] > number:
        world.active[slot] = world.active[slot - 1]
        slot -= 1
    world.active[slot] = number
    core.running += 1


@compiled_with_arrays
def start_batch(world: World, now: int) -> None:
    """Start a batch if the cluster is empty: by descending N, each on one node if one has room."""
    core = world.core[0]
    if core.running > 0 or core.waiting == 0:
        return
    total, per_node = 0, 0
    for node in range(len(world.size)):
        total += world.size[node]
        per_node = max(per_node, world.size[node])
    left = share_out(world, total, per_node)
    while left > 0:
        best = 0
        for position in range(1, left):
            if world.shares[position] > world.shares[best]:
                best = position
        gpus, room = world.shares[best], False
        for node in range(len(world.free)):
            room = room or world.free[node] >= gpus
        start(world, best, gpus, 0 if room else 1, now)
        left -= 1
        for later in range(best, left):
            world.shares[later] = world.shares[later + 1]
