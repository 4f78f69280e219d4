"""Run a trace of whole jobs under a scheduler, at the rates of a throughput model."""

from __future__ import annotations

from dataclasses import dataclass

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster, Gpu, Server, Switch
from placement.model.throughput.throughput import ThroughputModel
from placement.policies.schedulers.scheduler import Scheduler
from placement.policies.schedulers.scheduling_policy import SchedulingPolicy
from placement.simulator.cluster_run import ClusterRun
from placement.simulator.rates.outcome import JobRecord, RatesOutcome
from placement.simulator.rates.rate_job import ModelTimes, RateJob
from placement.simulator.rates.rates_executor import RatesExecutor
from placement.traces.deadlines.trace import DeadlineTrace

NODES, GPUS = 4, 4
"""The cluster of the DRS paper: 4 nodes of 4 GPUs."""

_NIC_BPS = 48_000_000_000
_MOST_GPUS = 100_000


@dataclass(frozen=True)
class RatesSettings:
    """The cluster and its throughput model.

    Attributes:
        model: gives the speeds of jobs.
        nodes: of the cluster.
        gpus: of a node.
        restart_ns: the cost c of a restart.

    Raises:
        UsageError: a value is out of range.
    """

    model: ThroughputModel
    nodes: int = NODES
    gpus: int = GPUS
    restart_ns: int = 0

    def __post_init__(self) -> None:
        if min(self.nodes, self.gpus) < 1 or self.nodes * self.gpus > _MOST_GPUS:
            raise UsageError(
                f"nodes and gpus: expected 1 or more, and up to {_MOST_GPUS} GPUs, got {self.nodes} and {self.gpus}"
            )
        if self.restart_ns < 0:
            raise UsageError(f"restart_ns: expected 0 or more, got {self.restart_ns}")

    def cluster(self) -> Cluster:
        """The cluster, with a switch for each node: what schedulers call a rack is a node here."""
        servers = tuple(Server(f"s{node}", (Gpu(),) * self.gpus, f"node{node}") for node in range(self.nodes))
        return Cluster(
            servers, (Switch("core"), *(Switch(f"node{node}", "core") for node in range(self.nodes)))
        )


def run_rates(trace: DeadlineTrace, settings: RatesSettings, scheduler: Scheduler) -> RatesOutcome:
    """Run a trace to its end.

    Raises:
        UsageError: a job asks for more GPUs than the cluster has.
        MltcpError: jobs wait that the scheduler never places.
    """
    cluster = settings.cluster()
    check_fits(trace, len(cluster.gpus))
    executor = RatesExecutor(cluster, settings.model, settings.restart_ns)
    policy = SchedulingPolicy(scheduler, most=1)
    times: dict[object, ModelTimes] = {}
    jobs = [
        RateJob(
            job,
            times.setdefault(job.workload, ModelTimes(settings.model, job.workload, settings.gpus)),
            len(cluster.gpus),
        )
        for job in trace.jobs
    ]
    ClusterRun(jobs, cluster, _NIC_BPS, policy, executor, settings.restart_ns).run()
    records = {job.name: JobRecord(job) for job in trace.jobs}
    for span in executor.spans:
        records[span.job].spans.append(span)
    return RatesOutcome(trace, scheduler.name, len(cluster.gpus), tuple(records.values()))


def check_fits(trace: DeadlineTrace, gpus: int) -> None:
    """Refuse a job that asks for more GPUs than there are.

    Raises:
        UsageError: there is one.
    """
    for job in trace.jobs:
        if job.gpus > gpus:
            raise UsageError(
                f"{trace.name}: job {job.name!r}: gpus: expected at most the {gpus} of the cluster, got {job.gpus}"
            )
