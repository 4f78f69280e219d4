"""Arrivals, the placement of jobs on GPUs, and the communication policy's decisions (Algorithm 3, lines 6 to 21)."""

from __future__ import annotations

from placement.model.compiled import compiled
from placement.model.state import QUEUED, SENDING, WAITING, Occupancy
from placement.policies.catalogue import BY_RANK
from placement.policies.communication import grant, starts
from placement.policies.placing import choose
from placement.simulator.exact.compute import begin_iteration
from placement.simulator.exact.transfers import add_candidate, settle, start
from placement.simulator.exact.world import ExactWorld

# -- placement (lines 6 to 13) -----------------------------------------------------------------------------------------


@compiled
def arrive(world: ExactWorld, number: int) -> None:
    """Insert an arriving job into the queue, which is in the order of SRSF."""
    core = world.core[0]
    service = world.jobs[number].service_left
    hole = core.queued
    while hole > 0:
        other = world.queue[hole - 1]
        if (world.jobs[other].service_left, other) <= (service, number):
            break
        world.queue[hole] = other
        hole -= 1
    world.queue[hole] = number
    world.jobs[number].state = QUEUED
    core.least_queued = (
        min(core.least_queued, world.jobs[number].gpus) if core.queued else world.jobs[number].gpus
    )
    core.queued += 1
    core.must_place = 1


@compiled
def place_queue(world: ExactWorld, now: int) -> None:
    """Place every job that fits; the others stay in the queue."""
    core = world.core[0]
    core.must_place = 0
    if not _has_room_for_any(world):
        return
    kept, least = 0, len(world.gpus)
    for position in range(core.queued):
        number = world.queue[position]
        there = Occupancy(world.jobs, world.gpus, world.servers, world.hosted, world.workers)
        if _has_room(world, number) and choose(core.placement, core.kappa, there, number, world.chosen):
            _place(world, number, now)
        else:
            world.queue[kept] = number
            least = min(least, world.jobs[number].gpus)
            kept += 1
    core.queued, core.least_queued = kept, least


@compiled
def _has_room_for_any(world: ExactWorld) -> bool:
    """False if even the smallest job with the least memory would not fit, so that a long queue need not be searched."""
    return world.core[0].queued > 0 and world.roomy[0] >= world.core[0].least_queued


@compiled
def _has_room(world: ExactWorld, number: int) -> bool:
    for size in range(len(world.memories)):
        if world.memories[size] == world.jobs[number].memory:
            return world.roomy[size] >= world.jobs[number].gpus
    return False


@compiled
def _place(world: ExactWorld, number: int, now: int) -> None:
    job = world.jobs[number]
    job.started = now
    _use_links(world, number)
    job.service_left = 0
    for index in range(job.gpus):
        _host(world, number, job.first_worker + index, world.chosen[index])
    begin_iteration(world, number, now)


@compiled
def _host(world: ExactWorld, number: int, worker: int, gpu: int) -> None:
    job, record = world.jobs[number], world.gpus[gpu]
    backward = world.backward[job.model, record.kind]
    compute = world.forward[job.model, record.kind] + backward
    job.slowest = max(job.slowest, compute)
    job.slowest_backward = max(job.slowest_backward, backward)
    # The compute time on these GPUs, whose performance need not be 1.
    job.service_left += compute * job.iterations_left
    record.workload += (compute + job.transfer if job.places else compute) * job.iterations_left
    world.workers[worker].job = number
    world.workers[worker].gpu = gpu
    world.hosted[gpu, record.workers] = worker
    record.workers += 1
    before = record.memory_left
    record.memory_left -= job.memory
    for size in range(len(world.memories)):
        if record.memory_left < world.memories[size] <= before:
            world.roomy[size] -= 1


@compiled
def _use_links(world: ExactWorld, number: int) -> None:
    """Record the links of a job: those with some of its servers below them, but not all."""
    job, core = world.jobs[number], world.core[0]
    servers = 0
    for index in range(job.gpus):
        server = world.gpus[world.chosen[index]].server
        if world.below[world.way[server, 0]] == 0:
            servers += 1
            for link in world.way[server]:
                if link >= 0:
                    world.below[link] += 1
    job.servers = servers
    job.first_place = core.places
    for index in range(job.gpus):
        for link in world.way[world.gpus[world.chosen[index]].server]:
            if link >= 0 and world.below[link] > 0:
                if world.below[link] < servers:
                    world.places[core.places].job = number
                    world.places[core.places].link = link
                    core.places += 1
                world.below[link] = 0
    job.places = core.places - job.first_place


# -- communication, at the end of an instant (lines 14 to 21) ----------------------------------------------------------


@compiled
def decide(world: ExactWorld, now: int) -> None:
    """Start the transfers that the policy admits."""
    if world.core[0].rule == BY_RANK:
        _grant(world, now)
    else:
        _admit(world, now)


@compiled
def _admit(world: ExactWorld, now: int) -> None:
    """Ask the policy for each waiting job in the order of rank, until none may start."""
    core = world.core[0]
    while core.dirty_links or core.candidates:
        _gather(world)
        count = core.candidates
        core.candidates = 0
        _sort_by_rank(world, count)
        for position in range(count):
            world.jobs[world.candidates[position]].mark = 0
        for position in range(count):
            number = world.candidates[position]
            _settle_around(world, number, now)
            if starts(
                core.rule,
                core.limit,
                world.jobs,
                world.links,
                world.places,
                world.costs,
                world.acceptance,
                number,
            ):
                start(world, number, now)


@compiled
def _gather(world: ExactWorld) -> None:
    """Collect the jobs that wait for links whose state has changed."""
    core = world.core[0]
    for position in range(core.dirty_links):
        link = world.links[world.dirty_links[position]]
        link.mark = 0
        place = link.first_waiting
        while place >= 0:
            add_candidate(world, world.places[place].job)
            place = world.places[place].next
    core.dirty_links = 0


@compiled
def _sort_by_rank(world: ExactWorld, count: int) -> None:
    """Sort by insertion: the candidates are few and nearly in order."""
    candidates = world.candidates
    for position in range(1, count):
        number = candidates[position]
        rank = world.jobs[number].rank
        hole = position
        while hole > 0:
            other = candidates[hole - 1]
            if (world.jobs[other].rank, other) <= (rank, number):
                break
            candidates[hole] = other
            hole -= 1
        candidates[hole] = number


@compiled
def _settle_around(world: ExactWorld, number: int, now: int) -> None:
    job = world.jobs[number]
    for place in range(job.first_place, job.first_place + job.places):
        other = world.links[world.places[place].link].first_running
        while other >= 0:
            settle(world, world.places[other].job, now)
            other = world.places[other].next


@compiled
def _grant(world: ExactWorld, now: int) -> None:
    """Reassign links whose state has changed; start or stop (after the current bucket) jobs accordingly."""
    core = world.core[0]
    while core.dirty_links or core.candidates:
        _gather(world)
        count = core.candidates
        core.candidates = 0
        touched = grant(world.jobs, world.links, world.places, world.candidates, count, world.touched)
        for position in range(touched):
            number = world.touched[position]
            job = world.jobs[number]
            job.mark = 0
            if job.state == SENDING:
                job.yields = 1 - job.granted
            elif job.state == WAITING and job.granted and _is_free(world, number):
                start(world, number, now)


@compiled
def _is_free(world: ExactWorld, number: int) -> bool:
    job = world.jobs[number]
    for place in range(job.first_place, job.first_place + job.places):
        if world.links[world.places[place].link].running:
            return False
    return True
