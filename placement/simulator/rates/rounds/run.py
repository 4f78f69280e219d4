"""Run a contention trace under a rule in rounds, compiled, or under any scheduler in the scheduler loop."""

from __future__ import annotations

import numpy as np

from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.quantities import NS_PER_S
from placement.policies.schedulers.contention.rule import RoundsRule
from placement.policies.schedulers.contention.tables import JobKind, TableProfile, kinds_on, tables_of
from placement.policies.schedulers.contention.world import RoundsWorld, new_world, trial_of
from placement.policies.schedulers.scheduler import Scheduler
from placement.policies.schedulers.scheduling_policy import SchedulingPolicy
from placement.simulator.cluster_run import ClusterRun
from placement.simulator.rates.rounds.loop import run
from placement.simulator.rates.rounds.outcome import RoundsOutcome
from placement.simulator.rates.rounds.round_job import RoundJob
from placement.simulator.rates.rounds.rounds_executor import RoundsExecutor
from placement.simulator.rates.rounds.settings import RoundsSettings
from placement.traces.contention.trace import ContentionTrace

_NIC_BPS = 10_000_000_000
"""No job has a demand, so the rate of NICs makes no difference."""


def run_rule(
    trace: ContentionTrace, settings: RoundsSettings, policy: str, rule: RoundsRule
) -> RoundsOutcome:
    """Run a trace to its end under a rule in rounds, compiled.

    Raises:
        UsageError: the table has no row for a job, or a job fits on no number of nodes.
        MltcpError: jobs wait that the rule never places.
    """
    world = world_of(trace, settings, rule)
    rounds_by_gpus = np.zeros(settings.nodes * settings.gpus + 1, np.int64)
    if not run(world, trial_of(world), rounds_by_gpus):
        raise MltcpError(f"{policy}: jobs of {trace.name} are never placed")
    jobs = world.jobs
    return RoundsOutcome(
        trace,
        policy,
        settings.nodes * settings.gpus,
        jobs["finish"].copy(),
        jobs["held"].copy(),
        jobs["starts"].copy(),
        jobs["rounds_run"].copy(),
        jobs["sensitivity"].copy(),
        rounds_by_gpus,
    )


def run_scheduler(trace: ContentionTrace, settings: RoundsSettings, scheduler: Scheduler) -> RoundsOutcome:
    """Run a trace to its end under any scheduler, in the scheduler loop.

    Raises:
        UsageError: the table has no row for a job, or for a layout that the scheduler chooses.
        MltcpError: jobs wait that the scheduler never places.
    """
    trace.check_rows(settings.model.table)
    cluster = settings.cluster()
    executor = RoundsExecutor(cluster, settings.model, settings.round_ns, settings.restart_ns)
    jobs = [RoundJob(job, settings.model) for job in trace.jobs]
    policy = SchedulingPolicy(scheduler, most=1)
    done = ClusterRun(jobs, cluster, _NIC_BPS, policy, executor, settings.restart_ns)
    done.run()
    seen = [executor.sensitivities[job.name] for job in trace.jobs]
    return RoundsOutcome(
        trace,
        scheduler.name,
        settings.nodes * settings.gpus,
        np.array([job.ended_ns for job in done.jobs]) / NS_PER_S,
        np.array([job.held_ns + job.ended_ns - job.started_ns for job in done.jobs]) / NS_PER_S,
        np.array([job.starts for job in done.jobs]),
        np.array([rounds for rounds, _ in seen]),
        np.array([total for _, total in seen]),
        executor.rounds_by_gpus,
    )


def world_of(trace: ContentionTrace, settings: RoundsSettings, rule: RoundsRule) -> RoundsWorld:
    """The state in which a run begins.

    Raises:
        UsageError: the table has no row for a job, or a job fits on no number of nodes.
    """
    trace.check_rows(settings.model.table)
    of_jobs = [JobKind(TableProfile(settings.model, job.model), job.gpus) for job in trace.jobs]
    sizes = (settings.gpus,) * settings.nodes
    kinds = kinds_on(sizes, of_jobs)
    try:
        tables = tables_of(kinds, sizes, rule.tries_sets)
    except UsageError as error:
        raise UsageError(f"{trace.name}: {error}") from None
    round_s, restart_s = settings.round_ns / NS_PER_S, settings.restart_ns / NS_PER_S
    world = new_world(tables, sizes, len(trace.jobs), rule, round_s, restart_s, settings.model.combination)
    numbers = {kind: number for number, kind in enumerate(kinds)}
    world.jobs["arrival"] = [job.arrival_ns for job in trace.jobs]
    world.jobs["kind"] = [numbers[kind] for kind in of_jobs]
    world.jobs["remaining"] = [job.samples for job in trace.jobs]
    return world
