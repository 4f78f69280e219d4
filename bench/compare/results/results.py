"""The results of a comparison: figures of each approach and job, computed from the measured runs.

Every figure is computed for each repeat separately; the figure of an approach is the median over its repeats, its
spread the smallest and the largest of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from bench.compare.results.figures import (
    Figures,
    Settling,
    Yardstick,
    figures_of,
    figures_of_job,
    paired_yardsticks,
    settling_together,
    together,
)
from bench.compare.results.runs import ISOLATED, ApproachRun, Measured
from bench.lab.processors import BUSY


@dataclass(frozen=True)
class JobResult:
    """One job under one approach: medians over the repeats, and the smallest and largest values."""

    job: str
    control: str
    figures: Figures
    lowest: Figures
    highest: Figures


@dataclass(frozen=True)
class ApproachResult:
    """One approach on one set of jobs: medians over repeats, spread, jobs and runs.

    Attributes:
        approach: its name.
        figures, lowest, highest: the median of each figure over the repeats, the smallest and the largest.
        jobs: the jobs of the set.
        makespan_s: until the last job has ended.
        decision_s: the median duration of a decision; None: none was made.
        longest_decision_s: the longest decision.
        decisions: their number in all repeats.
        settling: after the change, if there was one.
        runs: one for each repeat.
    """

    approach: str
    figures: Figures
    lowest: Figures
    highest: Figures
    jobs: tuple[JobResult, ...]
    makespan_s: float
    decision_s: float | None
    longest_decision_s: float | None
    decisions: int
    settling: Settling | None
    runs: tuple[ApproachRun, ...]

    @property
    def middle_run(self) -> ApproachRun:
        """The repeat whose mean iteration time is the median of all; the longer of two in the middle."""
        by_time = sorted(self.runs, key=_mean_iteration_s)
        return by_time[len(by_time) // 2]

    @property
    def compared(self) -> float:
        """The figure by which approaches are compared: the mean slowdown or, without isolated runs, the mean time."""
        return _compared(self.figures)

    @property
    def spread(self) -> tuple[float, float]:
        """The smallest and the largest value of that figure in a repeat."""
        return _compared(self.lowest), _compared(self.highest)


@dataclass(frozen=True)
class SetResult:
    """One set of jobs under every approach; `yardsticks` are the isolated times that each repeat is compared with."""

    measured: Measured
    approaches: tuple[ApproachResult, ...]
    yardsticks: Mapping[int, Yardstick]

    @property
    def name(self) -> str:
        """The name of the set."""
        return self.measured.name

    @property
    def contended(self) -> list[ApproachResult]:
        """The approaches under which jobs share the network: all but ``isolated``."""
        return [each for each in self.approaches if each.approach != ISOLATED]

    @property
    def disturbed(self) -> list[ApproachRun]:
        """The runs during which other programs used more than 5 % of the processors."""
        return [run for run in self.measured.runs if run.other_load is not None and run.other_load > BUSY]

    def approach(self, name: str) -> ApproachResult | None:
        """The result of the approach of that name, or None if it was not run."""
        return next((each for each in self.approaches if each.approach == name), None)


@dataclass(frozen=True)
class CompareResult:
    """The result of a comparison: its sets of jobs, in order."""

    sets: tuple[SetResult, ...] = ()

    @property
    def approaches(self) -> tuple[str, ...]:
        """The names of all approaches, in the order of their first set."""
        return tuple(dict.fromkeys(each.approach for one in self.sets for each in one.approaches))


def compare_result(measured: Sequence[Measured]) -> CompareResult:
    """Compute every figure, each repeat against the isolated run of the same repeat.

    Raises:
        MltcpError: isolated jobs were run in some repeat, but not every job of the other approaches.
    """
    return CompareResult(tuple(set_result(each) for each in measured))


def set_result(
    measured: Measured,
    yardsticks_of: Callable[[Sequence[ApproachRun]], Mapping[int, Yardstick]] = paired_yardsticks,
) -> SetResult:
    """Compute every figure of one set of jobs.

    Raises:
        MltcpError: isolated jobs were run, but not every job of the other approaches.
    """
    yardsticks = yardsticks_of(measured.runs)
    names = dict.fromkeys(run.approach for run in measured.runs)
    approaches = tuple(_approach_result(name, measured, yardsticks) for name in names)
    return SetResult(measured, approaches, yardsticks)


def _compared(figures: Figures) -> float:
    return figures.mean_s if figures.slowdown is None else figures.slowdown


def _mean_iteration_s(run: ApproachRun) -> float:
    return fmean(time_s for job in run.jobs for time_s in job.iteration_s)


def _approach_result(name: str, measured: Measured, yardsticks: Mapping[int, Yardstick]) -> ApproachResult:
    runs = tuple(run for run in measured.runs if run.approach == name)
    each = [figures_of(run, yardsticks.get(run.repeat)) for run in runs]
    jobs = {job.job: job.control for run in runs for job in run.jobs}
    decisions = [taken_s for run in runs for taken_s in run.decisions_s]
    change = measured.change
    return ApproachResult(
        approach=name,
        figures=together(each, median),
        lowest=together(each, min),
        highest=together(each, max),
        jobs=tuple(_job_result(job, control, runs, yardsticks) for job, control in jobs.items()),
        makespan_s=median(max(job.ended_s for job in run.jobs) for run in runs),
        decision_s=median(decisions) if decisions else None,
        longest_decision_s=max(decisions, default=None),
        decisions=len(decisions),
        settling=None if change is None or name == ISOLATED else settling_together(runs, change),
        runs=runs,
    )


def _job_result(
    name: str, control: str, runs: Sequence[ApproachRun], yardsticks: Mapping[int, Yardstick]
) -> JobResult:
    found = [figures_of_job(run, name, yardsticks.get(run.repeat)) for run in runs]
    each = [figures for figures in found if figures is not None]
    return JobResult(name, control, together(each, median), together(each, min), together(each, max))
