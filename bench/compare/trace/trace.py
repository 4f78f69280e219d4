"""A trace of jobs on servers under several approaches, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bench.compare.approach import SCHEDULER_NAMES, Approach
from bench.compare.provider import Progress, Turns
from bench.compare.results.journal import Keep
from bench.compare.results.runs import ApproachRun, Measured, Scalar
from bench.compare.trace.executor import LiveExecutor, LiveSettings, TraceScale, live_executor, scale_of
from bench.compare.trace.hosts import TraceSource
from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster
from placement.policies.catalogue import placement_policy
from placement.policies.schedulers.greedy import GreedyScheduler
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView, Scheduler, Untimed
from placement.policies.schedulers.scheduling_policy import (
    AUGMENTED,
    SCHEDULERS,
    SchedulingPolicy,
    scheduling_policy,
)
from placement.simulator.cluster_run import ClusterRun
from placement.traces.sets import JobSet


@dataclass(frozen=True)
class UntimedScheduler(Untimed):
    """A scheduler without its leases and timers: it only decides when jobs arrive or end.

    Attributes:
        scheduler: makes the decisions.
    """

    scheduler: Scheduler

    @property
    def name(self) -> str:
        """The name of the scheduler."""
        return self.scheduler.name

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`."""
        return self.scheduler.candidates(cluster, now_ns, jobs, most)


def scheduler(name: str, cassini: bool, seed: int) -> SchedulingPolicy:
    """The scheduler of this name, alone or with Cassini.

    Raises:
        UsageError: there is no such scheduler.
    """
    part = SCHEDULER_NAMES.parse(name)
    if part.base in SCHEDULERS:
        return scheduling_policy(name + (AUGMENTED if cassini else ""), seed=seed)
    return SchedulingPolicy(GreedyScheduler(placement_policy(part.base, part.number or 1)), cassini)


@dataclass(frozen=True)
class TracePlan:
    """The parameters of a comparison on a trace.

    Attributes:
        approaches: in the order in which they run.
        iterations: of the job that has most; the others have as many fewer as in the trace.
        repeat: how often each approach runs.
        placement: the scheduler of approaches that name none.
        seed: of the schedulers' draws.
        retry_busy: how often a run is repeated that other programs disturbed.
        dilation: how many times as long times are, and with them bytes, as usual (`scale_of`).
    """

    approaches: tuple[Approach, ...]
    iterations: int
    repeat: int = 1
    placement: str = "first-fit"
    seed: int = 0
    retry_busy: int = 0
    dilation: float = 1.0

    def scale_of(self, trace: JobSet) -> TraceScale:
        """The factors from the trace to the servers."""
        return scale_of(trace, self.iterations, self.dilation)


def compare_trace(
    trace: JobSet, plan: TracePlan, source: TraceSource, step: Progress, keep: Keep
) -> Measured:
    """Run the trace under every approach, in every repeat.

    Args:
        trace: the jobs.
        plan: the parameters.
        source: of the servers.
        step: called after every iteration of a job.
        keep: called with all runs so far, after each run.

    Raises:
        UsageError: a job is larger than the cluster, or the source cannot run the trace.
        NotAvailableError: for a lab: not root, or the kernel lacks something.
        RankError: a rank failed; the lab is removed, and every host clean, by the time this is raised.
    """
    _check(trace, plan, source)
    scale = plan.scale_of(trace)
    with source.opened(plan.approaches) as hosts:
        settings = LiveSettings(hosts, trace.capacity_bps, scale)
        measured = Measured(trace.name, _setting(plan, source, scale), (), hosts=hosts.facts)
        turns = Turns(plan.approaches, hosts.load_meter, plan.repeat, plan.retry_busy)
        turn = partial(_run_approach, trace, plan, settings)
        return turns.run(measured, turn, step, lambda so_far: keep([so_far]))


def total_iterations(trace: JobSet, plan: TracePlan) -> int:
    """The number of iterations of a comparison; approximate, since changes of the number of workers change it."""
    scale = plan.scale_of(trace)
    return plan.repeat * sum(
        scale.iterations_of(job, approach.isolated) for approach in plan.approaches for job in trace.jobs
    )


def _run_approach(
    trace: JobSet,
    plan: TracePlan,
    settings: LiveSettings,
    approach: Approach,
    repeat: int,
    step: Progress,
) -> ApproachRun:
    """Run the trace under one approach, once."""
    name, hosts = approach.placement or plan.placement, settings.hosts
    policy = scheduler(name, approach.cassini, plan.seed * 1000 + repeat)
    hosts.begin()
    with (
        hosts.failures_blamed(),
        live_executor(settings, approach, lambda: step(approach.name, repeat)) as executor,
    ):
        runs = _isolated_runs if approach.isolated else _shared_runs
        done = runs(trace, hosts.cluster, policy, executor)
        use = hosts.counted()
        # An isolated job is placed by the first decision; the one after its end concerns no job.
        decisions_ns = [
            took_ns for run in done for took_ns in run.decision_ns[: 1 if approach.isolated else None]
        ]
        return ApproachRun(
            approach.name,
            repeat,
            tuple(executor.job_run(each.job) for run in done for each in run.jobs),
            (*(took_ns / 1e9 for took_ns in decisions_ns), *executor.decisions_s),
            use.drops,
            (),
            executor.shifts,
            hosts=use.hosts,
        )


def _shared_runs(
    trace: JobSet, cluster: Cluster, policy: SchedulingPolicy, executor: LiveExecutor
) -> Sequence[ClusterRun]:
    """All jobs as they arrive, in one run."""
    run = ClusterRun(trace.jobs, cluster, trace.capacity_bps, policy, executor)
    run.run()
    return [run]


def _isolated_runs(
    trace: JobSet, cluster: Cluster, policy: SchedulingPolicy, executor: LiveExecutor
) -> Sequence[ClusterRun]:
    """One job after the other on empty servers, each in a run of its own; it stays where it is placed first."""
    runs: list[ClusterRun] = []
    for job in trace.jobs:
        alone = replace(trace, jobs=(replace(job, arrival_ns=executor.now_ns),))
        settled = replace(policy, scheduler=UntimedScheduler(policy.scheduler))
        runs += _shared_runs(alone, cluster, settled, executor)
    return runs


def first_jobs(trace: JobSet, count: int) -> JobSet:
    """The trace with only its first jobs."""
    return trace if count >= len(trace.jobs) else replace(trace, jobs=trace.jobs[:count])


def _check(trace: JobSet, plan: TracePlan, source: TraceSource) -> None:
    """Refuse what the servers cannot run; see `compare_trace`."""
    slots = len(source.cluster.gpus)
    for job in trace.jobs:
        if job.workers > slots:
            raise UsageError(f"{trace.name}: {job.name}: expected at most {slots} workers, got {job.workers}")
    source.check(trace, plan.approaches)


def _setting(plan: TracePlan, source: TraceSource, scale: TraceScale) -> Mapping[str, Scalar]:
    return {
        **source.setting,
        "iterations": plan.iterations,
        "repeat": plan.repeat,
        "placement": plan.placement,
        "seed": plan.seed,
        "time_scale": round(scale.time, 6),
        "iterations_scale": round(scale.iterations, 6),
    }
