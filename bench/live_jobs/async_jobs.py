"""Asynchronous jobs under several schedulers on the lab, one after the other, beside what the simulator predicts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean, median
from typing import Any, TypeAlias

from bench.lab.network import namespaces
from bench.lab.processors import OtherPrograms, busy_s, count
from bench.live_jobs.async_executor import MalleableExecutor, worker_moves
from bench.live_jobs.async_lab import KINDS, ClusterShape, cluster_lab
from bench.live_jobs.async_profile import MEASURED, Profiling, ThroughputProfile
from bench.live_jobs.comparison import SpanRun, print_policies, run_policies, short_key
from bench.plain_documents import made_of
from bench.workloads.launched_rank import store_directory
from bench.workloads.parameter_server.job import AsyncJob
from mltcp.core.errors import MltcpError
from mltcp.core.quantities import NS_PER_S
from placement.experiments.run_journal import RunJournal
from placement.model.cluster import Cluster
from placement.model.throughput import ThroughputModel, WorkerTable
from placement.policies.schedulers.elastic import LeastMoves
from placement.policies.schedulers.registry import named_scheduler
from placement.policies.schedulers.scheduling_policy import SchedulingPolicy
from placement.simulator.cluster_run import ClusterRun, Start
from placement.simulator.rates.outcome import RatesOutcome
from placement.simulator.rates.run import RatesExecutor, timed_jobs
from placement.simulator.rates.timed_job import TimedJob
from placement.traces.deadlines import DeadlineTrace


@dataclass(frozen=True)
class ChangeCosts:
    """The costs of changes of workers.

    Attributes:
        join_ns: the time of a join.
        cycle_ns: R of each workload by name.
    """

    join_ns: int
    cycle_ns: Mapping[str, int]


class ChangeCostExecutor(RatesExecutor):
    """Runs jobs at the rates of a throughput model; see `RatesExecutor`.

    A worker that joins does nothing for the time of a join. The workers of a job that ends are in the middle of a step,
    on average: half a cycle of each is lost. Both are charged as time at the beginning of a start, in which the job
    makes no progress; that of a join by the share of workers that are new.

    Args:
        cluster: where the jobs run.
        model: gives the rates.
        costs: of changes of workers.
    """

    def __init__(self, cluster: Cluster, model: ThroughputModel, costs: ChangeCosts) -> None:
        super().__init__(cluster, model)
        self._costs = costs
        self._present: dict[str, tuple[int, ...]] = {}
        self._left: dict[str, tuple[int, tuple[int, ...]]] = {}

    def start(self, start: Start[TimedJob]) -> None:
        """See `Executor`."""
        super().start(start)
        self._present[start.job.name] = start.gpus

    def stop(self, job: str) -> None:
        """See `Executor`; no work is lost."""
        self._left[job] = self.now_ns, self._present.pop(job)
        super().stop(job)

    def _hold_ns(self, start: Start[TimedJob]) -> int:
        at_ns, former = self._left.get(start.job.name, (-1, ()))
        kept = len({*former} & {*start.gpus}) if at_ns == self.now_ns else 0
        hold_ns = self._costs.join_ns * (len(start.gpus) - kept) // len(start.gpus)
        if start.restarts == 0:
            hold_ns += self._costs.cycle_ns[start.job.workload.name] // 2
        return hold_ns


@dataclass(frozen=True)
class MalleableRun(SpanRun):
    """The record of a run.

    Attributes:
        joins: the workers that were started.
        leaves: those that were told to leave.
        join_s: of each worker that joined, from its start to its first weights.
        leave_s: of each worker that left, from the end of its last step to the end of its process.
        staleness: the mean over all updates of workers that had sent one before.
        deaths: workers that died, as "job: worker: cause".
        other_load: the share of the processors that other programs used.
        busy: the share that was busy in all.
        type: tells it from a profile in the journal.
    """

    joins: int
    leaves: int
    join_s: tuple[float, ...]
    leave_s: tuple[float, ...]
    staleness: float
    deaths: tuple[str, ...]
    other_load: float
    busy: float
    type: str = "run"


def scheduling_policy(name: str) -> SchedulingPolicy:
    """The policy of this name, with places that move few workers: in the simulation and live.

    Raises:
        UsageError: there is no such scheduler.
    """
    return SchedulingPolicy(LeastMoves(named_scheduler(name)), most=1)


WITH_COSTS = "+costs"
"""Behind the name of a model: joins count at their mean in the run, and the steps that the ends of jobs cut off."""

KeptRun: TypeAlias = ThroughputProfile | MalleableRun


@dataclass(frozen=True)
class AsyncJobsPlan:
    """A comparison of schedulers.

    Attributes:
        trace: on the lab's clock.
        policies: the names of the schedulers.
        shape: of the lab.
        told: the name of the throughput model that schedulers are told: hybrid, exact or measured.
        updates: of the profile with one worker.
        table: whether X(1) to X(W) are measured.
        seed: of the sleeps.
    """

    trace: DeadlineTrace
    policies: tuple[str, ...]
    shape: ClusterShape
    told: str
    updates: int
    table: bool
    seed: int

    @property
    def profiling(self) -> Profiling:
        """How the kinds of jobs are profiled."""
        return Profiling(self.shape, self.seed, self.updates, self.table)

    def key(self, policy: str, told: WorkerTable) -> str:
        """The key of the run under a policy."""
        return short_key((self.trace.jobs, self.shape, self.seed, told, policy))

    def run(self, told: WorkerTable, policy: str, key: str, on_end: Callable[[str], None]) -> MalleableRun:
        """Run the jobs under a policy, in a lab of its own.

        Args:
            told: the speeds that the scheduler is told.
            policy: the name of a scheduler.
            key: of the record.
            on_end: called with the name of each job that ends.

        Raises:
            NotAvailableError: not root, or the kernel lacks something.
            MltcpError: a job failed, or connections used another congestion control.
        """
        shape = self.shape
        with store_directory() as directory, cluster_lab(shape, len(self.trace.jobs)) as lab:
            executor = MalleableExecutor(
                self._description, lab.server_places(), lab.worker_place, shape.gpus, directory, on_end
            )
            others, before_s, began_ns = OtherPrograms(), busy_s(), executor.now_ns
            try:
                jobs = timed_jobs(self.trace, shape.settings(told))
                chosen = scheduling_policy(policy)
                ClusterRun(jobs, shape.cluster(), shape.link.rate_bps, chosen, executor).run()
                passed_s = (executor.now_ns - began_ns) / 1e9
                load, busy = others.share(), (busy_s() - before_s) / (passed_s * count())
                executor.end()
            finally:
                executor.kill()
        self._check_controls(executor, policy)
        workers = [worker for job in executor.jobs.values() for worker in job.workers]
        updates = [update for job in executor.jobs.values() for update in job.updates if update.step > 0]
        return MalleableRun(
            key=key,
            policy=policy,
            spans=tuple(executor.spans),
            joins=len(workers),
            leaves=sum(worker.told_s is not None for worker in workers),
            join_s=tuple(worker.join_s for worker in workers if worker.join_s is not None),
            leave_s=tuple(worker.leave_s for worker in workers if worker.leave_s is not None),
            staleness=fmean(update.staleness for update in updates) if updates else 0.0,
            deaths=tuple(executor.deaths),
            other_load=load,
            busy=busy,
        )

    def _description(self, job: TimedJob) -> AsyncJob:
        """The job as its server and workers know it: sleeps of its kind's length, as many updates as mini-batches."""
        kind = next(kind for kind in KINDS if kind.name == job.workload.name)
        return AsyncJob(job.name, kind.work(self.seed), self.shape.gpus, int(job.workload.total_samples))

    def _check_controls(self, executor: MalleableExecutor, policy: str) -> None:
        workers = (worker for job in executor.jobs.values() for worker in job.workers)
        used = {
            name for each in workers if each.joined is not None for name in each.joined.congestion_controls
        }
        if used != {self.shape.control}:
            raise MltcpError(
                f"{policy}: connections: expected {self.shape.control}, got {', '.join(sorted(used)) or 'none'}"
            )


@dataclass(frozen=True)
class AsyncPrediction:
    """The outcome that the simulator predicts with one model of throughput.

    Attributes:
        outcome: of the trace.
        joins: the workers that are started.
        leaves: those that are told to leave.
    """

    outcome: RatesOutcome
    joins: int
    leaves: int


@dataclass(frozen=True)
class AsyncComparison:
    """One policy: what was measured, and what was predicted by each model of throughput.

    Attributes:
        run: the record of the run.
        measured: on the lab.
        predicted: by the simulator, by the name of the model under which jobs advance; the scheduler is told the same
            speeds in all of them, as it was on the lab.
    """

    run: MalleableRun
    measured: RatesOutcome
    predicted: Mapping[str, AsyncPrediction]

    def difference(self, model: str) -> float:
        """The measured mean response above the predicted one, as a share of the latter."""
        return self.measured.mean_completion_s / self.predicted[model].outcome.mean_completion_s - 1


def compare_async_jobs(
    plan: AsyncJobsPlan, journal: RunJournal[KeptRun] | None, step: Callable[[str], None]
) -> tuple[ThroughputProfile, list[AsyncComparison]]:
    """ThroughputProfile, and run the policies one after the other; what the journal has is not run again.

    Args:
        plan: the comparison.
        journal: keeps the profile and each run as soon as it is finished.
        step: called for each part of the profile and for each job that ends, with what is going on.

    Raises:
        NotAvailableError: not root, or the kernel lacks something.
        MltcpError: a job failed.
    """
    profile = _profile(plan.profiling, journal, step)
    models = profile.models(plan.shape.gpus)
    told = models[plan.told]
    runs = run_policies(
        plan.policies,
        plan.trace.jobs,
        lambda policy: plan.key(policy, told),
        partial(plan.run, told),
        journal,
        lambda policy, job: step(f"{policy}, job {job}"),
    )
    found = []
    for run in runs:
        predicted = {name: predict(plan, run.policy, told, model) for name, model in models.items()}
        best = MEASURED if MEASURED in models else plan.told
        predicted[best + WITH_COSTS] = predict(plan, run.policy, told, models[best], _costs(profile, run))
        measured = RatesOutcome.of(plan.trace, run.policy, plan.shape.cluster(), run.spans)
        found.append(AsyncComparison(run, measured, predicted))
    return profile, found


def predict(
    plan: AsyncJobsPlan,
    policy: str,
    told: WorkerTable,
    actual: WorkerTable,
    costs: ChangeCosts | None = None,
) -> AsyncPrediction:
    """Predict a policy's outcome by the simulator: the scheduler is told some speeds, and jobs advance at others.

    Args:
        plan: the trace and the lab.
        policy: the name of the scheduler.
        told: the speeds that it is told.
        actual: those at which jobs advance.
        costs: of changes of workers; None: they are free.
    """
    cluster = plan.shape.cluster()
    executor = RatesExecutor(cluster, actual) if costs is None else ChangeCostExecutor(cluster, actual, costs)
    jobs = timed_jobs(plan.trace, plan.shape.settings(told))
    ClusterRun(jobs, cluster, plan.shape.link.rate_bps, scheduling_policy(policy), executor).run()
    outcome = RatesOutcome.of(plan.trace, policy, cluster, executor.spans)
    return AsyncPrediction(outcome, *worker_moves(executor.spans))


def parse_kept(line: bytes) -> KeptRun:
    """Read a line of the journal; ValueError or TypeError if it is anything else."""
    document: Any = json.loads(line)
    if isinstance(document, dict) and document.get("type") == "profile":
        del document["type"]
        profile: ThroughputProfile = made_of(ThroughputProfile, document)
        return profile
    return MalleableRun.from_line(line)


def models_of(table: bool) -> Sequence[str]:
    """The models of throughput that schedulers can be told."""
    return ("hybrid", "exact", *((MEASURED,) if table else ()))


def _profile(
    profiling: Profiling, journal: RunJournal[KeptRun] | None, step: Callable[[str], None]
) -> ThroughputProfile:
    kept = None if journal is None else journal.runs.get(profiling.key)
    if isinstance(kept, ThroughputProfile):
        for _ in range(profiling.steps):
            step("profile")
        return kept
    namespaces.require_privileges()
    found = profiling.run(step)
    if journal is not None:
        journal.add(found)
    return found


def _costs(profile: ThroughputProfile, run: MalleableRun) -> ChangeCosts:
    """The mean join of a run, and the cycles of the profile."""
    join_ns = round(fmean(run.join_s) * 1e9) if run.join_s else 0
    return ChangeCosts(join_ns, {name: round(each.cycle_s * 1e9) for name, each in profile.service.items()})


def document(
    plan: AsyncJobsPlan, profile: ThroughputProfile, results: Sequence[AsyncComparison]
) -> dict[str, Any]:
    """The JSON document; times are seconds of the lab."""
    return {
        "schema": 1,
        "trace": plan.trace.name,
        "setting": {**asdict(plan.shape), "told": plan.told, "seed": plan.seed},
        "profile": asdict(profile),
        "policies": [_policy(plan, result) for result in results],
    }


def print_table(plan: AsyncJobsPlan, profile: ThroughputProfile, results: Sequence[AsyncComparison]) -> None:
    """Print the profile, and a row a policy."""
    print_policies(
        "one worker, seconds",
        ("S^W", "S^U", "S^S", "S^D"),
        {
            name: [
                f"{each:.4f}"
                for each in (service.worker_s, service.uplink_s, service.server_s, service.downlink_s)
            ]
            for name, service in profile.service.items()
        },
        of="model",
    )
    models = list(results[0].predicted)
    columns = (
        *("mean response", *(each for model in models for each in (model, "off by"))),
        *("joins", "predicted", "leaves", "predicted", "a join (ms)", "a leave (ms)", "others' load"),
    )
    title = f"{plan.trace.name}: {len(plan.trace.jobs)} jobs; schedulers are told {plan.told}; seconds"
    print_policies(title, columns, {each.run.policy: _cells(plan, each, models) for each in results})


def outcomes(plan: AsyncJobsPlan, results: Sequence[AsyncComparison]) -> dict[str, RatesOutcome]:
    """What was measured and what was predicted under each policy, by names of pictures."""
    return {
        name: outcome
        for each in results
        for name, outcome in (
            (each.run.policy, each.measured),
            (f"{each.run.policy}-predicted", each.predicted[plan.told].outcome),
        )
    }


def _cells(plan: AsyncJobsPlan, result: AsyncComparison, models: Sequence[str]) -> list[str]:
    run, told = result.run, result.predicted[plan.told]
    cells = [f"{result.measured.mean_completion_s:.2f}"]
    for model in models:
        cells += [
            f"{result.predicted[model].outcome.mean_completion_s:.2f}",
            f"{result.difference(model):+.1%}",
        ]
    cells += [str(each) for each in (run.joins, told.joins, run.leaves, told.leaves)]
    cells += [_ms(run.join_s), _ms(run.leave_s), f"{run.other_load:.0%}"]
    return cells


def _ms(times_s: Sequence[float]) -> str:
    return f"{1000 * median(times_s):.0f}" if times_s else "-"


def _policy(plan: AsyncJobsPlan, result: AsyncComparison) -> dict[str, Any]:
    run = result.run
    return {
        "policy": run.policy,
        "mean_response_s": result.measured.mean_completion_s,
        "makespan_s": result.measured.makespan_s,
        "predicted": {
            name: {
                "mean_response_s": each.outcome.mean_completion_s,
                "difference": result.difference(name),
                "makespan_s": each.outcome.makespan_s,
                "joins": each.joins,
                "leaves": each.leaves,
            }
            for name, each in result.predicted.items()
        },
        "joins": run.joins,
        "leaves": run.leaves,
        "join_s": _spread(run.join_s),
        "leave_s": _spread(run.leave_s),
        "staleness": run.staleness,
        "deaths": list(run.deaths),
        "other_load": run.other_load,
        "busy": run.busy,
        "jobs": [_job(plan, result, number) for number in range(len(plan.trace.jobs))],
    }


def _job(plan: AsyncJobsPlan, result: AsyncComparison, number: int) -> dict[str, Any]:
    job = plan.trace.jobs[number]
    ends = {name: each.outcome.end_ns[number] for name, each in result.predicted.items()}
    return {
        "job": job.name,
        "model": job.workload.name,
        "batches": int(job.workload.total_samples),
        "arrival_s": job.arrival_ns / NS_PER_S,
        "response_s": (result.measured.end_ns[number] - job.arrival_ns) / NS_PER_S,
        "predicted_response_s": {name: (end - job.arrival_ns) / NS_PER_S for name, end in ends.items()},
    }


def _spread(times_s: Sequence[float]) -> dict[str, float] | None:
    if not times_s:
        return None
    return {"median": median(times_s), "mean": fmean(times_s), "longest": max(times_s)}
