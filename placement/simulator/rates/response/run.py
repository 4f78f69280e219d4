"""Run a trace of training jobs under a scheduler of mean response time, compiled, for long traces.

The same rules run on `ClusterRun`; both give the same times. Between arrivals and ends, every job advances at the speed
of its nodes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mltcp.core.errors import MltcpError
from placement.model.compiled import compiled_with_arrays
from placement.policies.schedulers.response.catalogue import JsqChunk, ResponseScheduler, check_chunk
from placement.policies.schedulers.response.rules import divide, shortest_queue
from placement.policies.schedulers.response.tables import (
    JobSpeeds,
    Present,
    ResponseRule,
    ResponseTables,
    tables_of,
)
from placement.simulator.rates.response.settings import ResponseOutcome, ResponseSettings
from placement.traces.async_sgd import AsyncTrace

DONE = 1e-9
"""A job with at most this share of its size left is done."""

_NEVER = float("inf")


class ResponseJobs(NamedTuple):
    """The jobs of a trace, and what became of them.

    Attributes:
        arrival: in seconds.
        model: row of the tables.
        size: in units of work.
        end: in seconds; written by the run.
        part: when `share` of the job was done, in seconds; written by the run.
        share: q, from 0 to 1.
    """

    arrival: np.ndarray
    model: np.ndarray
    size: np.ndarray
    end: np.ndarray
    part: np.ndarray
    share: float


def run_response(
    trace: AsyncTrace, settings: ResponseSettings, scheduler: ResponseScheduler | JsqChunk
) -> ResponseOutcome:
    """Run a trace to its end.

    Raises:
        UsageError: a chunk is larger than the cluster.
        MltcpError: jobs wait that the scheduler never serves.
    """
    if isinstance(scheduler, JsqChunk):
        check_chunk(scheduler.chunk, settings.nodes)
    models = tuple(JobSpeeds(settings.speeds(model), settings.nodes) for model in trace.models)
    count = len(trace)
    jobs = ResponseJobs(
        arrival=trace.arrival_units / settings.rate(trace),
        model=trace.model.astype(np.int64),
        size=trace.batches(),
        end=np.zeros(count),
        part=np.full(count, np.inf),
        share=float(settings.share),
    )
    if isinstance(scheduler, JsqChunk):
        finished, most, at_last, area = run_chunks(
            tables_of(models, None), jobs, settings.nodes, scheduler.chunk
        )
    else:
        tables, present = tables_of(models, scheduler.widths), Present.of(count + 1)
        finished, most, at_last, area = run_loop(scheduler.rule, tables, jobs, present, settings.nodes)
    if not finished:
        raise MltcpError(f"{scheduler.name}: jobs of {trace.name} are never served")
    return ResponseOutcome(jobs.arrival, jobs.end, jobs.part, most, at_last, area)


@compiled_with_arrays
def run_loop(
    rule: ResponseRule, tables: ResponseTables, jobs: ResponseJobs, present: Present, nodes: int
) -> tuple[bool, int, int, float]:
    """Run until all jobs have ended.

    Returns:
        Whether all ended, the most jobs present at a time, those present after the last arrival, and the integral of
        the number present over time.
    """
    total = len(jobs.arrival)
    now, area = 0.0, 0.0
    count, arrived, ended, most, at_last = 0, 0, 0, 0, 0
    while ended < total:
        step, first = next_end(tables, present, count)
        arrives = arrived < total and jobs.arrival[arrived] <= now + step
        if arrives:
            step = jobs.arrival[arrived] - now
        elif step == _NEVER:
            return False, most, at_last, area
        area += step * count
        advance(tables, jobs, present, count, now, step)
        if arrives:
            now = jobs.arrival[arrived]
        else:
            now += step
            present.left[first] = 0.0
        still = remove_done(jobs, present, count, now)
        ended += count - still
        count = still
        if arrives:
            add(jobs, present, count, arrived)
            arrived += 1
            count += 1
            most = max(most, count)
            if arrived == total:
                at_last = count
        divide(rule, tables, present, count, nodes)
    return True, most, at_last, area


@compiled_with_arrays
def next_end(tables: ResponseTables, present: Present, count: int) -> tuple[float, int]:
    """The time until the next end, and the position of the job that ends; the first of equals."""
    shortest, first = _NEVER, -1
    for position in range(count):
        speed = tables.speed[present.model[position], present.nodes[position]]
        if speed > 0.0 and present.left[position] / speed < shortest:
            shortest, first = present.left[position] / speed, position
    return shortest, first


@compiled_with_arrays
def advance(
    tables: ResponseTables, jobs: ResponseJobs, present: Present, count: int, now: float, step: float
) -> None:
    """Let all jobs run for a time; notes when a job passes the share that is asked about."""
    for position in range(count):
        speed = tables.speed[present.model[position], present.nodes[position]]
        before, after = present.left[position], present.left[position] - speed * step
        mark = (1.0 - jobs.share) * present.size[position]
        if before > mark >= after:
            jobs.part[present.number[position]] = now + (before - mark) / speed
        present.left[position] = max(after, 0.0)


@compiled_with_arrays
def remove_done(jobs: ResponseJobs, present: Present, count: int, now: float) -> int:
    """End the jobs that are done; returns how many are left."""
    kept = 0
    for position in range(count):
        if present.left[position] <= DONE * present.size[position]:
            number = present.number[position]
            jobs.end[number] = now
            jobs.part[number] = min(jobs.part[number], now)
            continue
        present.number[kept] = present.number[position]
        present.model[kept] = present.model[position]
        present.size[kept] = present.size[position]
        present.left[kept] = present.left[position]
        present.nodes[kept] = present.nodes[position]
        kept += 1
    return kept


@compiled_with_arrays
def add(jobs: ResponseJobs, present: Present, count: int, number: int) -> None:
    """Add a job that arrives."""
    present.number[count] = number
    present.model[count] = jobs.model[number]
    present.size[count] = present.left[count] = jobs.size[number]
    present.nodes[count] = 0


@compiled_with_arrays
def run_chunks(
    tables: ResponseTables, jobs: ResponseJobs, nodes: int, chunk: int
) -> tuple[bool, int, int, float]:
    """JSQ-Chunk: fixed chunks of nodes, each with a queue in the order of arrival. Returns what `run_loop` does."""
    chunks, total = nodes // chunk, len(jobs.arrival)
    free = np.zeros(chunks)  # when the last job of a chunk ends
    waiting = np.zeros(chunks, np.int64)
    oldest = np.zeros(chunks, np.int64)  # the first job of a chunk that has not ended
    following = np.full(total, -1, np.int64)  # the next job of the same chunk
    newest = np.full(chunks, -1, np.int64)
    most, present, area = 0, 0, 0.0
    for number in range(total):
        now = jobs.arrival[number]
        for place in range(chunks):
            while waiting[place] > 0 and jobs.end[oldest[place]] <= now:
                oldest[place] = following[oldest[place]]
                waiting[place] -= 1
                present -= 1
        best = shortest_queue(waiting)
        begin = max(now, free[best])
        time = jobs.size[number] / tables.speed[jobs.model[number], chunk]
        jobs.part[number] = begin + jobs.share * time
        jobs.end[number] = free[best] = begin + time
        if waiting[best] == 0:
            oldest[best] = number
        else:
            following[newest[best]] = number
        newest[best] = number
        waiting[best] += 1
        present += 1
        most = max(most, present)
        area += jobs.end[number] - now
    return True, most, present, area
