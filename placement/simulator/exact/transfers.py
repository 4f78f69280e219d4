"""Transfers on the links, bucket by bucket: requests, starts, stops, and contention as in Eq. 5."""

from __future__ import annotations

import numpy as np

from placement.model.compiled import compiled
from placement.model.state import COMPUTING, SENDING, WAITING
from placement.policies.catalogue import ADA_SRSF, ADA_SRSF_K
from placement.policies.communication import rank
from placement.simulator.exact.event_heap import drop, put
from placement.simulator.exact.world import ExactWorld


@compiled
def mark_link(world: ExactWorld, link: int) -> None:
    """Mark the jobs that wait for this link as candidates at the end of this instant."""
    core = world.core[0]
    if world.links[link].mark == 0:
        world.links[link].mark = 1
        world.dirty_links[core.dirty_links] = link
        core.dirty_links += 1


@compiled
def add_candidate(world: ExactWorld, number: int) -> None:
    """Mark this job as a candidate at the end of this instant."""
    core = world.core[0]
    if world.jobs[number].mark == 0:
        world.jobs[number].mark = 1
        world.candidates[core.candidates] = number
        core.candidates += 1


@compiled
def offer_bucket(world: ExactWorld, number: int, now: int) -> None:
    """Have a job with a ready bucket request its links, unless it has already."""
    job = world.jobs[number]
    if job.computed >= 0:
        drop(world.event_heap, len(world.jobs) + number)
    if job.state != COMPUTING:
        return
    _load_bucket(world, number)
    job.rank = rank(world.core[0].link_rank, world.jobs, number)
    _ask(world, number, now)
    add_candidate(world, number)


@compiled
def start(world: ExactWorld, number: int, now: int) -> None:
    """Start the transfer of a job that has requested its links."""
    job, rule = world.jobs[number], world.core[0].rule
    if job.computed >= 0:
        job.link_wait += now - max(job.ready, job.computed)
    job.state = SENDING
    job.sending_since = job.updated = now
    for place in range(job.first_place, job.first_place + job.places):
        link = world.places[place].link
        _take(world, place, link, True)
        _push(world, place, link, False)
        record = world.links[link]
        record.running += 1
        if record.running == 1:
            record.since = now
        if rule in (ADA_SRSF, ADA_SRSF_K):
            mark_link(world, link)  # One more running transfer can make AdaDUAL accept another one.
    _share_anew(world, number, now)


@compiled
def end_bucket(world: ExactWorld, number: int, now: int) -> bool:
    """Handle the event of a transfer; returns whether all gradients of the iteration are reduced."""
    job = world.jobs[number]
    settle(world, number, now)
    if job.left > 0:
        _expect(world, number, now)
        return False
    job.sent += 1
    ready = buckets_ready(world, number, now)
    if job.sent < ready:
        _load_bucket(world, number)
        if job.yields:
            _stop(world, number, now)
            _ask(world, number, now)
        else:
            _expect(world, number, now)
        return False
    _stop(world, number, now)
    _release(world, number)
    job.state = COMPUTING
    if job.sent < job.buckets:
        await_bucket(world, number)
        return False
    return True


@compiled
def settle(world: ExactWorld, number: int, now: int) -> None:
    """Update the remainder of a running transfer to this instant."""
    job = world.jobs[number]
    elapsed = now - job.updated
    waited = min(elapsed, job.latency_left)
    job.latency_left -= waited
    job.left = max(0, job.left - (elapsed - waited) * job.rate)
    job.updated = now


@compiled
def _load_bucket(world: ExactWorld, number: int) -> None:
    job, core = world.jobs[number], world.core[0]
    parts = (job.transfer - core.latency) * core.parts
    job.left = parts // job.buckets
    if job.sent == job.buckets - 1:
        job.left += parts % job.buckets
    job.latency_left = core.latency


@compiled
def _ask(world: ExactWorld, number: int, now: int) -> None:
    job = world.jobs[number]
    job.state = WAITING
    job.ready = now
    job.yields = 0
    for place in range(job.first_place, job.first_place + job.places):
        _push(world, place, world.places[place].link, True)


@compiled
def _release(world: ExactWorld, number: int) -> None:
    """Release the granted links of a job."""
    job = world.jobs[number]
    job.granted = job.yields = 0
    for place in range(job.first_place, job.first_place + job.places):
        link = world.links[world.places[place].link]
        if link.granted == number:
            link.granted = -1


@compiled
def _push(world: ExactWorld, place: int, link: int, waits: bool) -> None:
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
def _take(world: ExactWorld, place: int, link: int, waits: bool) -> None:
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
def _stop(world: ExactWorld, number: int, now: int) -> None:
    job = world.jobs[number]
    job.state = WAITING
    job.sending += now - job.sending_since
    if job.computed >= 0:
        job.communication += now - max(job.sending_since, job.computed)
    drop(world.event_heap, number)
    for place in range(job.first_place, job.first_place + job.places):
        link = world.places[place].link
        _take(world, place, link, False)
        record = world.links[link]
        record.running -= 1
        if record.running == 0:
            record.busy += now - record.since
            note_use(world.link_use, world.core[0].interval, link, record.since, now)
        mark_link(world, link)
    _share_anew(world, number, now)


@compiled
def _share_anew(world: ExactWorld, number: int, now: int) -> None:
    """Recompute the rates of all transfers on the links of this job from their current number."""
    job = world.jobs[number]
    for place in range(job.first_place, job.first_place + job.places):
        other = world.links[world.places[place].link].first_running
        while other >= 0:
            sharer = world.places[other].job
            rate = _rate(world, sharer)
            if rate != world.jobs[sharer].rate:
                settle(world, sharer, now)
                world.jobs[sharer].rate = rate
                _expect(world, sharer, now)
            other = world.places[other].next
    if job.state == SENDING:
        _expect(world, number, now)


@compiled
def _rate(world: ExactWorld, number: int) -> int:
    """The rate of a job's transfer, which is that of its slowest link."""
    job = world.jobs[number]
    first = world.links[world.places[job.first_place].link]
    slowest = world.rates[first.kind, first.running]
    for place in range(job.first_place + 1, job.first_place + job.places):
        link = world.links[world.places[place].link]
        slowest = min(slowest, world.rates[link.kind, link.running])
    return slowest


@compiled
def _expect(world: ExactWorld, number: int, now: int) -> None:
    """Schedule the end of a running bucket: the first nanosecond at which it has nothing left."""
    job = world.jobs[number]
    rest = (job.left + job.rate - 1) // job.rate
    put(world.event_heap, number, now + job.latency_left + rest)


# -- the times at which buckets are ready ------------------------------------------------------------------------------
# The k-th of n buckets is ready when the last of the workers to begin its backward task would have done k/n of it on
# the slowest of the job's GPUs: exact where these are equal, and never too early.


@compiled
def buckets_ready(world: ExactWorld, number: int, now: int) -> int:
    """The number of a job's buckets that are ready in this iteration."""
    job = world.jobs[number]
    if job.computed >= 0:
        return job.buckets
    if job.backward_left > 0 or job.slowest_backward == 0:
        return 0
    done = (now - job.backward_began) * job.buckets // job.slowest_backward
    return min(done, job.buckets - 1)


@compiled
def await_bucket(world: ExactWorld, number: int) -> None:
    """Schedule the time at which the next bucket is ready; the last one is ready when all workers have computed."""
    job = world.jobs[number]
    item = len(world.jobs) + number
    following = job.sent + 1
    if job.places == 0 or following >= job.buckets:
        drop(world.event_heap, item)
        return
    wait = (following * job.slowest_backward + job.buckets - 1) // job.buckets
    put(world.event_heap, item, job.backward_began + wait)


# -- the use of GPUs and links over time -------------------------------------------------------------------------------


@compiled
def note_use(use: np.ndarray, interval: int, row: int, since: int, until: int) -> None:
    """Add the time from `since` to `until` to the intervals of this row, if there are any."""
    intervals = use.shape[1]
    if intervals == 0:
        return
    at = since
    while at < until:
        column = min(at // interval, intervals - 1)
        end = until if column == intervals - 1 else min(until, (column + 1) * interval)
        use[row, column] += end - at
        at = end
