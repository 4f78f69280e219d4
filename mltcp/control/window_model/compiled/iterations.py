"""The applications: when pieces are handed to the flow, and when an iteration ends."""

from __future__ import annotations

import math

import numpy as np

from mltcp.control.window_model.compiled.compiler import compiled
from mltcp.control.window_model.compiled.factor import rescale
from mltcp.control.window_model.compiled.state import NEVER, Record

_NOTHING = 1e-6


@compiled
def begin_iteration(job: Record, pieces: Record, start: float, noise: float) -> None:
    """Begin an iteration; `noise` is the standard deviation of its compute time."""
    job.start = start
    job.piece, job.sending = 0, 0
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
        job.sending = 1


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
        rescale(law, job)
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
