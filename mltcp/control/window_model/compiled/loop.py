"""The loop of the compiled model."""

from __future__ import annotations

import numpy as np

from mltcp.control.window_model.compiled.compiler import compiled
from mltcp.control.window_model.compiled.iterations import (
    begin_iteration,
    finish_pieces,
    hand_over,
    is_silent,
    next_due,
)
from mltcp.control.window_model.compiled.state import NEVER, Record
from mltcp.control.window_model.compiled.transmission import acknowledge, drain, send


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
