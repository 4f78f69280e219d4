"""A trace of jobs with demand phases under a scheduler, in the fluid or the network simulation, and its outcome."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster, Gpu, Server
from placement.policies.schedulers.non_preemptive import FixedScheduler
from placement.policies.schedulers.scheduling_policy import SchedulingPolicy
from placement.simulator.cluster_run import ClusterRun
from placement.simulator.fluid_executor import FluidExecutor, FluidSettings
from placement.simulator.network.failures import NO_FAILURES
from placement.simulator.network.network_cluster import NetworkCluster
from placement.simulator.network.topologies import PortSettings, network_of_cluster
from placement.simulator.network_executor import NetworkExecutor, TrafficControl
from placement.simulator.scheduled_job import ScheduledJob
from placement.traces.sets import JobSet, TracedJob

# -- the cluster of the thesis' testbed --------------------------------------------------------------------------------


def two_tier(racks: int = 12, servers: int = 2, gpus: int = 1, oversubscription: float = 2.0) -> Cluster:
    """Build a two-tier cluster; by default 24 servers of one GPU, 13 switches and uplinks as fast as a NIC (2:1).

    Raises:
        UsageError: an argument is out of range.
    """
    if min(racks, servers, gpus) < 1 or not 0 < oversubscription <= 1000:
        raise UsageError(
            f"cluster: expected 1 or more racks, servers and GPUs and 0 < oversubscription <= 1000, "
            f"got {racks} racks, {servers} servers, {gpus} GPUs and {oversubscription}"
        )
    speed = f"{servers / oversubscription:.6f}"
    placed = [
        {"name": f"s{rack * servers + number}", "gpus": gpus, "switch": f"rack{rack}"}
        for rack in range(racks)
        for number in range(servers)
    ]
    below = [{"name": f"rack{rack}", "above": "core", "uplink_speed": speed} for rack in range(racks)]
    return Cluster.from_document({"servers": placed, "switches": [{"name": "core"}, *below]})


# -- outcomes: times of iterations and jobs, marked bits, and decisions ------------------------------------------------


@dataclass(frozen=True)
class IteratedJobOutcome:
    """The outcome of a job.

    Attributes:
        name: of the job.
        model: of its network; empty if that is not known.
        iteration_ns: of each iteration it ended.
        slowdown: of each of these, the same over what it takes alone with as many workers.
        marked_bits: of each of these, what it sent over links while more was asked of them than they have, or the
            bits of packets that were marked; NaN in a simulation without marks.
        ended_ns: of each of these, the simulated time.
        completion_ns: from its arrival to its end.
        moved: how often it was moved.
        delayed: how often it was delayed, by a time shift or because it had drifted.
        computed_ns: the time for which its GPUs computed, of all of them together.
        held_ns: the time for which it held GPUs, of all of them together.
    """

    name: str
    model: str
    iteration_ns: np.ndarray
    slowdown: np.ndarray
    marked_bits: np.ndarray
    ended_ns: np.ndarray
    completion_ns: float
    moved: int
    delayed: int
    computed_ns: float = 0.0
    held_ns: float = 0.0

    def document(self) -> dict[str, Any]:
        """The job as a JSON document."""
        return {
            "name": self.name,
            "model": self.model,
            "iterations": len(self.iteration_ns),
            "iteration_s": _spread(self.iteration_ns / 1e9),
            "slowdown": _spread(self.slowdown),
            "marked_bits": _known_mean(self.marked_bits),
            "completion_s": self.completion_ns / 1e9,
            "moved": self.moved,
            "delayed": self.delayed,
        }


@dataclass(frozen=True)
class TraceOutcome:
    """The outcome of a trace.

    Attributes:
        policy: the name of the policy.
        jobs: in the order of the trace.
        decision_ns: of each decision, how long it took.
        scores: of each decision of Cassini under which links are shared, the score of what it chose.
        outages: of links, and the jobs that they cut off, as JSON (`OutageLog.document`), of the network simulation.
        losses: the time that jobs lost to others, as JSON (`NetworkExecutor.losses`), of the network simulation.
    """

    policy: str
    jobs: tuple[IteratedJobOutcome, ...]
    decision_ns: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()
    outages: Mapping[str, Any] = field(default_factory=dict)
    losses: Mapping[str, Any] = field(default_factory=dict)

    @property
    def mean_s(self) -> float:
        """The mean time of all iterations of all jobs."""
        return float(joined([job.iteration_ns for job in self.jobs]).mean()) / 1e9

    @property
    def p99_s(self) -> float:
        """The 99th percentile of the times of all iterations of all jobs."""
        return _percentile(joined([job.iteration_ns for job in self.jobs]), 99) / 1e9

    @property
    def utilization(self) -> float:
        """The share of the time of all GPUs that jobs held in which these computed."""
        return sum(job.computed_ns for job in self.jobs) / sum(job.held_ns for job in self.jobs)

    def document(self) -> dict[str, Any]:
        """The outcome as a JSON document; means and percentiles are over all iterations of all jobs."""
        return {
            "policy": self.policy,
            "iteration_s": _spread(joined([job.iteration_ns for job in self.jobs]) / 1e9),
            "slowdown": _spread(joined([job.slowdown for job in self.jobs])),
            "marked_bits": _known_mean(joined([job.marked_bits for job in self.jobs])),
            "completion_s": _spread(np.array([job.completion_ns for job in self.jobs]) / 1e9),
            "moved": sum(job.moved for job in self.jobs),
            "delayed": sum(job.delayed for job in self.jobs),
            "decisions": len(self.decision_ns),
            "decision_ms": {
                "mean": float(np.mean(self.decision_ns)) / 1e6 if self.decision_ns else 0.0,
                "max": max(self.decision_ns, default=0) / 1e6,
            },
            "score": float(np.mean(self.scores)) if self.scores else None,
            "jobs": [job.document() for job in self.jobs],
        }


def joined(values: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate arrays; without any, an empty one."""
    return np.concatenate(values) if values else np.zeros(0)


def _spread(values: np.ndarray) -> dict[str, float]:
    return {"mean": float(values.mean()), "p50": _percentile(values, 50), "p99": _percentile(values, 99)}


def _known_mean(values: np.ndarray) -> float | None:
    mean = float(values.mean())
    return None if math.isnan(mean) else mean


def _percentile(values: np.ndarray, percent: float) -> float:
    return float(np.percentile(values, percent))


# -- a run -------------------------------------------------------------------------------------------------------------

IDEAL = "ideal"


def run_trace(
    jobs: JobSet,
    settings: FluidSettings,
    policy: SchedulingPolicy | None,
    seed: int = 0,
    control: TrafficControl | None = None,
) -> TraceOutcome:
    """Run a trace to its end under a policy. The same seed gives jobs the same noise under every policy.

    Args:
        jobs: the trace.
        settings: the cluster and the parameters of the simulation.
        policy: None for Ideal (4.5.1): every job starts when it arrives, on a server of its own.
        seed: of the noise, and of the moments at which jobs begin.
        control: of the network simulation; None for the fluid simulation.

    Raises:
        UsageError: a job needs more GPUs than the cluster has.
        MltcpError: jobs wait that the scheduler never places.
    """
    if policy is None:
        # On one server nothing of a division would take time: jobs send what they send alone.
        jobs = replace(jobs, jobs=tuple(replace(job, parallelism="") for job in jobs.jobs))
        cluster, chosen = ideal(jobs.jobs)
    else:
        cluster, chosen = settings.cluster, policy
        check_fits(jobs, cluster)
    if control is not None and policy is None:
        control = replace(control, failures=NO_FAILURES)  # on servers of their own jobs use no link
    executor = (
        FluidExecutor(jobs.jobs, cluster, settings, seed)
        if control is None
        else NetworkExecutor(jobs.jobs, in_network(cluster, settings.nic_bps), settings, control, seed)
    )
    run = ClusterRun(jobs.jobs, cluster, settings.nic_bps, chosen, executor)
    run.run()
    return TraceOutcome(
        chosen.name,
        tuple(_outcome(job, executor) for job in run.jobs),
        () if policy is None else tuple(run.decision_ns),
        tuple(run.scores),
        executor.outages.document() if isinstance(executor, NetworkExecutor) else {},
        executor.losses if isinstance(executor, NetworkExecutor) else {},
    )


def in_network(cluster: Cluster, nic_bps: int) -> NetworkCluster:
    """The cluster itself if it is a network, or else the network of its tree, whose links have no delay."""
    if isinstance(cluster, NetworkCluster):
        return cluster
    return NetworkCluster.of(network_of_cluster(cluster, PortSettings(nic_bps, delay_ns=0)))


def ideal(jobs: Sequence[TracedJob]) -> tuple[Cluster, SchedulingPolicy]:
    """A cluster with a server for every job, so that none sends over a link, and the policy that places them there."""
    cluster = Cluster(tuple(Server(f"s{number}", (Gpu(),) * job.workers) for number, job in enumerate(jobs)))
    assignment: dict[str, tuple[int, ...]] = {}
    first = 0
    for job in jobs:
        assignment[job.name] = tuple(range(first, first + job.workers))
        first += job.workers
    return cluster, SchedulingPolicy(FixedScheduler(IDEAL, assignment))


def check_fits(jobs: JobSet, cluster: Cluster) -> None:
    """Raise UsageError if a job needs more GPUs than there are."""
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
        joined(simulated.ended_ns),
        job.completion_ns,
        job.restarts,
        simulated.delays,
        simulated.computed_ns,
        simulated.held_ns,
    )
