"""The loop of the model: applications hand pieces to their flows, and in each step of the link packets leave the queue,
are acknowledged, and flows send what their windows allow.
"""

from __future__ import annotations

import math

import numpy as np

from placement.model.compiled import compiled
from placement.simulator.network.laws.dctcp import observe_marks
from placement.simulator.network.laws.state import (
    LOSS,
    MARK,
    NEVER,
    Record,
    current_factor,
    is_recognised,
    learn_sending,
)
from placement.simulator.network.laws.windows import (
    DCTCP,
    grow,
    is_time_out,
    look,
    reduce,
    restart,
    time_out,
    transmission_starts,
)

_NOTHING = 1e-6


@compiled
def begin_iteration(job: Record, pieces: Record, start: float, noise: float) -> None:
    """Begin an iteration; `noise` is the standard deviation of its compute time."""
    job.start = start
    job.piece, job.sending = 0, 0
    _set_burst(job, pieces[job.first_piece])
    job.acked = job.unacked = 0.0
    job.first_sent = NEVER
    job.begin = start + max(0.0, pieces[job.first_piece].after + np.random.normal(0.0, noise))
    job.due = job.begin


@compiled
def hand_over(job: Record, flow: Record, pieces: Record, now: float) -> None:
    """Give the flow the pieces that are due."""
    if job.overlapped:
        late = job.begin - job.start - pieces[job.first_piece].after
        while job.piece < job.pieces and now >= job.start + late + pieces[job.first_piece + job.piece].after:
            _give(job, flow, pieces[job.first_piece + job.piece].packets)
            job.piece += 1
    elif job.sending == 0 and now >= job.due:
        _give(job, flow, pieces[job.first_piece + job.piece].packets)
        _set_burst(job, pieces[job.first_piece + job.piece])
        job.sending = 1


@compiled
def _set_burst(job: Record, piece: Record) -> None:
    job.burst_packets, job.burst_before = piece.burst_packets, piece.burst_before


@compiled
def _give(job: Record, flow: Record, packets: float) -> None:
    flow.left += packets
    job.unacked += packets


@compiled
def next_due(job: Record, pieces: Record) -> float:
    """When a job that has nothing to send will."""
    if not job.overlapped:
        return job.due
    late = job.begin - job.start - pieces[job.first_piece].after
    return job.start + late + pieces[job.first_piece + job.piece].after


@compiled
def finish_pieces(
    law: Record, job: Record, flow: Record, pieces: Record, now: float, overhead: float
) -> float:
    """If all that was handed over is acknowledged, go on to the next piece; returns the iteration's end, or NEVER."""
    if flow.left > _NOTHING or job.unacked > _NOTHING:
        return NEVER
    if job.overlapped:
        if job.piece < job.pieces:
            return NEVER
        end = now + overhead
    elif job.sending:
        end = _finish_piece(job, pieces, now + overhead)
    else:
        return NEVER
    flow.left = flow.in_flight = job.unacked = 0.0
    if end != NEVER:
        learn_sending(law, job)
    return end


@compiled
def _finish_piece(job: Record, pieces: Record, ended: float) -> float:
    at_least = pieces[job.first_piece + job.piece].at_least
    job.sending = 0
    job.piece += 1
    if job.drops_lateness and ended >= job.begin + 2 * at_least:
        job.begin = ended
    else:
        # A late piece is made up for, by at most one piece (bench.workloads.phases.next_due_s).
        job.begin = max(job.begin + at_least, ended - at_least)
    if job.piece == job.pieces:
        return max(ended, job.begin)
    after = pieces[job.first_piece + job.piece].after
    if after > 0:
        job.begin = max(ended, job.begin) + after
    job.due = max(ended, job.begin)
    return NEVER


@compiled
def is_silent(job: Record, flow: Record) -> bool:
    """Whether a job neither sends nor waits for acknowledgements."""
    return flow.left <= 0 and job.unacked <= _NOTHING and math.isfinite(job.due)


_NO_PACKETS = 1e-9


@compiled
def drain(link: Record, flows: Record) -> float:
    """Let the queue drain for one step; returns the part of the packets in flight that is acknowledged."""
    link.queue = max(0.0, link.queue - link.capacity * link.step)
    in_flight = 0.0
    for j in range(len(flows)):
        in_flight += flows[j].in_flight
    link.real_queue = min(in_flight, max(0.0, link.queue - link.burst))
    return (in_flight - link.real_queue) / in_flight if in_flight > 0 else 0.0


@compiled
def acknowledge(link: Record, law: Record, flow: Record, job: Record, part: float, now: float) -> None:
    """Acknowledge this part of a flow's packets in flight: count them, and let the window grow or shrink."""
    acked = flow.in_flight * part
    flow.in_flight -= acked
    job.unacked -= acked
    job.acked += acked
    job.last_acked = now
    flow.factor = current_factor(law, job)
    rtt = link.step + link.real_queue / link.capacity
    look(law, flow, is_recognised(law, job), rtt, link.step)
    if law.base == DCTCP:
        flow.window_acked += acked
        observe_marks(flow, now, rtt)
    flow.acked_fraction += acked
    whole = int(flow.acked_fraction)
    flow.acked_fraction -= whole
    arrived = flow.signal != 0 and now >= flow.signal_at
    if arrived and now >= flow.reducing_until:
        _respond(link, law, flow, now, rtt)
    elif now >= flow.reducing_until:
        grow(law, flow, whole, now)
    if arrived:
        flow.signal = 0


@compiled
def _respond(link: Record, law: Record, flow: Record, now: float, rtt: float) -> None:
    """The response to a mark or a loss; there is no other for a round trip."""
    if is_time_out(flow):
        time_out(law, flow)
        flow.blocked_until = flow.reducing_until = now + link.rto
    else:
        reduce(law, flow)
        flow.reducing_until = now + rtt


@compiled
def _signal(link: Record, flow: Record, kind: int, now: float) -> None:
    if flow.signal == 0:
        flow.signal_at = now + link.step + max(0.0, link.queue - link.burst) / link.capacity
    flow.signal = max(flow.signal, kind)


@compiled
def send(link: Record, law: Record, flow: Record, job: Record, now: float) -> None:
    """Send what the window allows; packets above the threshold are marked, those without room dropped."""
    if flow.left <= 0 or now < flow.blocked_until:
        return
    if flow.in_flight <= _NO_PACKETS and flow.last_sent >= 0:
        idle = now - flow.last_sent
        if idle > link.rto:
            restart(flow, idle, link.rto)
        flow.factor = current_factor(law, job)
        transmission_starts(law, flow, job.first_sent < 0, is_recognised(law, job), idle, now)
    if flow.last_sent < 0:
        flow.looks = 1
    packets = min(flow.left, flow.cwnd - flow.in_flight)
    if packets <= 0:
        return
    if job.first_sent < 0:
        job.first_sent = now
    flow.last_sent = now
    room = max(0.0, link.room - link.queue)
    if packets > room:
        link.dropped += packets - room
        packets = room
        _signal(link, flow, LOSS, now)
    if packets > 0:
        _mark(link, flow, packets, now)
        link.queue += packets
        flow.in_flight += packets
        flow.left -= packets


@compiled
def _mark(link: Record, flow: Record, packets: float, now: float) -> None:
    above = link.queue + packets - max(link.queue, link.threshold)
    if link.marks == 0 or above <= 0:
        return
    link.marked += above
    flow.window_marked += above
    if np.random.random() < 1 - (1 - above / packets) ** packets:
        _signal(link, flow, MARK, now)


# -- the loop -----------------------------------------------------------------------------------


@compiled
def run(
    link: Record,
    laws: Record,
    flows: Record,
    jobs: Record,
    pieces: Record,
    starts: np.ndarray,
    holds: np.ndarray,
    begins: np.ndarray,
    ends: np.ndarray,
    marks: np.ndarray,
    iterations: int,
    noise: float,
    overhead: float,
    seed: int,
    limit: float,
) -> float:
    """Run until every job has finished so many iterations, or until `limit`; returns the time.

    Writes when each iteration began and ended, as far as the arrays have room, and the marks so far at its end.
    """
    np.random.seed(seed)
    count = len(jobs)
    for j in range(count):
        begin_iteration(jobs[j], pieces, starts[j], noise)
    now = 0.0
    while now < limit:
        now += link.step
        part = drain(link, flows)
        for j in range(count):
            if flows[j].in_flight > 0 and part > 0:
                acknowledge(link, laws[j], flows[j], jobs[j], part, now)
        ended = _end_iterations(
            link, laws, flows, jobs, pieces, holds, begins, ends, marks, noise, overhead, now
        )
        if ended and _least_iteration(jobs) >= iterations:
            return now
        first = np.random.randint(count)
        for i in range(count):
            j = (first + i) % count
            hand_over(jobs[j], flows[j], pieces, now)
            send(link, laws[j], flows[j], jobs[j], now)
        now = _skip_silence(link, flows, jobs, pieces, now)
    return now


@compiled
def _end_iterations(
    link: Record,
    laws: Record,
    flows: Record,
    jobs: Record,
    pieces: Record,
    holds: np.ndarray,
    begins: np.ndarray,
    ends: np.ndarray,
    marks: np.ndarray,
    noise: float,
    overhead: float,
    now: float,
) -> bool:
    ended = False
    for j in range(len(jobs)):
        job = jobs[j]
        end = finish_pieces(laws[j], job, flows[j], pieces, now, overhead)
        if end == NEVER:
            continue
        ended = True
        if job.iteration < begins.shape[1]:
            begins[j, job.iteration] = job.start
            ends[j, job.iteration] = end
            marks[j, job.iteration] = link.marked
        job.iteration += 1
        hold = holds[j, job.iteration] if job.iteration < holds.shape[1] else 0.0
        begin_iteration(job, pieces, end + hold, noise)
    return ended


@compiled
def _least_iteration(jobs: Record) -> int:
    least = jobs[0].iteration
    for j in range(1, len(jobs)):
        least = min(least, jobs[j].iteration)
    return least


@compiled
def _skip_silence(link: Record, flows: Record, jobs: Record, pieces: Record, now: float) -> float:
    """While nobody sends, go on to the step before the next piece."""
    soonest = np.inf
    for j in range(len(jobs)):
        if not is_silent(jobs[j], flows[j]):
            return now
        soonest = min(soonest, next_due(jobs[j], pieces))
    steps = int((soonest - now) / link.step) - 1
    if steps <= 0:
        return now
    link.queue = max(0.0, link.queue - steps * link.step * link.capacity)
    return now + steps * link.step
