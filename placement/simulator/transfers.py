"""All-reduces on the links: contention as in Eq. 5, and the decisions of the communication policy (Algorithm 3)."""

from __future__ import annotations

from placement.compiled import compiled
from placement.policies.admission import starts
from placement.simulator.agenda import drop, put
from placement.simulator.world import World
from placement.state import SENDING, WAITING


@compiled
def mark_link(world: World, link: int) -> None:
    """Have those that wait for this link ask again at the end of this instant."""
    core = world.core[0]
    if world.links[link].mark == 0:
        world.links[link].mark = 1
        world.dirty_links[core.dirty_links] = link
        core.dirty_links += 1


@compiled
def become_ready(world: World, number: int, now: int) -> None:
    """The workers of a job have all computed: it asks for its links."""
    job = world.jobs[number]
    job.state = WAITING
    job.ready = now
    data = job.transfer - world.core[0].latency
    job.latency_left = world.core[0].latency
    job.left = data * world.core[0].parts
    for place in range(job.first_place, job.first_place + job.places):
        link = world.places[place].link
        _push(world, place, link, True)
    _add_candidate(world, number)


@compiled
def decide(world: World, rule: int, limit: int, now: int) -> None:
    """Let those start that the policy lets, the first by SRSF first, until it lets no more."""
    core = world.core[0]
    while core.dirty_links or core.candidates:
        _gather(world)
        count = core.candidates
        core.candidates = 0
        _sort_by_srsf(world, count)
        for position in range(count):
            number = world.candidates[position]
            world.jobs[number].mark = 0
        for position in range(count):
            number = world.candidates[position]
            _settle_around(world, number, now)
            if starts(rule, limit, world.jobs, world.links, world.places, world.acceptance, number):
                _start(world, number, now)


@compiled
def end_transfer(world: World, number: int, now: int) -> bool:
    """What was due for a transfer has come; whether it is over (or else it was only its latency)."""
    job = world.jobs[number]
    _settle(world, number, now)
    if job.left > 0:
        _expect(world, number, now)
        return False
    _stop(world, number, now)
    return True


@compiled
def _add_candidate(world: World, number: int) -> None:
    core = world.core[0]
    if world.jobs[number].mark == 0:
        world.jobs[number].mark = 1
        world.candidates[core.candidates] = number
        core.candidates += 1


@compiled
def _gather(world: World) -> None:
    """The jobs that wait for links on which something has changed."""
    core = world.core[0]
    for position in range(core.dirty_links):
        link = world.links[world.dirty_links[position]]
        link.mark = 0
        place = link.first_waiting
        while place >= 0:
            _add_candidate(world, world.places[place].job)
            place = world.places[place].next
    core.dirty_links = 0


@compiled
def _sort_by_srsf(world: World, count: int) -> None:
    """By insertion: there are few, and they are nearly in order."""
    candidates = world.candidates
    for position in range(1, count):
        number = candidates[position]
        service = world.jobs[number].service_left
        hole = position
        while hole > 0:
            other = candidates[hole - 1]
            if (world.jobs[other].service_left, other) <= (service, number):
                break
            candidates[hole] = other
            hole -= 1
        candidates[hole] = number


@compiled
def _push(world: World, place: int, link: int, waits: bool) -> None:
    record = world.links[link]
    first = record.first_waiting if waits else record.first_running
    world.places[place].before = -1
    world.places[place].next = first
    if first >= 0:
        world.places[first].before = place
    if waits:
        record.first_waiting = place
    else:
        record.first_running = place


@compiled
def _take(world: World, place: int, link: int, waits: bool) -> None:
    before, after = world.places[place].before, world.places[place].next
    if after >= 0:
        world.places[after].before = before
    if before >= 0:
        world.places[before].next = after
    elif waits:
        world.links[link].first_waiting = after
    else:
        world.links[link].first_running = after


@compiled
def _start(world: World, number: int, now: int) -> None:
    job = world.jobs[number]
    job.link_wait += now - job.ready
    job.state = SENDING
    job.sending_since = now
    job.updated = now
    for place in range(job.first_place, job.first_place + job.places):
        link = world.places[place].link
        _take(world, place, link, True)
        _push(world, place, link, False)
        record = world.links[link]
        record.running += 1
        if record.running == 1:
            record.since = now
        mark_link(world, link)
    _share_anew(world, number, now)


@compiled
def _stop(world: World, number: int, now: int) -> None:
    job = world.jobs[number]
    job.communication += now - job.sending_since
    job.state = WAITING
    drop(world.agenda, len(world.gpus) + number)
    for place in range(job.first_place, job.first_place + job.places):
        link = world.places[place].link
        _take(world, place, link, False)
        record = world.links[link]
        record.running -= 1
        if record.running == 0:
            record.busy += now - record.since
        mark_link(world, link)
    _share_anew(world, number, now)


@compiled
def _share_anew(world: World, number: int, now: int) -> None:
    """Bring all transfers on the links of this job up to date with how many they are now."""
    job = world.jobs[number]
    for place in range(job.first_place, job.first_place + job.places):
        other = world.links[world.places[place].link].first_running
        while other >= 0:
            sharer = world.places[other].job
            rate = _rate(world, sharer)
            if rate != world.jobs[sharer].rate:
                _settle(world, sharer, now)
                world.jobs[sharer].rate = rate
                _expect(world, sharer, now)
            other = world.places[other].next
    if job.state == SENDING:
        _expect(world, number, now)


@compiled
def _rate(world: World, number: int) -> int:
    """That of the slowest of its links."""
    job = world.jobs[number]
    slowest = world.core[0].parts << 1
    for place in range(job.first_place, job.first_place + job.places):
        link = world.links[world.places[place].link]
        slowest = min(slowest, world.rates[link.kind, link.running])
    return slowest


@compiled
def _settle(world: World, number: int, now: int) -> None:
    """What a running transfer has left by now."""
    job = world.jobs[number]
    elapsed = now - job.updated
    waited = min(elapsed, job.latency_left)
    job.latency_left -= waited
    job.left = max(0, job.left - (elapsed - waited) * job.rate)
    job.updated = now


@compiled
def _settle_around(world: World, number: int, now: int) -> None:
    job = world.jobs[number]
    for place in range(job.first_place, job.first_place + job.places):
        other = world.links[world.places[place].link].first_running
        while other >= 0:
            _settle(world, world.places[other].job, now)
            other = world.places[other].next


@compiled
def _expect(world: World, number: int, now: int) -> None:
    """Note when a running transfer will end: at the first nanosecond at which it has nothing left."""
    job = world.jobs[number]
    rest = (job.left + job.rate - 1) // job.rate
    put(world.agenda, len(world.gpus) + number, now + job.latency_left + rest)
