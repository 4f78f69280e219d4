"""The loop of Algorithm 3, from event to event."""

from __future__ import annotations

from placement.compiled import compiled
from placement.simulator.agenda import NEVER, pop, soonest
from placement.simulator.compute import dispatch, end_iteration, end_task
from placement.simulator.placing import arrive, place_queue
from placement.simulator.transfers import become_ready, decide, end_transfer
from placement.simulator.world import World


@compiled
def run(world: World, placement: int, kappa: int, communication: int, limit: int) -> int:
    """Until all jobs have ended; returns the time, in ns."""
    core = world.core[0]
    now = 0
    while core.ended < len(world.jobs):
        now = min(soonest(world.agenda), _next_arrival(world))
        _end_what_is_due(world, now)
        while _next_arrival(world) == now:
            arrive(world, core.arrived)
            core.arrived += 1
            core.events += 1
        if core.must_place:
            place_queue(world, placement, kappa, 0, now)
        decide(world, communication, limit, now)
        dispatch(world, now)
    return now


@compiled
def _next_arrival(world: World) -> int:
    arrived = world.core[0].arrived
    return world.jobs[arrived].arrival if arrived < len(world.jobs) else NEVER


@compiled
def _end_what_is_due(world: World, now: int) -> None:
    core = world.core[0]
    while soonest(world.agenda) == now:
        item = pop(world.agenda)
        core.events += 1
        if item < len(world.gpus):
            job = end_task(world, item, now)
            if job >= 0:
                if world.jobs[job].places:
                    become_ready(world, job, now)
                else:
                    end_iteration(world, job, now)
        else:
            job = item - len(world.gpus)
            if end_transfer(world, job, now):
                _reduce_workload(world, job)
                end_iteration(world, job, now)


@compiled
def _reduce_workload(world: World, number: int) -> None:
    job = world.jobs[number]
    for worker in range(job.first_worker, job.first_worker + job.gpus):
        world.gpus[world.workers[worker].gpu].workload -= job.transfer
