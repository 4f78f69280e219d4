"""``mltcp-bench compare --trace``: the jobs of a trace arrive on a two-tier lab, are placed, run and end.

`ClusterRun` asks the same schedulers as in the simulation, in the time of the trace; `LiveExecutor` runs the jobs as
processes on the servers that the scheduler chooses. Since the lab's iterations are longer and fewer, its clock runs
faster or slower than that of the trace (`TraceScale`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bench.compare.approaches.approach import Approach
from bench.compare.launch import loaded_controls
from bench.compare.results.journal import Keep
from bench.compare.results.runs import ApproachRun, Measured
from bench.compare.trace.live_executor import LiveExecutor, live_executor
from bench.compare.trace.live_launch import LiveSettings
from bench.compare.trace.scale import TraceScale, scale_of
from bench.compare.trace.schedulers import UntimedScheduler, scheduler
from bench.compare.turns import Progress, Turns
from bench.lab.lab import Lab
from bench.lab.network import namespaces
from bench.lab.topology import MAX_JOBS
from bench.lab.two_tier import TwoTier, two_tier, two_tier_cluster
from mltcp.core.errors import UsageError
from placement.policies.schedulers.scheduling_policy import SchedulingPolicy
from placement.simulator.cluster_run import ClusterRun
from placement.traces.sets import JobSet


@dataclass(frozen=True)
class TracePlan:
    """The parameters of a comparison on a trace.

    Attributes:
        approaches: in the order in which they run.
        shape: of the lab.
        iterations: of the job that has most; the others have as many fewer as in the trace.
        repeat: how often each approach runs.
        placement: the scheduler of approaches that name none.
        seed: of the schedulers' draws.
        ecn_by: the mechanism that sets ECN marks at the bottlenecks.
        retry_busy: how often a run is repeated that other programs disturbed.
    """

    approaches: tuple[Approach, ...]
    shape: TwoTier
    iterations: int
    repeat: int = 1
    placement: str = "first-fit"
    seed: int = 0
    ecn_by: str = "virtual_queue"
    retry_busy: int = 0


def compare_trace(trace: JobSet, plan: TracePlan, step: Progress, keep: Keep) -> Measured:
    """Run the trace under every approach, in every repeat.

    Args:
        trace: the jobs.
        plan: the parameters.
        step: called after every iteration of a job.
        keep: called with all runs so far, after each run.

    Raises:
        UsageError: a job is larger than the lab, or there are more jobs than it can tell apart.
        NotAvailableError: not root, or the kernel lacks something.
        RankError: a rank failed; the lab is removed by the time this is raised.
    """
    _check(trace, plan)
    namespaces.require_privileges()
    scale = scale_of(trace, plan.iterations)
    measured = Measured(trace.name, _setting(plan, scale), ())
    with loaded_controls([approach.policy for approach in plan.approaches]) as controls:
        with Lab(two_tier(plan.shape), ecn_by=plan.ecn_by) as lab:
            settings = LiveSettings(lab, plan.shape, controls, trace.capacity_bps, scale)
            turns = Turns(plan.approaches, plan.repeat, plan.retry_busy)
            turn = partial(_run_approach, trace, plan, settings)
            return turns.run(measured, turn, step, lambda so_far: keep([so_far]))


def total_iterations(trace: JobSet, plan: TracePlan) -> int:
    """The number of iterations of a comparison; approximate, since changes of the number of workers change it."""
    scale = scale_of(trace, plan.iterations)
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
    name = approach.placement or plan.placement
    policy = scheduler(name, approach.cassini, plan.seed * 1000 + repeat)
    with live_executor(settings, approach, lambda: step(approach.name, repeat)) as executor:
        settings.lab.start_measuring()
        runs = _isolated_runs if approach.isolated else _shared_runs
        done = runs(trace, plan.shape, policy, executor)
        use = settings.lab.measurement()
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
        )


def _shared_runs(
    trace: JobSet, shape: TwoTier, policy: SchedulingPolicy, executor: LiveExecutor
) -> Sequence[ClusterRun]:
    """All jobs as they arrive, in one run."""
    run = ClusterRun(trace.jobs, two_tier_cluster(shape), trace.capacity_bps, policy, executor)
    run.run()
    return [run]


def _isolated_runs(
    trace: JobSet, shape: TwoTier, policy: SchedulingPolicy, executor: LiveExecutor
) -> Sequence[ClusterRun]:
    """One job after the other in an empty lab, each in a run of its own; it stays where it is placed first."""
    runs: list[ClusterRun] = []
    for job in trace.jobs:
        alone = replace(trace, jobs=(replace(job, arrival_ns=executor.now_ns),))
        settled = replace(policy, scheduler=UntimedScheduler(policy.scheduler))
        runs += _shared_runs(alone, shape, settled, executor)
    return runs


def first_jobs(trace: JobSet, count: int) -> JobSet:
    """The trace with only its first jobs."""
    return trace if count >= len(trace.jobs) else replace(trace, jobs=trace.jobs[:count])


def _check(trace: JobSet, plan: TracePlan) -> None:
    """Refuse what the lab cannot run; see `compare_trace`."""
    slots = plan.shape.racks * plan.shape.servers * plan.shape.slots
    for job in trace.jobs:
        if job.workers > slots:
            raise UsageError(f"{trace.name}: {job.name}: expected at most {slots} workers, got {job.workers}")
    for approach in plan.approaches:
        pacing = approach.policy.pacing
        if pacing is not None and not pacing.by_socket:
            # A daemon leaves alone any qdisc that it has not installed, and the lab has installed its own.
            expected = f"{approach.policy.name.partition('@')[0]}@by=socket"
            raise UsageError(
                f"--policies: expected {expected}, since no daemon can pace the servers of this lab, "
                f"got {approach.policy.name}"
            )
    if (
        slots > MAX_JOBS
        and len(trace.jobs) > MAX_JOBS
        and min(job.workers for job in trace.jobs) * MAX_JOBS < slots
    ):
        raise UsageError(
            f"{trace.name}: jobs: expected at most {MAX_JOBS}, since more could run at a time on {slots} slots, "
            f"got {len(trace.jobs)}"
        )


def _setting(plan: TracePlan, scale: TraceScale) -> Mapping[str, str | int | float | bool | None]:
    shape = plan.shape
    return {
        "topology": "two-tier",
        "racks": shape.racks,
        "servers_per_rack": shape.servers,
        "slots_per_server": shape.slots,
        "nic_bps": shape.nic.rate_bps,
        "uplink_bps": shape.uplink.rate_bps,
        "queue_bytes": shape.nic.queue_bytes,
        "ecn_threshold_bytes": shape.nic.ecn_threshold_bytes,
        "ecn_by": plan.ecn_by,
        "mtu": shape.nic.mtu,
        "iterations": plan.iterations,
        "repeat": plan.repeat,
        "placement": plan.placement,
        "seed": plan.seed,
        "time_scale": round(scale.time, 6),
        "iterations_scale": round(scale.iterations, 6),
    }
