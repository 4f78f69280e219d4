"""Run a trace of whole jobs under a scheduler, at the rates of a throughput model."""

from __future__ import annotations

from placement.policies.schedulers.scheduler import Scheduler
from placement.policies.schedulers.scheduling_policy import SchedulingPolicy
from placement.simulator.cluster_run import ClusterRun
from placement.simulator.rates.outcome import RatesOutcome
from placement.simulator.rates.rates_executor import RatesExecutor, StartCost
from placement.simulator.rates.timed_job import RatesSettings, timed_jobs
from placement.traces.deadlines import DeadlineTrace
from placement.traces.trace import check_gpus

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
    check_gpus(trace, len(cluster.gpus))
    executor = RatesExecutor(cluster, settings.model, settings.restart_ns, start_cost)
    policy = SchedulingPolicy(scheduler, most=1)
    ClusterRun(timed_jobs(trace, settings), cluster, _NIC_BPS, policy, executor, settings.restart_ns).run()
    return RatesOutcome.of(trace, scheduler.name, cluster, executor.spans)
