"""One run of a comparison: a policy on a trace, the record that is kept of it, and its key."""

from __future__ import annotations

import hashlib
import json
import statistics
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

from placement.experiments.policy_name import PolicyName, SimulationModel
from placement.experiments.setting import Setting
from placement.simulator.outcome import JobOutcome, Outcome, UseOverTime
from placement.traces.job_trace import JobTrace

PARTS = ("queue_s", "compute_s", "gpu_wait_s", "link_wait_s", "communication_s", "contention_s")
"""The parts of a JCT; the last is a part of the one before."""

_DIGITS = 6
_SOURCES = ("simulator", "policies", "model")


@dataclass(frozen=True)
class SimulationTask:
    """One simulation to run; made by `task`.

    Attributes:
        key: the same for the same trace, policy, setting and seed, simulated by the same code.
        trace: its jobs.
        policy: the policy under which it runs.
        setting: the cluster and the contention model.
        seed: of the policy's random choices.
    """

    key: str
    trace: JobTrace
    policy: PolicyName
    setting: Setting
    seed: int = 0


def task(trace: JobTrace, digest: str, policy: PolicyName, setting: Setting, seed: int = 0) -> SimulationTask:
    """The task of simulating this policy on this trace, whose digest is given: it takes time for a large one."""
    parts = (digest, str(policy), setting.text, seed, _program())
    return SimulationTask(_digest(json.dumps(parts)), trace, policy, setting, seed)


@dataclass(frozen=True)
class SimulationRun:
    """The record of a simulation: a line in the log of a comparison.

    All times are seconds of the trace's scale.

    Attributes:
        key: that of its task.
        policy: its name.
        trace: its name.
        seed: of the policy.
        jobs: how many the trace has.
        average_jct_s: as in `Outcome`, and so the next four.
        parts_s: the means of `PARTS`, which add up to the average.
        wall_s: the wall-clock time of the simulation.
        jct_s: of every job, in the order of their numbers.
        gpu_utilization: of every GPU, over the makespan.
    """

    key: str
    policy: str
    trace: str
    seed: int
    jobs: int
    average_jct_s: float
    median_jct_s: float
    p95_jct_s: float
    average_gpu_utilization: float
    makespan_s: float
    events: int
    wall_s: float
    parts_s: dict[str, float]
    jct_s: tuple[float, ...]
    gpu_utilization: tuple[float, ...]

    def line(self) -> str:
        """The record as a line of JSON, without a newline."""
        return json.dumps(asdict(self), separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """Read what `line` wrote; ValueError if it is anything else."""
        document = json.loads(line)
        names = {each.name for each in fields(cls)}
        if not isinstance(document, dict) or set(document) != names:
            raise ValueError("not a run")
        lists = {name: tuple(document[name]) for name in ("jct_s", "gpu_utilization")}
        return cls(**{**document, **lists})


def simulate_task(task: SimulationTask, intervals: int = 0) -> Outcome:
    """Simulate a task; times are in seconds of the trace's scale (the paper's, for its traces of a hundredth).

    Raises:
        UsageError: no such policy, or the trace does not fit the cluster.
    """
    return in_scale(_simulate(task, intervals), float(task.trace.seconds_per_simulated_s))


def perform(task: SimulationTask) -> SimulationRun:
    """Simulate a task and return the record of it."""
    outcome = simulate_task(task)
    return SimulationRun(
        key=task.key,
        policy=str(task.policy),
        trace=task.trace.name,
        seed=task.seed,
        jobs=len(outcome.jobs),
        average_jct_s=outcome.average_jct_s,
        median_jct_s=outcome.median_jct_s,
        p95_jct_s=outcome.p95_jct_s,
        average_gpu_utilization=outcome.average_gpu_utilization,
        makespan_s=outcome.makespan_s,
        events=outcome.events,
        wall_s=outcome.wall_s,
        parts_s=mean_parts(outcome),
        jct_s=tuple(round(job.jct_s, _DIGITS) for job in outcome.jobs),
        gpu_utilization=tuple(round(each, _DIGITS) for each in outcome.gpu_utilization),
    )


def mean_parts(outcome: Outcome) -> dict[str, float]:
    """The means of the parts of the JCT over all jobs."""
    return {name: statistics.fmean(getattr(job, name) for job in outcome.jobs) for name in PARTS}


def in_scale(outcome: Outcome, scale: float) -> Outcome:
    """The same outcome with all simulated times multiplied."""
    if scale == 1:
        return outcome
    names = [each.name for each in fields(JobOutcome) if each.name.endswith("_s")]
    jobs = tuple(replace(job, **{name: getattr(job, name) * scale for name in names}) for job in outcome.jobs)
    use = outcome.use and UseOverTime(outcome.use.width_s * scale, outcome.use.gpus, outcome.use.links)
    return replace(outcome, jobs=jobs, makespan_s=outcome.makespan_s * scale, use=use)


def _simulate(task: SimulationTask, intervals: int) -> Outcome:
    policy, setting = task.policy, task.setting
    if policy.model is SimulationModel.EXACT:
        from placement.policies.catalogue import communication_policy, placement_policy
        from placement.simulator.exact.simulation import simulate

        return simulate(
            task.trace.jobs,
            setting.cluster,
            placement_policy(policy.placement, policy.kappa),
            communication_policy(policy.communication),
            setting.contention,
            seed=task.seed,
            intervals=intervals,
        )
    from placement.simulator.published.simulation import run

    star = setting.star(policy)
    return run(
        task.trace.jobs,
        policy.placement,
        policy.kappa,
        policy.communication,
        defect=policy.model is SimulationModel.DEFECT,
        seed=task.seed,
        servers=star.servers,
        gpus=star.gpus,
        memory_mb=star.memory_mb,
    ).outcome()


def trace_digest(trace: JobTrace) -> str:
    """A digest of the trace's jobs and scale, whatever their order and file."""
    jobs = sorted(trace.jobs, key=lambda job: job.job_id)
    return _digest(f"{trace.seconds_per_simulated_s} {jobs!r}")


@cache
def _program() -> str:
    """A digest of the code that determines the outcome of a simulation: another version's runs are other runs."""
    root = Path(__file__).parents[1]
    paths = sorted(path for name in _SOURCES for path in (root / name).rglob("*.py"))
    return _digest("".join(f"{path.relative_to(root)}\n{path.read_text()}" for path in paths))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def document_of(run: SimulationRun) -> dict[str, Any]:
    """The run as a JSON document for other programs, without internal fields."""
    document = asdict(run)
    for name in ("key", "jct_s", "gpu_utilization"):
        del document[name]
    return document
