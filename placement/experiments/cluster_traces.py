"""Jobs of a real cluster's trace in a network: what each trains, by `job_mix`, and its demand alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

from mltcp.core.demand import Demand
from mltcp.core.errors import UsageError
from mltcp.core.quantities import NS_PER_HOUR
from placement.simulator.network.alone_demand import alone_demand
from placement.simulator.network.network_cluster import NetworkCluster
from placement.simulator.network.parallelism import traffic_of
from placement.traces.job_mix import MIXES, JobMix
from placement.traces.recorded_trace import WHOLE, RecordedJob, RecordedTrace, TraceCut
from placement.traces.sets import JobSet, TracedJob
from placement.traces.trace import JobSieve

TOO_LARGE = "more GPUs than the cluster"


@dataclass(frozen=True)
class TraceUse:
    """How a cluster's trace is used.

    Attributes:
        cut: the part of it.
        mix: one of `job_mix.MIXES`; None: ``random``.
    """

    cut: TraceCut = WHOLE
    mix: str | None = None


def jobs_of_cluster(trace: RecordedTrace, use: TraceUse, cluster: NetworkCluster, seed: int) -> JobSet:
    """The jobs of a trace that fit the cluster, each with as many iterations as fit into its duration, alone.

    Raises:
        UsageError: no job is left, or an unknown mix.
    """
    cut = use.cut.of(trace)
    host_gpus = min(len(server.gpus) for server in cluster.servers)
    mix = JobMix(use.mix or MIXES[1], seed, host_gpus)
    demand_of = _demands(host_gpus, _host_bps(cluster))
    sieve = JobSieve(cut.left_out)
    fitting = [job for job in cut.jobs if job.gpus <= len(cluster.gpus)]
    sieve.leave_out(TOO_LARGE, len(cut.jobs) - len(fitting))
    if not fitting:
        raise UsageError(f"{cut.name}: gpus: expected a job of at most {len(cluster.gpus)} GPUs, got none")
    jobs = tuple(_traced(job, mix.description(job), demand_of) for job in fitting)
    source = f"{trace.name}, mix {mix.name}, seed {seed}"
    return JobSet(trace.name, source, cluster.nic_bps / 1e9, jobs, sieve.result())


def _traced(job: RecordedJob, description: str, demand_of: Callable[[str], Demand]) -> TracedJob:
    demand = demand_of(description)
    iterations = max(1, round(job.duration_ns / demand.iteration_ns))
    model = description.partition(":")[0]
    return TracedJob(
        job.name, job.gpus, iterations, job.arrival_ns, demand, model=model, parallelism=description
    )


def _host_bps(cluster: NetworkCluster) -> float:
    host = cluster.network.hosts[0]
    return sum(link.rate_bps for link in cluster.network.links if link.source == host)


def _demands(host_gpus: int, host_bps: float) -> Callable[[str], Demand]:
    """The demand of a description whose workers fill host after host."""

    @cache
    def demand_of(description: str) -> Demand:
        traffic = traffic_of(description)
        return alone_demand(traffic, [worker // host_gpus for worker in range(traffic.workers)], host_bps)

    return demand_of


def summary(jobs: JobSet, gpus: int) -> dict[str, Any]:
    """What a set of jobs asks of a cluster with so many GPUs, as JSON.

    ``load`` is what jobs, each taking its time alone, keep busy of the GPUs while jobs arrive; None if all arrive at
    once. ``by_model`` counts jobs.
    """
    busy_ns = sum(job.workers * job.iterations * job.demand.iteration_ns for job in jobs.jobs)
    span_ns = jobs.jobs[-1].arrival_ns - jobs.jobs[0].arrival_ns
    wanted = [job.workers for job in jobs.jobs]
    return {
        "jobs": len(jobs.jobs),
        "gpus": {"median": median(wanted), "max": max(wanted)},
        "span_hours": span_ns / NS_PER_HOUR,
        "gpu_hours": busy_ns / NS_PER_HOUR,
        "iterations": sum(job.iterations for job in jobs.jobs),
        "load": busy_ns / (gpus * span_ns) if span_ns else None,
        "by_model": dict(Counter(job.model for job in jobs.jobs).most_common()),
        "left_out": jobs.left_out.document(),
    }


def summary_line(jobs: JobSet, gpus: int) -> str:
    """The same in a line."""
    found = summary(jobs, gpus)
    load = "" if found["load"] is None else f", load {found['load']:.2f}"
    models = ", ".join(f"{count} {model or 'of no model'}" for model, count in found["by_model"].items())
    return (
        f"{found['jobs']} jobs of up to {found['gpus']['max']} GPUs in {found['span_hours']:.2f} h, "
        f"{found['gpu_hours']:.1f} GPU-hours{load}: {models}"
    )
