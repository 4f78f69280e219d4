"""The decisions of the communication policy at the end of an instant (Algorithm 3, lines 14 to 21)."""

from __future__ import annotations

from placement.model.compiled import compiled
from placement.model.state import SENDING, WAITING
from placement.policies.catalogue import BY_RANK
from placement.policies.communication import grant, starts
from placement.simulator.exact.transfers import add_candidate, settle, start
from placement.simulator.exact.world import World


@compiled
def decide(world: World, now: int) -> None:
    """Start the transfers that the policy admits."""
    if world.core[0].rule == BY_RANK:
        _grant(world, now)
    else:
        _admit(world, now)


@compiled
def _admit(world: World, now: int) -> None:
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
def _gather(world: World) -> None:
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
def _sort_by_rank(world: World, count: int) -> None:
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
def _settle_around(world: World, number: int, now: int) -> None:
    job = world.jobs[number]
    for place in range(job.first_place, job.first_place + job.places):
        other = world.links[world.places[place].link].first_running
        while other >= 0:
            settle(world, world.places[other].job, now)
            other = world.places[other].next


@compiled
def _grant(world: World, now: int) -> None:
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
def _is_free(world: World, number: int) -> bool:
    job = world.jobs[number]
    for place in range(job.first_place, job.first_place + job.places):
        if world.links[world.places[place].link].running:
            return False
    return True
