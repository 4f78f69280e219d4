"""The compiled fluid simulation: the phases of jobs in sequence, and max-min fair shares of the links.

Every phase counts down its remainder in nanoseconds at full speed. A silent phase runs at speed 1; a sending phase
runs at the fraction of its bandwidth that it gets. So an undisturbed job takes exactly its iteration time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from placement.model.compiled import compiled
from placement.model.state import Records

FLOW = np.dtype(
    [
        ("running", "i8"),
        ("phase", "i8"),  # -1: waiting for the start of the iteration
        ("phases", "i8"),
        ("links", "i8"),
        ("sending", "i8"),
        ("first", "i8"),  # whether this iteration's first communication is still to come
        ("told", "i8"),  # whether `reference` was set after the last delay
        ("number", "i8"),  # iterations since the beginning, over all placements
        ("to_do", "i8"),
        ("left", "f8"),  # ns at full speed
        ("speed", "f8"),
        ("due", "f8"),  # ns from now
        ("began", "f8"),
        ("reference", "f8"),  # start of the last iteration, derived from its first communication
        ("silence", "f8"),
        ("delay", "f8"),  # of the next iteration
        ("noise", "f8"),  # standard deviation, ns
        ("early", "f8"),  # by how much this iteration's computation is shorter than usual
        ("bits", "f8"),
        ("marked", "f8"),
    ]
)

CORE = np.dtype([("now", "f8"), ("loss", "f8"), ("stale", "i8"), ("logged", "i8"), ("ended", "i8")])

_HAIR = 1e-12

ENDED = np.dtype([("flow", "i8"), ("began", "f8"), ("ended", "f8"), ("marked", "f8")])


class Flows(NamedTuple):
    """A fluid simulation.

    Attributes:
        flows: of FLOW, one a job.
        core: of CORE, one.
        duration: per job and phase, ns.
        bandwidth: per job and phase, bit/ns (Gbit/s).
        way: per job, the numbers of its links.
        capacity: per link, bit/ns.
        demand: per link, scratch: the sum of the demands.
        spare: per link, scratch: the capacity that is left.
        unmet: per link, scratch: the number of unsettled transfers.
        rate: per job, scratch: bit/ns.
        noise: per job, standard normal numbers for its iterations, used in turn.
        ended: of ENDED, the iterations that ended; as many as `core.logged`.
        link_bits: per link, the bits that were sent over it.
        link_marked: per link, the bits that were sent over it while demand exceeded its capacity.
    """

    flows: Records
    core: Records
    duration: np.ndarray
    bandwidth: np.ndarray
    way: np.ndarray
    capacity: np.ndarray
    demand: np.ndarray
    spare: np.ndarray
    unmet: np.ndarray
    rate: np.ndarray
    noise: np.ndarray
    ended: Records
    link_bits: np.ndarray
    link_marked: np.ndarray


@compiled
def advance(world: Flows, until: float) -> None:
    """Advance until a time (ns), the end of a job or a full log, whichever comes first."""
    core = world.core[0]
    core.ended = 0
    while core.now < until and core.ended == 0 and core.logged + len(world.flows) <= len(world.ended):
        if core.stale:
            share(world)
        step = min(_soonest(world), until - core.now)
        _send(world, step)
        core.now = until if step == until - core.now else core.now + step
        for number in range(len(world.flows)):
            flow = world.flows[number]
            if flow.running == 0:
                continue
            if flow.due <= step:
                _next_phase(world, number)
            else:
                flow.left -= step * flow.speed


@compiled
def begin(world: Flows, number: int, hold: float) -> None:
    """Start a job, whose first iteration begins after `hold` ns."""
    flow = world.flows[number]
    flow.running = 1
    flow.began = world.core[0].now + hold
    flow.phase = -1
    flow.told = 0
    flow.first = 1
    flow.delay = flow.early = 0.0
    _enter(world, number, hold)


@compiled
def share(world: Flows) -> None:
    """Compute max-min fair rates: all rise equally until a link is full or a phase has its bandwidth."""
    _ask(world)
    world.core[0].stale = 0
    left = 0
    for number in range(len(world.flows)):
        flow = world.flows[number]
        if flow.sending and flow.links > 0:
            world.rate[number] = -1.0
            left += 1
        elif flow.sending:
            flow.speed = 1.0
    level = 0.0
    while left > 0:
        level += _rise(world, level)
        left -= _settle(world, level)


@compiled
def _ask(world: Flows) -> None:
    """Sum the demand on each link; a link with too much demand may lose a part of its capacity."""
    world.demand[:] = 0.0
    world.unmet[:] = 0
    for number in range(len(world.flows)):
        flow = world.flows[number]
        if flow.sending:
            for place in range(flow.links):
                world.demand[world.way[number, place]] += world.bandwidth[number, flow.phase]
                world.unmet[world.way[number, place]] += 1
    for link in range(len(world.capacity)):
        world.spare[link] = world.capacity[link]
        if world.demand[link] > world.capacity[link]:
            world.spare[link] *= 1.0 - world.core[0].loss


@compiled
def _rise(world: Flows, level: float) -> float:
    """The step by which all unsettled rates can rise; it is subtracted from the links' capacities."""
    step = math.inf
    for number in range(len(world.flows)):
        flow = world.flows[number]
        if flow.sending and flow.links > 0 and world.rate[number] < 0.0:
            step = min(step, world.bandwidth[number, flow.phase] - level)
    for link in range(len(world.spare)):
        if world.unmet[link] > 0:
            step = min(step, world.spare[link] / world.unmet[link])
    for link in range(len(world.spare)):
        if world.unmet[link] > 0:
            # The link that determined the step is exactly full.
            full = world.spare[link] / world.unmet[link] == step
            world.spare[link] = 0.0 if full else world.spare[link] - step * world.unmet[link]
    return step


@compiled
def _settle(world: Flows, level: float) -> int:
    """Settle the rates that meet their demand or use a full link; returns their number."""
    settled = 0
    for number in range(len(world.flows)):
        flow = world.flows[number]
        if flow.sending == 0 or flow.links == 0 or world.rate[number] >= 0.0:
            continue
        wanted = world.bandwidth[number, flow.phase]
        # Rounding may leave a tiny gap between the level and the demand.
        met = wanted - level <= _HAIR * wanted
        if met or _is_full(world, number):
            world.rate[number] = wanted if met else level
            flow.speed = 1.0 if met else level / wanted
            for place in range(flow.links):
                world.unmet[world.way[number, place]] -= 1
            settled += 1
    return settled


@compiled
def _is_full(world: Flows, number: int) -> bool:
    for place in range(world.flows[number].links):
        link = world.way[number, place]
        if world.spare[link] <= _HAIR * world.capacity[link]:
            return True
    return False


@compiled
def _soonest(world: Flows) -> float:
    soonest = math.inf
    for number in range(len(world.flows)):
        flow = world.flows[number]
        if flow.running:
            flow.due = max(flow.left, 0.0) / flow.speed
            soonest = min(soonest, flow.due)
    return soonest


@compiled
def _send(world: Flows, step: float) -> None:
    """Count the bits that were sent, and those that were sent under congestion."""
    for number in range(len(world.flows)):
        flow = world.flows[number]
        if flow.sending == 0:
            continue
        bits = step * flow.speed * world.bandwidth[number, flow.phase]
        flow.bits += bits
        marked = False
        for place in range(flow.links):
            link = world.way[number, place]
            world.link_bits[link] += bits
            if world.demand[link] > world.capacity[link]:
                world.link_marked[link] += bits
                marked = True
        if marked:
            flow.marked += bits


@compiled
def _next_phase(world: Flows, number: int) -> None:
    flow = world.flows[number]
    flow.left = 0.0
    flow.phase += 1
    if flow.phase < flow.phases:
        _enter(world, number, 0.0)
        return
    _log(world, number)
    if flow.to_do == 0:
        flow.running = 0
        _be_silent(world, number)
        world.core[0].ended += 1
        return
    _begin_next(world, number)


@compiled
def _log(world: Flows, number: int) -> None:
    """Handle the end of an iteration."""
    core, flow = world.core[0], world.flows[number]
    entry = world.ended[core.logged]
    entry.flow, entry.began, entry.ended, entry.marked = number, flow.began, core.now, flow.marked
    core.logged += 1
    flow.marked = 0.0
    flow.to_do -= 1
    flow.number += 1
    flow.began = core.now


@compiled
def _begin_next(world: Flows, number: int) -> None:
    """Start the next iteration, after its delay and its noise, which may be negative."""
    flow = world.flows[number]
    noise = flow.noise * world.noise[number, flow.number % world.noise.shape[1]]
    hold = flow.delay + noise
    if flow.delay > 0.0:
        flow.told = 0
        flow.delay = 0.0
    flow.early = max(-hold, 0.0)
    flow.phase = -1
    flow.first = 1
    _enter(world, number, max(hold, 0.0))


@compiled
def _enter(world: Flows, number: int, hold: float) -> None:
    """Start a phase; phase -1 lasts `hold` ns and is skipped if that is 0."""
    flow = world.flows[number]
    if flow.phase < 0:
        flow.left = hold
        flow.speed = 1.0
        _be_silent(world, number)
        if hold > 0.0:
            return
        flow.phase = 0
    flow.left = world.duration[number, flow.phase]
    if world.bandwidth[number, flow.phase] == 0.0:
        flow.speed = 1.0
        _be_silent(world, number)
        cut = min(flow.early, flow.left)
        flow.left -= cut
        flow.early -= cut
        return
    if flow.first:
        # According to the profile, the silence of the iteration began earlier.
        flow.reference = world.core[0].now - flow.silence
        flow.first = 0
        flow.told = 1
    flow.sending = 1
    world.core[0].stale = 1


@compiled
def _be_silent(world: Flows, number: int) -> None:
    if world.flows[number].sending:
        world.flows[number].sending = 0
        world.core[0].stale = 1
