"""Whole jobs under a deadline rule, compiled, for many traces.

`ClusterRun` with the same rule gives the same spans, to the nanosecond, under any throughput model.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from mltcp.core.errors import MltcpError
from placement.model.compiled import compiled, compiled_with_arrays
from placement.model.throughput import RingAllReduce, Workload
from placement.policies.schedulers.deadlines.decide import copy, decide
from placement.policies.schedulers.deadlines.rules import (
    JOB,
    NEVER,
    RULES,
    DeadlineRule,
    DeadlineWorld,
    Records,
    new_world,
    record_of,
)
from placement.simulator.rates.outcome import RatesOutcome, SpanTable
from placement.simulator.rates.timed_job import RatesSettings
from placement.traces.deadlines import DeadlineTrace

_SPANS_A_JOB = 4

SPAN = record_of("job", "gpus", "start", "end", "hold")

PROGRESS = record_of("span", "cross", "useful_from", "useful", "end")
"""Of a job: the present span, whether that spans nodes, and when the restart at its beginning is over; the ns in which
the job trained in earlier spans; and its end."""

CLOCK = record_of("restart", "arrived", "ended", "spans")
"""The cost c of a restart in ns, and how many jobs have arrived and ended, and spans begun."""


class DeadlineRun(NamedTuple):
    """The state of a run; jobs are in the order of the trace."""

    world: DeadlineWorld  # a row of its tables is a workload; run times are of whole jobs
    clock: Records
    progress: Records  # per job
    step: np.ndarray  # per workload, kind and N: T_step
    samples: np.ndarray  # per workload: N_epoch * S_dataset
    batch: np.ndarray  # per workload: S_batch
    spans: Records
    placed: np.ndarray  # per span and node, the GPUs


def compiles(scheduler: str, trace: DeadlineTrace, settings: RatesSettings) -> bool:
    """Whether a run can be compiled: the scheduler, its model, and numbers that fit into 64 bits together."""
    model, most = settings.model, settings.nodes * settings.gpus
    if scheduler not in RULES or not isinstance(model, RingAllReduce):
        return False
    # With the longest step of any number of GPUs: more of them may be slower than one.
    work = {
        workload: workload.total_samples * max(model.step_ns(workload, most, kind) for kind in (True, False))
        for workload in {job.workload for job in trace.jobs}
    }
    runs_ns = sum(-(-work[job.workload] // job.workload.batch) for job in trace.jobs)
    restarts_ns = (settings.restart_ns + 1) * len(trace.jobs) * _SPANS_A_JOB
    latest_ns = max(job.deadline_ns for job in trace.jobs) + runs_ns + restarts_ns
    return max(*work.values(), latest_ns) < NEVER


def run_compiled(trace: DeadlineTrace, settings: RatesSettings, scheduler: str) -> RatesOutcome:
    """Run a trace for which `compiles` is true.

    Raises:
        MltcpError: jobs wait that the scheduler never places.
    """
    spans = len(trace.jobs) * (_SPANS_A_JOB if RULES[scheduler].migrates else 1)
    state = _build(trace, settings, RULES[scheduler], spans)
    finished = run(state)
    if finished and state.clock[0]["spans"] > spans:
        state = _build(trace, settings, RULES[scheduler], int(state.clock[0]["spans"]))
        run(state)
    if not finished:
        raise MltcpError(f"{scheduler}: jobs of {trace.name} are never placed")
    return RatesOutcome(trace, scheduler, settings.nodes * settings.gpus, _table(state))


# -- the loop ----------------------------------------------------------------------------------------------------------


@compiled_with_arrays
def run(state: DeadlineRun) -> bool:
    """Run until all jobs have ended: ends, arrivals, and a decision after both; False if the rest is never placed."""
    world, clock = state.world, state.clock[0]
    core, jobs = world.core[0], world.jobs
    while clock.ended < len(jobs):
        now = jobs[clock.arrived].arrival if clock.arrived < len(jobs) else NEVER
        for position in range(core.running):
            now = min(now, state.progress[world.active[position]].end)
        if now == NEVER:
            return False
        end_jobs(state, now)
        while clock.arrived < len(jobs) and jobs[clock.arrived].arrival <= now:
            world.queue[core.waiting] = clock.arrived
            core.waiting += 1
            clock.arrived += 1
        decide(world, now)
        for position in range(core.moved):
            move(state, world.changed[position], now)
        for position in range(core.moved, core.changed):
            number = world.changed[position]
            open_span(state, number, now, 0)
            job = jobs[number]
            state.progress[number].end = now + world.run[job.row, job.cross, job.gpus]
    return True


@compiled_with_arrays
def end_jobs(state: DeadlineRun, now: int) -> None:
    """End the jobs that are due, and free their GPUs."""
    world, kept = state.world, 0
    core = world.core[0]
    for position in range(core.running):
        number = world.active[position]
        if state.progress[number].end > now:
            world.active[kept] = number
            kept += 1
            continue
        close_span(state, number, now)
        for node in range(len(world.free)):
            world.free[node] += world.held[number, node]
        state.clock[0].ended += 1
    core.running = kept


@compiled_with_arrays
def move(state: DeadlineRun, number: int, now: int) -> None:
    """Start a job that ran at its new place, with what is left of its work."""
    progress = state.progress[number]
    useful = progress.useful + max(now - progress.useful_from, 0)
    left = progress.end - max(now, progress.useful_from)
    crossed = progress.cross
    close_span(state, number, now)
    open_span(state, number, now, state.clock[0].restart)
    if progress.cross != crossed:
        left = left_at_other_rate(state, number, useful)
        useful = 0
    progress.useful = useful
    progress.end = progress.useful_from + left


@compiled
def open_span(state: DeadlineRun, number: int, now: int, hold: int) -> None:
    """Begin a span on the GPUs that a job holds; where there is no room, it is only counted."""
    job, progress, clock = state.world.jobs[number], state.progress[number], state.clock[0]
    progress.span, progress.cross, progress.useful_from = clock.spans, job.cross, now + hold
    if clock.spans < len(state.spans):
        span = state.spans[clock.spans]
        span.job, span.gpus, span.start, span.hold = number, job.gpus, now, hold
        copy(state.world.held[number], state.placed[clock.spans])
    clock.spans += 1


@compiled
def close_span(state: DeadlineRun, number: int, now: int) -> None:
    """Record the end of a job's span."""
    span = state.progress[number].span
    if span < len(state.spans):
        state.spans[span].end = now


@compiled_with_arrays
def left_at_other_rate(state: DeadlineRun, number: int, useful: int) -> int:
    """The time on one node of what is left after so many ns across nodes, rounded up.

    With A samples, N GPUs, batches of b and steps of t and t' it is (A t - useful b N) t' / (b N t).
    """
    job = state.world.jobs[number]
    slow, fast = state.step[job.row, 1, job.gpus], state.step[job.row, 0, job.gpus]
    samples = state.batch[job.row] * job.gpus
    return scaled_up(state.samples[job.row] * slow - useful * samples, fast, samples * slow)


@compiled_with_arrays
def scaled_up(value: int, factor: int, divisor: int) -> int:
    """value * factor / divisor, rounded up, where the product may have more than 64 bits; the divisor has up to 62."""
    whole, part = value // divisor, value % divisor
    quotient, rest = 0, 0
    for bit in range(62, -1, -1):
        quotient, rest = 2 * quotient, 2 * rest
        if rest >= divisor:
            quotient, rest = quotient + 1, rest - divisor
        if (factor >> bit) & 1:
            rest += part
            if rest >= divisor:
                quotient, rest = quotient + 1, rest - divisor
    return whole * factor + quotient + (1 if rest > 0 else 0)


# -- from a trace and to spans -----------------------------------------------------------------------------------------


def _build(trace: DeadlineTrace, settings: RatesSettings, rule: DeadlineRule, spans: int) -> DeadlineRun:
    workloads: dict[Workload, int] = {}
    jobs = np.zeros(len(trace.jobs), JOB)
    jobs["arrival"] = [job.arrival_ns for job in trace.jobs]
    jobs["deadline"] = [job.deadline_ns for job in trace.jobs]
    jobs["row"] = [workloads.setdefault(job.workload, len(workloads)) for job in trace.jobs]
    jobs["fewest"], jobs["most"] = 1, settings.nodes * settings.gpus
    clock = np.zeros(1, CLOCK)
    clock["restart"] = settings.restart_ns
    step, run_ns, gains = _tables(tuple(workloads), settings)
    return DeadlineRun(
        world=new_world(rule, jobs, run_ns, gains, [settings.gpus] * settings.nodes),
        clock=clock,
        progress=np.zeros(len(jobs), PROGRESS),
        step=step,
        samples=np.array([workload.total_samples for workload in workloads], np.int64),
        batch=np.array([workload.batch for workload in workloads], np.int64),
        spans=np.zeros(spans, SPAN),
        placed=np.zeros((spans, settings.nodes), np.int64),
    )


def _table(state: DeadlineRun) -> SpanTable:
    count = int(state.clock[0]["spans"])
    spans = state.spans[:count]
    order = np.lexsort((spans["start"], spans["job"]))
    job, gpus, start, end, hold = (spans[name][order] for name in ("job", "gpus", "start", "end", "hold"))
    return SpanTable(job, gpus, start, end, hold, state.placed[:count][order])


@lru_cache(maxsize=64)
def _tables(
    workloads: tuple[Workload, ...], settings: RatesSettings
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """T_step, T_run and whether (11) holds, per workload, kind and number of GPUs."""
    assert isinstance(settings.model, RingAllReduce), "see `compiles`"
    most = settings.nodes * settings.gpus
    step = np.zeros((len(workloads), 2, most + 1), np.int64)
    run_ns = np.zeros_like(step)
    gains = np.zeros(step.shape, np.bool_)
    for row, workload in enumerate(workloads):
        for cross in (0, 1):
            for gpus in range(1, most + 1):
                step_ns = settings.model.step_ns(workload, gpus, cross == 0 or gpus == 1)
                step[row, cross, gpus] = step_ns
                run_ns[row, cross, gpus] = -(-workload.total_samples * step_ns // (workload.batch * gpus))
                gains[row, cross, gpus] = step_ns < gpus * workload.compute_ns
    return step, run_ns, gains
