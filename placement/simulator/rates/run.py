"""Run a trace of whole jobs under a scheduler, at the rates of a throughput model."""

from __future__ import annotations

from mltcp.core.errors import UsageError
from placement.model.throughput.throughput import Workload
from placement.policies.schedulers.scheduler import Scheduler
from placement.policies.schedulers.scheduling_policy import SchedulingPolicy
from placement.simulator.cluster_run import ClusterRun
from placement.simulator.rates.outcome import RatesOutcome, SpanTable
from placement.simulator.rates.rate_job import ModelTimes, RateJob
from placement.simulator.rates.rates_executor import RatesExecutor
from placement.simulator.rates.settings import RatesSettings
from placement.traces.deadlines.trace import DeadlineTrace

_NIC_BPS = 48_000_000_000
"""No job has a demand, so the rate of NICs makes no difference."""


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
    times: dict[Workload, ModelTimes] = {}
    jobs = [
        RateJob(
            job,
            times.setdefault(job.workload, ModelTimes(settings.model, job.workload, settings.gpus)),
            len(cluster.gpus),
        )
        for job in trace.jobs
    ]
    ClusterRun(jobs, cluster, _NIC_BPS, policy, executor, settings.restart_ns).run()
    table = SpanTable.of(executor.spans, trace, cluster)
    return RatesOutcome(trace, scheduler.name, len(cluster.gpus), table, tuple(executor.spans))


def check_fits(trace: DeadlineTrace, gpus: int) -> None:
    """Refuse a job that asks for more GPUs than there are.

    Raises:
        UsageError: there is one.
    """
    for index, job in enumerate(trace.jobs):
        if job.gpus > gpus:
            raise UsageError(
                f"{trace.place(index)}: gpus: job {job.name!r} asks for {job.gpus} GPUs; "
                f"expected at most the {gpus} of the cluster"
            )
