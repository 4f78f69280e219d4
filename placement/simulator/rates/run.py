"""Run a trace of whole jobs under a scheduler, at the rates of a throughput model."""

from __future__ import annotations

from mltcp.core.errors import UsageError
from placement.model.throughput import Workload
from placement.policies.schedulers.scheduler import Scheduler
from placement.policies.schedulers.scheduling_policy import SchedulingPolicy
from placement.simulator.cluster_run import ClusterRun
from placement.simulator.rates.outcome import RatesOutcome
from placement.simulator.rates.rate_job import ModelTimes, RateJob
from placement.simulator.rates.rates_executor import RatesExecutor
from placement.simulator.rates.settings import RatesSettings
from placement.simulator.rates.start_cost import StartCost
from placement.traces.deadlines import DeadlineTrace

_NIC_BPS = 48_000_000_000
"""No job has a demand, so the rate of NICs makes no difference."""


def run_rates(
    trace: DeadlineTrace,
    settings: RatesSettings,
    scheduler: Scheduler,
    start_cost: StartCost | None = None,
) -> RatesOutcome:
    """Run a trace to its end.

    Args:
        trace: the jobs.
        settings: the cluster; its `restart_ns` is what the scheduler is told.
        scheduler: decides.
        start_cost: what starts cost; default: every restart `restart_ns`.

    Raises:
        UsageError: a job asks for more GPUs than the cluster has.
        MltcpError: jobs wait that the scheduler never places.
    """
    cluster = settings.cluster()
    check_fits(trace, len(cluster.gpus))
    executor = RatesExecutor(cluster, settings.model, settings.restart_ns, start_cost)
    policy = SchedulingPolicy(scheduler, most=1)
    ClusterRun(rate_jobs(trace, settings), cluster, _NIC_BPS, policy, executor, settings.restart_ns).run()
    return RatesOutcome.of(trace, scheduler.name, cluster, executor.spans)


def rate_jobs(trace: DeadlineTrace, settings: RatesSettings) -> list[RateJob]:
    """The jobs of a trace under the throughput model; those of the same workload share their times."""
    times: dict[Workload, ModelTimes] = {}
    return [
        RateJob(
            job,
            times.setdefault(job.workload, ModelTimes(settings.model, job.workload, settings.gpus)),
            settings.nodes * settings.gpus,
        )
        for job in trace.jobs
    ]


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
