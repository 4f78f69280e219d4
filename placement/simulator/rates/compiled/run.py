"""Run a trace of whole jobs under one of the compiled schedulers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from mltcp.core.errors import MltcpError
from placement.model.throughput import RingAllReduce, Workload
from placement.simulator.rates.compiled.loop import run
from placement.simulator.rates.compiled.world import (
    BY_ARRIVAL,
    BY_DEADLINE,
    BY_SLACK,
    CORE,
    JOB,
    LATE_LAST,
    NEVER,
    SHARE_BATCH,
    SHARE_CLUSTER,
    SHARE_NODE,
    SHARE_SCHEME,
    SPAN,
    World,
)
from placement.simulator.rates.outcome import RatesOutcome, SpanTable
from placement.simulator.rates.timed_job import RatesSettings
from placement.traces.deadlines import DeadlineTrace

_SPANS_A_JOB = 4


@dataclass(frozen=True)
class CompiledRule:
    """A scheduler as the loop knows it.

    Attributes:
        share: what a job gets.
        order: of the waiting jobs.
        migrates: whether running jobs are moved.
    """

    share: int
    order: int
    migrates: bool = False


RULES: Mapping[str, CompiledRule] = MappingProxyType(
    {
        "drs": CompiledRule(SHARE_SCHEME, BY_SLACK, migrates=True),
        "norm": CompiledRule(SHARE_SCHEME, BY_SLACK),
        "edf": CompiledRule(SHARE_CLUSTER, BY_DEADLINE),
        "fifo": CompiledRule(SHARE_CLUSTER, BY_ARRIVAL),
        "themis-batch": CompiledRule(SHARE_BATCH, BY_ARRIVAL),
        "edf-scheme": CompiledRule(SHARE_SCHEME, BY_DEADLINE),
        "edf-late-last": CompiledRule(SHARE_CLUSTER, LATE_LAST),
        "edf-late-last-node": CompiledRule(SHARE_NODE, LATE_LAST),
        "edf-late-last-scheme": CompiledRule(SHARE_SCHEME, LATE_LAST),
        "llf": CompiledRule(SHARE_CLUSTER, BY_SLACK),
    }
)
"""The schedulers that are compiled, by name."""


def compiles(scheduler: str, trace: DeadlineTrace, settings: RatesSettings) -> bool:
    """Whether a run can be compiled: the scheduler, its model, and numbers that fit into 64 bits together."""
    if scheduler not in RULES or not isinstance(settings.model, RingAllReduce):
        return False
    restarts_ns = (settings.restart_ns + 1) * len(trace.jobs) * _SPANS_A_JOB
    slowest_ns = {job.workload: _slowest_ns(job.workload, settings) for job in trace.jobs}
    samples = max(workload.total_samples * step_ns for workload, step_ns in slowest_ns.items())
    runs_ns = sum(_longest_run_ns(job.workload, slowest_ns[job.workload]) for job in trace.jobs)
    latest_ns = max(job.deadline_ns for job in trace.jobs) + runs_ns + restarts_ns
    slack_ns = max(job.deadline_ns - job.arrival_ns for job in trace.jobs)
    return max(samples, latest_ns, slack_ns * settings.nodes * settings.gpus) < NEVER


def run_compiled(trace: DeadlineTrace, settings: RatesSettings, scheduler: str) -> RatesOutcome:
    """Run a trace for which `compiles` is true.

    Raises:
        MltcpError: jobs wait that the scheduler never places.
    """
    spans = len(trace.jobs) * (_SPANS_A_JOB if RULES[scheduler].migrates else 1)
    world = _build(trace, settings, RULES[scheduler], spans)
    finished = run(world)
    if finished and world.core[0]["spans"] > spans:
        world = _build(trace, settings, RULES[scheduler], int(world.core[0]["spans"]))
        run(world)
    if not finished:
        raise MltcpError(f"{scheduler}: jobs of {trace.name} are never placed")
    return RatesOutcome(trace, scheduler, settings.nodes * settings.gpus, _table(world))


def _table(world: World) -> SpanTable:
    count = int(world.core[0]["spans"])
    spans = world.spans[:count]
    order = np.lexsort((spans["start"], spans["job"]))
    job, gpus, start, end, hold = (spans[name][order] for name in ("job", "gpus", "start", "end", "hold"))
    return SpanTable(job, gpus, start, end, hold, world.placed[:count][order])


def _build(trace: DeadlineTrace, settings: RatesSettings, rule: CompiledRule, spans: int) -> World:
    workloads: dict[Workload, int] = {}
    jobs = np.zeros(len(trace.jobs), JOB)
    jobs["arrival"] = [job.arrival_ns for job in trace.jobs]
    jobs["deadline"] = [job.deadline_ns for job in trace.jobs]
    jobs["workload"] = [workloads.setdefault(job.workload, len(workloads)) for job in trace.jobs]
    core = np.zeros(1, CORE)
    core["share"], core["order"], core["migrates"] = rule.share, rule.order, rule.migrates
    core["restart"] = settings.restart_ns
    per_job = np.zeros((4, len(jobs)), np.int64)
    size = np.full(settings.nodes, settings.gpus, np.int64)
    step, run_ns, gains = _tables(tuple(workloads), settings)
    return World(
        core=core,
        jobs=jobs,
        run_ns=run_ns,
        gains=gains,
        step=step,
        samples=np.array([workload.total_samples for workload in workloads], np.int64),
        batch=np.array([workload.batch for workload in workloads], np.int64),
        size=size,
        free=size.copy(),
        held=np.zeros((len(jobs), settings.nodes), np.int64),
        queue=per_job[0],
        active=per_job[1],
        spans=np.zeros(spans, SPAN),
        placed=np.zeros((spans, settings.nodes), np.int64),
        left=size.copy(),
        planned=np.zeros((len(jobs), settings.nodes), np.int64),
        marks=per_job[2],
        shares=per_job[3],
    )


@lru_cache(maxsize=64)
def _tables(
    workloads: tuple[Workload, ...], settings: RatesSettings
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """T_step, T_run and whether (11) holds, per workload, kind and number of GPUs."""
    most = settings.nodes * settings.gpus
    step = np.zeros((len(workloads), 2, most + 1), np.int64)
    run_ns = np.zeros_like(step)
    gains = np.zeros(step.shape, np.bool_)
    for row, workload in enumerate(workloads):
        for cross in (0, 1):
            for gpus in range(1, most + 1):
                step_ns = _step_ns(workload, settings, gpus, cross == 0 or gpus == 1)
                step[row, cross, gpus] = step_ns
                run_ns[row, cross, gpus] = -(-workload.total_samples * step_ns // (workload.batch * gpus))
                gains[row, cross, gpus] = step_ns < gpus * workload.compute_ns
    return step, run_ns, gains


def _step_ns(workload: Workload, settings: RatesSettings, gpus: int, one_node: bool) -> int:
    assert isinstance(settings.model, RingAllReduce), "see `compiles`"
    return settings.model.step_ns(workload, gpus, one_node)


def _slowest_ns(workload: Workload, settings: RatesSettings) -> int:
    """The longest T_step."""
    most = settings.nodes * settings.gpus
    return max(_step_ns(workload, settings, most, one_node) for one_node in (True, False))


def _longest_run_ns(workload: Workload, slowest_ns: int) -> int:
    """At least T_run on any number of GPUs, with the longest T_step: more GPUs may be slower than one."""
    return -(-workload.total_samples * slowest_ns // workload.batch)
