"""A trace of jobs with demand phases under a scheduler, in the fluid simulation."""

from __future__ import annotations

from collections.abc import Sequence

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster, Gpu, Server
from placement.policies.schedulers.non_preemptive import FixedScheduler
from placement.policies.schedulers.scheduling_policy import SchedulingPolicy
from placement.simulator.cluster_run import ClusterRun
from placement.simulator.fluid_executor import FluidExecutor, FluidSettings
from placement.simulator.scheduled_job import ScheduledJob
from placement.simulator.trace_outcome import IteratedJobOutcome, TraceOutcome, joined
from placement.traces.sets import JobSet, TracedJob

IDEAL = "ideal"


def run_trace(
    jobs: JobSet, settings: FluidSettings, policy: SchedulingPolicy | None, seed: int = 0
) -> TraceOutcome:
    """Run a trace to its end under a policy. The same seed gives jobs the same noise under every policy.

    Args:
        jobs: the trace.
        settings: the cluster and the parameters of the simulation.
        policy: None for Ideal (4.5.1): every job starts when it arrives, on a server of its own.
        seed: of the noise, and of the moments at which jobs begin.

    Raises:
        UsageError: a job needs more GPUs than the cluster has.
        MltcpError: jobs wait that the scheduler never places.
    """
    if policy is None:
        cluster, chosen = ideal(jobs.jobs)
    else:
        cluster, chosen = settings.cluster, policy
        _check(jobs, cluster)
    executor = FluidExecutor(jobs.jobs, cluster, settings, seed)
    run = ClusterRun(jobs.jobs, cluster, settings.nic_bps, chosen, executor)
    run.run()
    return TraceOutcome(
        chosen.name,
        tuple(_outcome(job, executor) for job in run.jobs),
        () if policy is None else tuple(run.decision_ns),
        tuple(run.scores),
    )


def ideal(jobs: Sequence[TracedJob]) -> tuple[Cluster, SchedulingPolicy]:
    """A cluster with a server for every job, so that none sends over a link, and the policy that places them there."""
    cluster = Cluster(tuple(Server(f"s{number}", (Gpu(),) * job.workers) for number, job in enumerate(jobs)))
    assignment: dict[str, tuple[int, ...]] = {}
    first = 0
    for job in jobs:
        assignment[job.name] = tuple(range(first, first + job.workers))
        first += job.workers
    return cluster, SchedulingPolicy(FixedScheduler(IDEAL, assignment))


def _check(jobs: JobSet, cluster: Cluster) -> None:
    for job in jobs.jobs:
        if job.min_workers > len(cluster.gpus):
            raise UsageError(
                f"{jobs.name}: {job.name}: min_workers: expected at most the {len(cluster.gpus)} GPUs of the cluster, "
                f"got {job.min_workers}"
            )


def _outcome(job: ScheduledJob, executor: FluidExecutor) -> IteratedJobOutcome:
    simulated = executor.jobs[job.name]
    return IteratedJobOutcome(
        job.name,
        job.job.model,
        joined(simulated.iteration_ns),
        joined(simulated.slowdown),
        joined(simulated.marked_bits),
        job.completion_ns,
        job.restarts,
        simulated.delays,
    )
