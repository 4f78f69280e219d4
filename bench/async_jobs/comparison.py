"""Asynchronous jobs under several schedulers on the lab, one after the other, beside what the simulator predicts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeAlias

from bench.async_jobs.change_costs import ChangeCostExecutor, ChangeCosts
from bench.async_jobs.cluster_lab import ClusterShape
from bench.async_jobs.kinds import KINDS
from bench.async_jobs.live_run import MalleableRun, run_live, scheduling_policy, settings_of
from bench.async_jobs.profile import MEASURED, WINDOW_S, Profile, profile_in_lab, steps_of_profile
from bench.async_jobs.slot_change import worker_moves
from bench.lab.network import namespaces
from placement.experiments.run_journal import RunJournal
from placement.model.throughput import WorkerTable
from placement.simulator.cluster_run import ClusterRun
from placement.simulator.rates.outcome import RatesOutcome
from placement.simulator.rates.run import RatesExecutor
from placement.simulator.rates.timed_job import timed_jobs
from placement.traces.deadlines import DeadlineTrace

WITH_COSTS = "+costs"
"""Behind the name of a model: joins count at their mean in the run, and the steps that the ends of jobs cut off."""

KeptRun: TypeAlias = Profile | MalleableRun

_KEY_DIGITS = 20


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
    def profile_key(self) -> str:
        """The key of the profile."""
        return _key((KINDS, self.shape, self.seed, self.table, self.updates, WINDOW_S))

    def key(self, policy: str, told: WorkerTable) -> str:
        """The key of the run under a policy."""
        return _key((self.trace.jobs, self.shape, self.seed, told, policy))


@dataclass(frozen=True)
class Prediction:
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
class PolicyComparison:
    """One policy: what was measured, and what was predicted by each model of throughput.

    Attributes:
        run: the record of the run.
        measured: on the lab.
        predicted: by the simulator, by the name of the model under which jobs advance; the scheduler is told the same
            speeds in all of them, as it was on the lab.
    """

    run: MalleableRun
    measured: RatesOutcome
    predicted: Mapping[str, Prediction]

    def difference(self, model: str) -> float:
        """The measured mean response above the predicted one, as a share of the latter."""
        return self.measured.mean_completion_s / self.predicted[model].outcome.mean_completion_s - 1


def compare_async_jobs(
    plan: AsyncJobsPlan,
    journal: RunJournal[KeptRun] | None,
    step: Callable[[str], None],
) -> tuple[Profile, list[PolicyComparison]]:
    """Profile, and run the policies one after the other; what the journal has is not run again.

    Args:
        plan: the comparison.
        journal: keeps the profile and each run as soon as it is finished.
        step: called for each part of the profile and for each job that ends, with what is going on.

    Raises:
        NotAvailableError: not root, or the kernel lacks something.
        MltcpError: a job failed.
    """
    profile = _profile(plan, journal, step)
    models = profile.models(plan.shape.gpus)
    told = models[plan.told]
    found = []
    for policy in plan.policies:
        key = plan.key(policy, told)
        run = None if journal is None else journal.runs.get(key)
        if run is None:
            namespaces.require_privileges()
            run = run_live(
                plan.trace,
                plan.shape,
                told,
                policy,
                plan.seed,
                key,
                lambda job, policy=policy: step(f"{policy}, job {job}"),  # type: ignore[misc]
            )
            if journal is not None:
                journal.add(run)
        else:
            for job in plan.trace.jobs:
                step(f"{policy}, job {job.name}")
        assert isinstance(run, MalleableRun), "keys are unique"
        predicted = {name: predict(plan, policy, told, model) for name, model in models.items()}
        best = MEASURED if MEASURED in models else plan.told
        predicted[best + WITH_COSTS] = predict(plan, policy, told, models[best], _costs(profile, run))
        found.append(PolicyComparison(run, run.outcome(plan.trace, plan.shape), predicted))
    return profile, found


def predict(
    plan: AsyncJobsPlan,
    policy: str,
    told: WorkerTable,
    actual: WorkerTable,
    costs: ChangeCosts | None = None,
) -> Prediction:
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
    jobs = timed_jobs(plan.trace, settings_of(plan.shape, told))
    ClusterRun(jobs, cluster, plan.shape.link.rate_bps, scheduling_policy(policy), executor).run()
    outcome = RatesOutcome.of(plan.trace, policy, cluster, executor.spans)
    return Prediction(outcome, *worker_moves(executor.spans))


def parse_kept(line: bytes) -> KeptRun:
    """Read a line of the journal; ValueError or TypeError if it is anything else."""
    document: Any = json.loads(line)
    try:
        if document["type"] == "profile":
            return Profile.from_document(document)
        return MalleableRun.from_document(document)
    except KeyError as error:
        raise ValueError("neither a profile nor a run") from error


def models_of(table: bool) -> Sequence[str]:
    """The models of throughput that schedulers can be told."""
    return ("hybrid", "exact", *((MEASURED,) if table else ()))


def _profile(
    plan: AsyncJobsPlan, journal: RunJournal[KeptRun] | None, step: Callable[[str], None]
) -> Profile:
    kept = None if journal is None else journal.runs.get(plan.profile_key)
    if isinstance(kept, Profile):
        for _ in range(steps_of_profile(len(KINDS), plan.shape.gpus, plan.table)):
            step("profile")
        return kept
    namespaces.require_privileges()
    found = profile_in_lab(KINDS, plan.shape, plan.seed, plan.updates, plan.table, plan.profile_key, step)
    if journal is not None:
        journal.add(found)
    return found


def _costs(profile: Profile, run: MalleableRun) -> ChangeCosts:
    """The mean join of a run, and the cycles of the profile."""
    join_ns = round(fmean(run.join_s) * 1e9) if run.join_s else 0
    return ChangeCosts(join_ns, {name: round(each.cycle_s * 1e9) for name, each in profile.service.items()})


def _key(told: object) -> str:
    return hashlib.sha256(repr(told).encode()).hexdigest()[:_KEY_DIGITS]
