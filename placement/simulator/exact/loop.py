"""The event loop of Algorithm 3."""

from __future__ import annotations

from placement.model.compiled import compiled
from placement.simulator.exact.compute import dispatch, end_iteration, end_task
from placement.simulator.exact.deciding import decide
from placement.simulator.exact.event_heap import NEVER, pop, soonest
from placement.simulator.exact.placing import arrive, place_queue
from placement.simulator.exact.task_ends import next_end, take_ended
from placement.simulator.exact.transfers import end_bucket, offer_bucket
from placement.simulator.exact.world import World


@compiled
def run(world: World) -> int:
    """Simulate until all jobs have ended; returns the time in ns."""
    core = world.core[0]
    now = 0
    while core.ended < len(world.jobs):
        now = min(next_end(world.ends), soonest(world.event_heap), _next_arrival(world))
        _end_what_is_due(world, now)
        while _next_arrival(world) == now:
            arrive(world, core.arrived)
            core.arrived += 1
            core.events += 1
        if core.must_place:
            place_queue(world, now)
        decide(world, now)
        dispatch(world, now)
    return now


@compiled
def _next_arrival(world: World) -> int:
    arrived = world.core[0].arrived
    return world.jobs[arrived].arrival if arrived < len(world.jobs) else NEVER


@compiled
def _end_what_is_due(world: World, now: int) -> None:
    core, ends = world.core[0], world.ends
    while next_end(ends) == now:
        gpu = take_ended(ends)
        while gpu >= 0:
            core.events += 1
            following = ends.following[gpu]
            _end_task(world, gpu, now)
            gpu = following
    while soonest(world.event_heap) == now:
        item = pop(world.event_heap)
        core.events += 1
        if item < len(world.jobs):
            _end_bucket(world, item, now)
        else:
            offer_bucket(world, item - len(world.jobs), now)


@compiled
def _end_task(world: World, gpu: int, now: int) -> None:
    job = end_task(world, gpu, now)
    if job < 0:
        return
    if world.jobs[job].places:
        offer_bucket(world, job, now)
    else:
        end_iteration(world, job, now)


@compiled
def _end_bucket(world: World, number: int, now: int) -> None:
    if not end_bucket(world, number, now):
        return
    job = world.jobs[number]
    for worker in range(job.first_worker, job.first_worker + job.gpus):
        world.gpus[world.workers[worker].gpu].workload -= job.transfer
    end_iteration(world, number, now)
