"""Statistics of runs: slowdowns over isolated jobs, percentiles, convergence, and settling after a change."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean, median

from bench.compare.results.runs import ISOLATED, ApproachRun, Change, JobRun
from mltcp.core.errors import MltcpError

CONVERGENCE_WINDOW = 5
CONVERGENCE_SLOWDOWN = 1.05
SETTLED_WINDOW = 5
SETTLED_SHARE = 0.05

Baseline = Mapping[str, float]
"""The mean isolated iteration time of each job, by name."""


@dataclass(frozen=True)
class Figures:
    """The figures of one run, or of one job in it; or medians of them over repeats.

    Every iteration counts alike. The *slowdown* of an iteration is its time over the job's isolated iteration time;
    without isolated runs all slowdowns are None. *Steady* figures cover the second half of each job's iterations,
    *converged* ones the iterations after convergence.

    Attributes:
        mean_s, median_s, p99_s: iteration times in seconds.
        slowdown, steady_slowdown: mean slowdowns.
        p99_slowdown, steady_p99_slowdown, converged_p99_slowdown: 99th percentiles of the slowdown.
        convergence_iterations: see :func:`convergence_iterations`, of the last job to converge; None: one never does.
        jct_s: mean job completion time.
        marks_per_iteration: packets that arrived with an ECN mark.
        retransmits_per_iteration: retransmitted segments.
        retransmits, ecn_marks, drops: totals of a run; None for one job.
        utilization, sole_utilization: see :class:`bench.compare.results.runs.LinkTotals`.
    """

    mean_s: float
    median_s: float
    p99_s: float
    slowdown: float | None
    steady_slowdown: float | None
    p99_slowdown: float | None
    steady_p99_slowdown: float | None
    converged_p99_slowdown: float | None
    convergence_iterations: int | None
    jct_s: float
    marks_per_iteration: float
    retransmits_per_iteration: float
    retransmits: int | None = None
    ecn_marks: int | None = None
    drops: int | None = None
    utilization: float | None = None
    sole_utilization: float | None = None


_COUNTS = frozenset({"convergence_iterations", "retransmits", "ecn_marks", "drops"})
_NONE_IS_NEVER = frozenset({"convergence_iterations", "converged_p99_slowdown", "sole_utilization"})


@dataclass(frozen=True)
class Settling:
    """The time after a change until all iteration times stay within 5 % of their final value.

    Of the job that takes longest; None if one never settles.
    """

    iterations: int | None
    seconds: float | None


def percentile(values: Iterable[float], percent: float) -> float:
    """The percentile of the values, interpolated linearly between the two nearest ones."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def second_half(values: Sequence[float]) -> Sequence[float]:
    """The values from index ``len(values) // 2`` on; an odd count's middle value belongs to it."""
    return values[len(values) // 2 :]


def convergence_iterations(slowdowns: Sequence[float]) -> int | None:
    """The iteration from which on a job runs as if it were isolated, counted from 0, or None if there is none.

    It is the smallest k such that, from iteration k to the end of the run, every window of five iterations has a mean
    slowdown of at most 1.05. The windows look ahead: iterations before k do not count against it, and a single slow
    iteration after k counts for a fifth.
    """
    last = len(slowdowns) - CONVERGENCE_WINDOW
    for index in reversed(range(max(1, last + 1))):
        if fmean(slowdowns[index : index + CONVERGENCE_WINDOW]) > CONVERGENCE_SLOWDOWN:
            return index + 1 if index < last else None
    return 0


def paired_baselines(runs: Sequence[ApproachRun]) -> dict[int, Baseline]:
    """For each repeat that has an isolated run, the mean iteration time of each job in it."""
    return {
        run.repeat: {job.job: fmean(job.iteration_s) for job in run.jobs}
        for run in runs
        if run.approach == ISOLATED
    }


def pooled_baselines(runs: Sequence[ApproachRun]) -> dict[int, Baseline]:
    """The same baseline for every repeat: the median over all isolated runs; empty if there are none."""
    means: dict[str, list[float]] = {}
    for alone in paired_baselines(runs).values():
        for job, mean_s in alone.items():
            means.setdefault(job, []).append(mean_s)
    if not means:
        return {}
    pooled = {job: median(times) for job, times in means.items()}
    return {run.repeat: pooled for run in runs}


def slowdowns(run: ApproachRun, baseline: Baseline | None) -> list[list[float]]:
    """The slowdowns of each job's iterations; an empty list without a baseline.

    Raises:
        MltcpError: a job has no isolated run.
    """
    if not baseline:
        return []
    missing = [job.job for job in run.jobs if job.job not in baseline]
    if missing:
        raise MltcpError(
            f"policy {run.approach}: job {missing[0]} has no isolated run to compare with; "
            f"{', '.join(baseline)} have one"
        )
    return [[time_s / baseline[job.job] for time_s in job.iteration_s] for job in run.jobs]


def figures_of(run: ApproachRun, baseline: Baseline | None) -> Figures:
    """The figures of a run.

    Raises:
        MltcpError: a job has no isolated run.
    """
    figures = _iteration_figures(run.jobs, slowdowns(run, baseline))
    if run.link is None:
        return replace(figures, drops=run.drops)
    return replace(
        figures,
        retransmits=run.link.retransmits,
        ecn_marks=run.link.ecn_marks,
        drops=run.drops,
        utilization=run.link.utilization,
        sole_utilization=run.link.sole_utilization,
    )


def figures_of_job(run: ApproachRun, job: str, baseline: Baseline | None) -> Figures | None:
    """The figures of one job of a run; None if the job is not in it."""
    position = next((index for index, each in enumerate(run.jobs) if each.job == job), None)
    if position is None:
        return None
    slow = slowdowns(run, baseline)
    return _iteration_figures([run.jobs[position]], [slow[position]] if slow else [])


def together(figures: Sequence[Figures], pick: Callable[[Sequence[float]], float]) -> Figures:
    """Apply `pick` to each figure over several repeats; the median of an even number of counts is rounded up.

    "Never converged" counts as larger than any number; other figures that a repeat lacks are left out.
    """
    picked: dict[str, float | None] = {}
    for field in fields(Figures):
        values = [getattr(each, field.name) for each in figures]
        if field.name in _NONE_IS_NEVER:
            known = [math.inf if value is None else value for value in values]
        else:
            known = [value for value in values if value is not None]
        value = pick(known) if known else math.inf
        if math.isinf(value):
            picked[field.name] = None
        else:
            picked[field.name] = math.ceil(value) if field.name in _COUNTS else value
    return Figures(**picked)  # type: ignore[arg-type]


def settling_of(run: ApproachRun, change: Change) -> Settling | None:
    """The settling time of a run after the change; None if no job has an iteration that began after it.

    The steady state of a job is the median of the second half of its iterations from the change on. The job has settled
    at the first iteration from which on every window of five (or of all that are left) has a mean within 5 % of that.
    """
    changed = run.job(change.job)
    if changed is None or change.iteration >= len(changed.began_s):
        return None
    at_s = changed.began_s[change.iteration]
    found = [_settled(job, at_s) for job in run.jobs if job.began_s[-1] >= at_s]
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        return Settling(None, None)
    return Settling(max(count for count, _ in known), max(seconds for _, seconds in known))


def settling_together(runs: Sequence[ApproachRun], change: Change) -> Settling | None:
    """The median settling time over the repeats; "never" counts as longer than any time."""
    found = [settled for run in runs if (settled := settling_of(run, change)) is not None]
    if not found:
        return None
    iterations = median(math.inf if each.iterations is None else each.iterations for each in found)
    seconds = median(math.inf if each.seconds is None else each.seconds for each in found)
    if math.isinf(iterations) or math.isinf(seconds):
        return Settling(None, None)
    return Settling(math.ceil(iterations), seconds)


def _iteration_figures(jobs: Sequence[JobRun], slow: Sequence[Sequence[float]]) -> Figures:
    times = [time_s for job in jobs for time_s in job.iteration_s]
    every = [value for job in slow for value in job]
    steady = [value for job in slow for value in second_half(job)]
    converged = _last_to_converge(slow)
    after = [value for job in slow for value in job[converged:]] if converged is not None else []
    return Figures(
        mean_s=fmean(times),
        median_s=median(times),
        p99_s=percentile(times, 99),
        slowdown=fmean(every) if every else None,
        steady_slowdown=fmean(steady) if steady else None,
        p99_slowdown=percentile(every, 99) if every else None,
        steady_p99_slowdown=percentile(steady, 99) if steady else None,
        converged_p99_slowdown=percentile(after, 99) if after else None,
        convergence_iterations=converged,
        jct_s=fmean(job.jct_s for job in jobs),
        marks_per_iteration=sum(job.marks for job in jobs) / len(times),
        retransmits_per_iteration=sum(job.retransmits for job in jobs) / len(times),
    )


def _last_to_converge(slow: Sequence[Sequence[float]]) -> int | None:
    indices = [convergence_iterations(job) for job in slow]
    known = [index for index in indices if index is not None]
    return max(known) if known and len(known) == len(indices) else None


def _settled(job: JobRun, at_s: float) -> tuple[int, float] | None:
    """The number of iterations and seconds from `at_s` until the job has settled; None if it does not."""
    first = next(index for index, began_s in enumerate(job.began_s) if began_s >= at_s)
    times = job.iteration_s[first:]
    steady = median(second_half(times))
    settled = len(times)
    for index in reversed(range(max(1, len(times) - SETTLED_WINDOW + 1))):
        if abs(fmean(times[index : index + SETTLED_WINDOW]) / steady - 1) > SETTLED_SHARE:
            break
        settled = index
    # The last window alone proves nothing: the steady state was computed from it.
    if settled == len(times) or (settled > len(times) // 2 and len(times) > 2 * SETTLED_WINDOW):
        return None
    return settled, job.began_s[first + settled] - at_s
