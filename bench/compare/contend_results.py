"""What a `mltcp-bench contend` run measured, the figures computed from it, and its JSON document.

Every figure is computed for each repeat by itself; a policy's figure is the median over its repeats, its
spread the smallest and the largest of them. The yardstick is the isolated job: the *slowdown* of an
iteration is its time over the job's isolated iteration time. Without an ``isolated`` policy in the run,
every slowdown is None.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean, median

from mltcp.core.errors import MltcpError

SCHEMA = 1
ISOLATED = "isolated"
CONVERGENCE_WINDOW = 5
CONVERGENCE_SLOWDOWN = 1.05
COUNTS = frozenset({"convergence_iterations", "retransmits", "ecn_marks", "drops"})

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class JobRun:
    """One job in one repeat of one policy: each iteration's time, in order, and its congestion control."""

    job: str
    iteration_s: tuple[float, ...]
    cc: str

    def __post_init__(self) -> None:
        if not self.iteration_s:
            raise MltcpError(
                f"job {self.job} under {self.cc}: no iteration was measured; at least one is needed"
            )
        if not all(0 < time_s < math.inf for time_s in self.iteration_s):
            raise MltcpError(f"job {self.job} under {self.cc}: iteration times must be positive and finite")


@dataclass(frozen=True)
class LinkUse:
    """What each job sent over the bottleneck, left to right: bytes in consecutive bins of `bin_s` seconds."""

    bin_s: float
    job_bytes: Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class PolicyRun:
    """One repeat of one policy. `utilization` is a share of the link's rate, from 0 to 1.

    `sole_utilization` is that share while exactly one job sends; None if that never was for long.
    """

    policy: str
    jobs: tuple[JobRun, ...]
    retransmits: int
    ecn_marks: int
    drops: int
    utilization: float
    link_use: LinkUse | None = None
    sole_utilization: float | None = None

    def __post_init__(self) -> None:
        names = [job.job for job in self.jobs]
        if not names or len(set(names)) != len(names):
            raise MltcpError(
                f"policy {self.policy}: jobs must have names of their own, not {', '.join(names) or 'none'}"
            )


@dataclass(frozen=True)
class Figures:
    """The figures of one repeat, or of several taken together; `figures_of` says what each one means."""

    mean_slowdown: float | None
    steady_slowdown: float | None
    p99_slowdown: float | None
    steady_p99_slowdown: float | None
    converged_p99_slowdown: float | None
    convergence_iterations: int | None
    retransmits: int
    ecn_marks: int
    drops: int
    utilization: float
    sole_utilization: float | None = None


@dataclass(frozen=True)
class JobResult:
    """One job under one policy: figures in seconds and as slowdowns, and each repeat's iteration times."""

    job: str
    cc: str
    mean_s: float
    median_s: float
    p99_s: float
    slowdown: float | None
    steady_slowdown: float | None
    repeats: tuple[tuple[float, ...], ...]

    @property
    def iteration_s(self) -> tuple[float, ...]:
        """The iteration times of all repeats, one repeat after the other."""
        return tuple(time_s for repeat in self.repeats for time_s in repeat)


@dataclass(frozen=True)
class PolicyResult:
    """One policy: its figures (medians over repeats), the smallest and largest of each, its jobs and runs."""

    policy: str
    figures: Figures
    lowest: Figures
    highest: Figures
    jobs: tuple[JobResult, ...]
    runs: tuple[PolicyRun, ...]

    @property
    def middle_run(self) -> PolicyRun:
        """The repeat whose mean iteration time is the median of all; the longer of two in the middle."""
        by_time = sorted(self.runs, key=lambda run: fmean(t for job in run.jobs for t in job.iteration_s))
        return by_time[len(by_time) // 2]


@dataclass(frozen=True)
class ContendResult:
    """What a `contend` run found out; `isolated_s` is each job's yardstick, empty if no job ran isolated."""

    link: Mapping[str, Scalar]
    isolated_s: Mapping[str, float]
    policies: tuple[PolicyResult, ...]

    def policy(self, name: str) -> PolicyResult | None:
        """The result of the policy of that name, or None if it was not run."""
        return next((policy for policy in self.policies if policy.policy == name), None)


def percentile(values: Iterable[float], percent: float) -> float:
    """The percentile of the values, interpolated linearly between the two nearest ones."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def second_half(values: Sequence[float]) -> Sequence[float]:
    """The values from index ``len(values) // 2`` on: of an odd number, the middle one belongs to it."""
    return values[len(values) // 2 :]


def convergence_iterations(slowdowns: Sequence[float]) -> int | None:
    """The index from which on a job runs as if alone, counted from 0, or None if it never does.

    The answer is the smallest k such that, from iteration k to the end of the run, every window of five
    iterations has a mean slowdown of at most 1.05. The windows look ahead: what was before k does not count
    against it, and a single slow iteration after k counts for a fifth.
    """
    last = len(slowdowns) - CONVERGENCE_WINDOW
    for index in reversed(range(max(1, last + 1))):
        if fmean(slowdowns[index : index + CONVERGENCE_WINDOW]) > CONVERGENCE_SLOWDOWN:
            return index + 1 if index < last else None
    return 0


def isolated_times(runs: Iterable[PolicyRun]) -> dict[str, float]:
    """Each job's yardstick in seconds: the median, over its isolated runs, of its mean iteration time."""
    means: dict[str, list[float]] = {}
    for run in runs:
        if run.policy == ISOLATED:
            for job in run.jobs:
                means.setdefault(job.job, []).append(fmean(job.iteration_s))
    return {job: median(times) for job, times in means.items()}


def figures_of(run: PolicyRun, isolated_s: Mapping[str, float]) -> Figures:
    """The figures of one repeat.

    ``mean_slowdown`` and ``p99_slowdown`` are taken over all iterations of all jobs together, the two
    ``steady`` ones over the second half of each job's iterations. ``convergence_iterations`` is that of the
    job that takes longest, None if one never converges, and ``converged_p99_slowdown`` the 99th percentile
    from there on.
    """
    slowdowns = _slowdowns(run, isolated_s)
    everything = [value for job in slowdowns for value in job]
    steady = [value for job in slowdowns for value in second_half(job)]
    converged = _last_to_converge(slowdowns)
    after = [value for job in slowdowns for value in job[converged:]] if converged is not None else []
    return Figures(
        mean_slowdown=fmean(everything) if everything else None,
        steady_slowdown=fmean(steady) if steady else None,
        p99_slowdown=percentile(everything, 99) if everything else None,
        steady_p99_slowdown=percentile(steady, 99) if steady else None,
        converged_p99_slowdown=percentile(after, 99) if after else None,
        convergence_iterations=converged,
        retransmits=run.retransmits,
        ecn_marks=run.ecn_marks,
        drops=run.drops,
        utilization=run.utilization,
        sole_utilization=run.sole_utilization,
    )


def contend_result(link: Mapping[str, Scalar], runs: Sequence[PolicyRun]) -> ContendResult:
    """Compute every figure of the runs, given in any order; policies stay in the order of their first run.

    Raises MltcpError if isolated jobs were run, but not every job of the other policies.
    """
    isolated_s = isolated_times(runs)
    by_policy: dict[str, list[PolicyRun]] = {}
    for run in runs:
        by_policy.setdefault(run.policy, []).append(run)
    policies = tuple(_policy_result(name, same, isolated_s) for name, same in by_policy.items())
    return ContendResult(dict(link), isolated_s, policies)


def to_document(result: ContendResult) -> dict[str, object]:
    """The JSON document of schema 1; times in seconds, times and ratios rounded to six decimals.

    A job's ``iteration_s`` lists all repeats one after the other; ``iterations`` says how many each one has.
    """
    return {
        "schema": SCHEMA,
        "link": dict(result.link),
        "isolated_s": _rounded(result.isolated_s),
        "policies": [_policy_document(policy) for policy in result.policies],
    }


def to_json(result: ContendResult) -> str:
    """The document as one line of JSON."""
    return json.dumps(to_document(result), allow_nan=False)


def _slowdowns(run: PolicyRun, isolated_s: Mapping[str, float]) -> list[list[float]]:
    if not isolated_s:
        return []
    missing = [job.job for job in run.jobs if job.job not in isolated_s]
    if missing:
        have = ", ".join(isolated_s)
        raise MltcpError(
            f"policy {run.policy}: job {missing[0]} has no isolated run to compare with; {have} have one"
        )
    return [[time_s / isolated_s[job.job] for time_s in job.iteration_s] for job in run.jobs]


def _last_to_converge(slowdowns: Sequence[Sequence[float]]) -> int | None:
    indices = [convergence_iterations(job) for job in slowdowns]
    known = [index for index in indices if index is not None]
    return max(known) if known and len(known) == len(indices) else None


def _policy_result(policy: str, runs: Sequence[PolicyRun], isolated_s: Mapping[str, float]) -> PolicyResult:
    figures = [figures_of(run, isolated_s) for run in runs]
    names = dict.fromkeys(job.job for run in runs for job in run.jobs)
    return PolicyResult(
        policy=policy,
        figures=_together(figures, median),
        lowest=_together(figures, min),
        highest=_together(figures, max),
        jobs=tuple(_job_result(name, runs, isolated_s.get(name)) for name in names),
        runs=tuple(runs),
    )


def _together(figures: Sequence[Figures], pick: Callable[[Sequence[float]], float]) -> Figures:
    """Apply `pick` to each figure. None counts as infinity, so "never converged" is worse than any number."""
    picked: dict[str, float | None] = {}
    for field in fields(Figures):
        values = [getattr(each, field.name) for each in figures]
        value = pick([math.inf if each is None else each for each in values])
        if value == math.inf:
            picked[field.name] = None
        else:
            # The median of an even number of counts may fall between two: a count stays whole.
            picked[field.name] = math.ceil(value) if field.name in COUNTS else value
    return Figures(**picked)  # type: ignore[arg-type]


def _job_result(name: str, runs: Sequence[PolicyRun], isolated_s: float | None) -> JobResult:
    mine = [job for run in runs for job in run.jobs if job.job == name]
    mean_s = median(fmean(job.iteration_s) for job in mine)
    steady_s = median(fmean(second_half(job.iteration_s)) for job in mine)
    return JobResult(
        job=name,
        cc=mine[0].cc,
        mean_s=mean_s,
        median_s=median(median(job.iteration_s) for job in mine),
        p99_s=median(percentile(job.iteration_s, 99) for job in mine),
        slowdown=mean_s / isolated_s if isolated_s else None,
        steady_slowdown=steady_s / isolated_s if isolated_s else None,
        repeats=tuple(job.iteration_s for job in mine),
    )


def _policy_document(policy: PolicyResult) -> dict[str, object]:
    names = [field.name for field in fields(Figures)]
    figures = {name: getattr(policy.figures, name) for name in names}
    spread = {name: [getattr(policy.lowest, name), getattr(policy.highest, name)] for name in names}
    return {
        "policy": policy.policy,
        **_rounded(figures),
        "repeats": len(policy.runs),
        "spread": _rounded(spread),
        "jobs": [_job_document(job) for job in policy.jobs],
    }


def _job_document(job: JobResult) -> dict[str, object]:
    names = ("job", "cc", "mean_s", "median_s", "p99_s", "slowdown", "steady_slowdown", "iteration_s")
    document = _rounded({name: getattr(job, name) for name in names})
    return {**document, "iterations": [len(repeat) for repeat in job.repeats]}


def _rounded(values: Mapping[str, object]) -> dict[str, object]:
    return {name: _round(value) for name, value in values.items()}


def _round(value: object) -> object:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, (list, tuple)):
        return [_round(each) for each in value]
    return value
