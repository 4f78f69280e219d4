"""Run a contention trace under a rule in rounds, compiled, or under any scheduler in the scheduler loop."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.quantities import NS_PER_S
from placement.model.cluster import Cluster
from placement.model.throughput_table import TableModel
from placement.policies.schedulers.contention.rule import RoundsRule
from placement.policies.schedulers.contention.tables import JobKind, TableProfile, kinds_on, tables_of
from placement.policies.schedulers.contention.world import RoundsWorld, new_world, trial_of
from placement.policies.schedulers.scheduler import Scheduler
from placement.policies.schedulers.scheduling_policy import SchedulingPolicy
from placement.simulator.cluster_run import ClusterRun
from placement.simulator.rates.rounds.loop import run
from placement.simulator.rates.rounds.rounds_executor import RoundsExecutor
from placement.simulator.rates.timed_job import TimedJob, check_nodes
from placement.traces.contention import ContentionTrace

# -- the cluster and its rounds ----------------------------------------------------------------------------------------

NODES, GPUS = 4, 8
"""The cluster of the paper."""

ROUND_S = 300
"""The length of the paper's rounds."""

_MOST_GPUS, _MOST_S = 10_000, 10**8


@dataclass(frozen=True)
class RoundsSettings:
    """The cluster, its throughput model and its rounds.

    Attributes:
        model: gives the speeds of jobs.
        nodes: of the cluster.
        gpus: of a node.
        round_ns: the length of a round.
        restart_ns: the cost c of a restart.

    Raises:
        UsageError: a value is out of range.
    """

    model: TableModel
    nodes: int = NODES
    gpus: int = GPUS
    round_ns: int = ROUND_S * NS_PER_S
    restart_ns: int = 0

    def __post_init__(self) -> None:
        check_nodes(self.nodes, self.gpus, _MOST_GPUS)
        if not 0 < self.round_ns <= _MOST_S * NS_PER_S:
            raise UsageError(f"round_ns: expected 1 to {_MOST_S} s, got {self.round_ns}")
        if not 0 <= self.restart_ns <= _MOST_S * NS_PER_S:
            raise UsageError(f"restart_ns: expected 0 to {_MOST_S} s, got {self.restart_ns}")

    def cluster(self) -> Cluster:
        """The cluster, with a switch for each node: what schedulers call a rack is a node here."""
        return Cluster.of_nodes(self.nodes, self.gpus)


# -- outcomes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RoundsOutcome:
    """The outcome of a trace under a policy; arrays are in the order of the trace.

    Attributes:
        trace: what was run.
        policy: the name of the policy.
        gpus: of the cluster.
        finish_s: when each job ended.
        run_s: for how long each job held GPUs.
        starts: of each job.
        rounds_run: of each job.
        sensitivity: of each job, the sum over these rounds of its contention sensitivity, 1 / r.
        rounds_by_gpus: for each number of GPUs from 0 on, the rounds in which so many were given out.
    """

    trace: ContentionTrace
    policy: str
    gpus: int
    finish_s: np.ndarray
    run_s: np.ndarray
    starts: np.ndarray
    rounds_run: np.ndarray
    sensitivity: np.ndarray
    rounds_by_gpus: np.ndarray

    @property
    def rounds(self) -> int:
        """All rounds, empty ones included."""
        return int(self.rounds_by_gpus.sum())

    @property
    def jct_s(self) -> np.ndarray:
        """Job completion times: from arrival to end, queueing included."""
        return self.finish_s - np.array([job.arrival_ns for job in self.trace.jobs]) / NS_PER_S

    @property
    def mean_jct_s(self) -> float:
        """The mean completion time."""
        return float(self.jct_s.mean())

    @property
    def p90_jct_s(self) -> float:
        """The 90th percentile of completion times."""
        return float(np.percentile(self.jct_s, 90))

    @property
    def mean_run_s(self) -> float:
        """The mean time for which a job held GPUs; what the paper's public code calls JCT."""
        return float(self.run_s.mean())

    @property
    def makespan_s(self) -> float:
        """When the last job ended."""
        return float(self.finish_s.max())

    @property
    def utilization(self) -> float:
        """The share of the GPUs that were given out, mean over rounds from 0 to the last end."""
        given = float(self.rounds_by_gpus @ np.arange(self.gpus + 1))
        return given / (self.gpus * self.rounds)

    @property
    def restarts(self) -> float:
        """Starts after a job's first, a job."""
        return float((self.starts - 1).mean())

    @property
    def sensitivities(self) -> np.ndarray:
        """The mean contention sensitivity of each job over the rounds that it ran (Figure 6)."""
        return self.sensitivity / self.rounds_run

    @property
    def mean_sensitivity(self) -> float:
        """The mean of these over jobs."""
        return float(self.sensitivities.mean())


# -- runs --------------------------------------------------------------------------------------------------------------

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
    jobs = [TimedJob.fixed(job, settings.model) for job in trace.jobs]
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
