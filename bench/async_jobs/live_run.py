"""One run of a trace of asynchronous jobs on the lab under a scheduler, and the record of it that is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Self

from bench.async_jobs.cluster_lab import ClusterShape, cluster_lab
from bench.async_jobs.executor import MalleableExecutor
from bench.async_jobs.kinds import kinds_named
from bench.lab.processors import OtherPrograms, busy_s, count
from bench.workloads.launch.launched_rank import store_directory
from bench.workloads.parameter_server.job import AsyncJob
from bench.workloads.parameter_server.malleable.launch import MalleableJob
from mltcp.core.errors import MltcpError
from placement.model.throughput import WorkerTable
from placement.policies.schedulers.elastic.least_moves import LeastMoves
from placement.policies.schedulers.registry import named_scheduler
from placement.policies.schedulers.scheduling_policy import SchedulingPolicy
from placement.simulator.cluster_run import ClusterRun
from placement.simulator.rates.outcome import RatesOutcome, Span
from placement.simulator.rates.timed_job import RatesSettings, TimedJob, timed_jobs
from placement.traces.deadlines import DeadlineTrace


@dataclass(frozen=True)
class MalleableRun:
    """The record of a run.

    Attributes:
        key: the same for the same trace, policy, profile and lab.
        policy: its name.
        spans: of all jobs, on the lab's clock.
        joins: the workers that were started.
        leaves: those that were told to leave.
        join_s: of each worker that joined, from its start to its first weights.
        leave_s: of each worker that left, from the end of its last step to the end of its process.
        staleness: the mean over all updates of workers that had sent one before.
        deaths: workers that died, as "job: worker: cause".
        other_load: the share of the processors that other programs used.
        busy: the share that was busy in all.
    """

    key: str
    policy: str
    spans: tuple[Span, ...]
    joins: int
    leaves: int
    join_s: tuple[float, ...]
    leave_s: tuple[float, ...]
    staleness: float
    deaths: tuple[str, ...]
    other_load: float
    busy: float

    def line(self) -> str:
        """The run as a line of JSON, without a newline."""
        return json.dumps({"type": "run", **asdict(self)}, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read what `line` wrote; ValueError, KeyError or TypeError if it is anything else."""
        values = {name: value for name, value in document.items() if name != "type"}
        values["spans"] = tuple(Span(**{**each, "gpus": tuple(each["gpus"])}) for each in values["spans"])
        for name in ("join_s", "leave_s", "deaths"):
            values[name] = tuple(values[name])
        return cls(**values)

    def outcome(self, trace: DeadlineTrace, shape: ClusterShape) -> RatesOutcome:
        """The outcome on the trace that was run."""
        return RatesOutcome.of(trace, self.policy, shape.cluster(), self.spans)


def scheduling_policy(name: str) -> SchedulingPolicy:
    """The policy of this name, with places that move few workers: in the simulation and live.

    Raises:
        UsageError: there is no such scheduler.
    """
    return SchedulingPolicy(LeastMoves(named_scheduler(name)), most=1)


def settings_of(shape: ClusterShape, model: WorkerTable) -> RatesSettings:
    """The lab as a simulated cluster with this throughput model."""
    return RatesSettings(model, shape.hosts, shape.slots)


def run_live(
    trace: DeadlineTrace,
    shape: ClusterShape,
    told: WorkerTable,
    policy: str,
    seed: int,
    key: str,
    on_end: Callable[[str], None],
) -> MalleableRun:
    """Run the jobs of a trace under a policy, in a lab of its own.

    Args:
        trace: on the lab's clock.
        shape: of the lab.
        told: the speeds that the scheduler is told.
        policy: the name of a scheduler.
        seed: of the sleeps.
        key: of the record.
        on_end: called with the name of each job that ends.

    Raises:
        NotAvailableError: not root, or the kernel lacks something.
        MltcpError: a job failed, or connections used another congestion control.
    """
    servers = len(trace.jobs)
    with store_directory() as directory, cluster_lab(shape, servers) as lab:
        executor = MalleableExecutor(
            lambda job: description(job, shape, seed),
            lab.server_places(),
            lab.worker_place,
            shape.gpus,
            directory,
            on_end,
        )
        others, before_s, began_ns = OtherPrograms(), busy_s(), executor.now_ns
        try:
            jobs = timed_jobs(trace, settings_of(shape, told))
            chosen = scheduling_policy(policy)
            ClusterRun(jobs, shape.cluster(), shape.link.rate_bps, chosen, executor).run()
            passed_s = (executor.now_ns - began_ns) / 1e9
            load, busy = others.share(), (busy_s() - before_s) / (passed_s * count())
            executor.end()
        finally:
            executor.kill()
    return _record(list(executor.jobs.values()), executor, shape, policy, key, load, busy)


def description(job: TimedJob, shape: ClusterShape, seed: int) -> AsyncJob:
    """The job as its server and workers know it: sleeps of the kind's length, and as many updates as mini-batches."""
    (kind,) = kinds_named([job.workload.name])
    return AsyncJob(job.name, kind.work(seed), shape.gpus, int(job.workload.total_samples))


def _record(
    jobs: Sequence[MalleableJob],
    executor: MalleableExecutor,
    shape: ClusterShape,
    policy: str,
    key: str,
    load: float,
    busy: float,
) -> MalleableRun:
    workers = [worker for job in jobs for worker in job.workers]
    joined = [worker.joined for worker in workers if worker.joined is not None]
    used = {control for each in joined for control in each.congestion_controls}
    if used != {shape.control}:
        raise MltcpError(
            f"{policy}: connections: expected {shape.control}, got {', '.join(sorted(used)) or 'none'}"
        )
    stale = [update.staleness for job in jobs for update in job.updates if update.step > 0]
    return MalleableRun(
        key=key,
        policy=policy,
        spans=tuple(executor.spans),
        joins=len(workers),
        leaves=sum(worker.told_s is not None for worker in workers),
        join_s=tuple(worker.join_s for worker in workers if worker.join_s is not None),
        leave_s=tuple(worker.leave_s for worker in workers if worker.leave_s is not None),
        staleness=fmean(stale) if stale else 0.0,
        deaths=tuple(executor.deaths),
        other_load=load,
        busy=busy,
    )
