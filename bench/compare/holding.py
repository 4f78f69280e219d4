"""Sweeps of the same job several times with different periods: held apart, slipped through each other, or collided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from statistics import fmean
from typing import Any, TextIO

from rich.box import HORIZONTALS
from rich.console import Console
from rich.table import Table

from bench.compare.contest import Contest
from bench.compare.results.figures import Baseline, pooled_baselines, second_half, slowdowns
from bench.compare.results.runs import ISOLATED, ApproachRun, JobRun, Measured
from bench.lab.processors import BUSY
from bench.workloads.profile import Profile, default_fraction, fit
from mltcp.core.errors import MltcpError, UsageError

MISMATCH = "mismatch"
"""The key under which a contest's setting has its mismatch."""

MOST_JOBS = 4
LARGEST_MISMATCH = 0.5


@dataclass(frozen=True)
class HoldingSweep:
    """A job, how many of it share the link, and the mismatches of their periods.

    Attributes:
        profile: of the job; it is scaled to the link, and all of its buckets follow the computation.
        jobs: how many of it.
        mismatches: job number k (from 0) computes for k times this share of the period longer.
        fraction: share of the link that each job needs alone; default: 0.86 over the number of jobs.

    Raises:
        UsageError: a value is out of range.
    """

    profile: Profile
    jobs: int
    mismatches: tuple[float, ...]
    fraction: float | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.jobs <= MOST_JOBS:
            raise UsageError(f"--jobs: expected 2 to {MOST_JOBS}, got {self.jobs}")
        if not self.mismatches:
            raise UsageError("--mismatch: expected one or more percentages, such as 0,1,3, got none")
        for mismatch in self.mismatches:
            if not 0 <= mismatch <= LARGEST_MISMATCH:
                raise UsageError(
                    f"--mismatch: expected 0 to {100 * LARGEST_MISMATCH:g} (percent), got {100 * mismatch:g}"
                )

    def contests(self, template: Contest) -> list[Contest]:
        """A contest for each mismatch, with the approaches, the link and the lengths of the template."""
        return [self._contest(mismatch, template) for mismatch in self.mismatches]

    def _contest(self, mismatch: float, template: Contest) -> Contest:
        works = self.works(mismatch, template.link.rate_bps, template.ranks)
        return replace(
            template,
            jobs=tuple((f"{self.profile.name}-{number + 1}", work) for number, work in enumerate(works)),
            name=f"periods {100 * mismatch:g} % apart",
            setting={**template.setting, MISMATCH: mismatch},
        )

    def works(self, mismatch: float, rate_bps: float, ranks: int) -> list[Profile]:
        """The jobs' iterations on a link of this rate."""
        profile = self.profile.without_overlap()
        fraction = default_fraction(self.jobs) if self.fraction is None else self.fraction
        scale = fit([profile], rate_bps, ranks, fraction)
        shortest = profile.scaled(scale.time, scale.bytes)
        period_s = shortest.isolated_iteration_s(rate_bps, ranks)
        return [
            replace(
                shortest,
                name=f"{profile.name} + {100 * number * mismatch:g} %",
                forward_s=shortest.forward_s + number * mismatch * period_s,
            )
            for number in range(self.jobs)
        ]


def held_slowdown(mismatch: float, jobs: int) -> float:
    """The mean slowdown of jobs that all take the longest period: what no law can be below while it holds them."""
    periods = [1 + number * mismatch for number in range(jobs)]
    return sum(max(periods) / period for period in periods) / jobs


def parse_mismatches(text: str) -> tuple[float, ...]:
    """The mismatches of a list of percentages, such as 0,1,3. Raises UsageError if one is no number."""
    try:
        return tuple(float(part) / 100 for part in text.split(",") if part)
    except ValueError:
        raise UsageError(f"--mismatch: expected percentages such as 0,1,3, got {text!r}") from None


def mismatch_of(setting: Mapping[str, object], where: str) -> float:
    """The mismatch of a measured setting. Raises UsageError if it is not of a sweep."""
    value = setting.get(MISMATCH)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{where}: expected a result of mltcp-bench holding, got another one")
    return float(value)


LOCKED_SHARE = 0.25
"""Jobs are locked if their periods differ by at most this share of the mismatch (or of `SMALLEST`)."""

SMALLEST = 0.01
TOLERANCE = 0.03
"""Locked jobs that are slower than the bound by more than this collide."""


class HoldingOutcome(StrEnum):
    """The second half of a run."""

    HELD = "held"
    """All jobs take the same period, and are at most 3 % slower than that makes them."""
    SLIPPED = "slipped"
    """Their periods differ: they pass through each other again and again."""
    COLLIDED = "collided"
    """They take the same period, but send at the same time."""


@dataclass(frozen=True)
class HoldingRun:
    """One run of a sweep.

    Attributes:
        approach: the policy.
        repeat: counted from 0.
        mismatch: of the periods.
        outcome: of the second half.
        slowdown: mean over all iterations, over isolated jobs.
        second_half: the same over the second half of each job's iterations.
        period_difference: the largest period of a job over the smallest, less 1, in the second half.
        marks: ECN marks an iteration.
        other_load: share of the processors that other programs used; None: not measured.
    """

    approach: str
    repeat: int
    mismatch: float
    outcome: HoldingOutcome
    slowdown: float
    second_half: float
    period_difference: float
    marks: float
    other_load: float | None = None


def holding_run(run: ApproachRun, baseline: Baseline, mismatch: float) -> HoldingRun:
    """Classify a run.

    Raises:
        MltcpError: a job has no isolated run, or too few iterations to have a period.
    """
    slow = slowdowns(run, baseline)
    steady = fmean([value for job in slow for value in second_half(job)])
    difference = _period_difference(run.jobs)
    return HoldingRun(
        approach=run.approach,
        repeat=run.repeat,
        mismatch=mismatch,
        outcome=_outcome(difference, steady, mismatch, len(run.jobs)),
        slowdown=fmean([value for job in slow for value in job]),
        second_half=steady,
        period_difference=difference,
        marks=sum(job.marks for job in run.jobs) / sum(len(job.iteration_s) for job in run.jobs),
        other_load=run.other_load,
    )


def _outcome(difference: float, steady: float, mismatch: float, jobs: int) -> HoldingOutcome:
    if difference > LOCKED_SHARE * max(SMALLEST, (jobs - 1) * mismatch):
        return HoldingOutcome.SLIPPED
    return (
        HoldingOutcome.HELD
        if steady <= held_slowdown(mismatch, jobs) + TOLERANCE
        else HoldingOutcome.COLLIDED
    )


def _period_difference(jobs: Sequence[JobRun]) -> float:
    periods = [_period_s(job) for job in jobs]
    return max(periods) / min(periods) - 1


def _period_s(job: JobRun) -> float:
    """The mean time from one start to the next, in the second half."""
    began = second_half(job.began_s)
    if len(began) < 3:
        raise MltcpError(f"job {job.job}: expected 5 or more iterations, got {len(job.began_s)}")
    return (began[-1] - began[0]) / (len(began) - 1)


SCHEMA = "mltcp-bench/holding/1"


@dataclass(frozen=True)
class HoldingCell:
    """One policy at one mismatch: its runs in the order of the repeats."""

    approach: str
    mismatch: float
    runs: tuple[HoldingRun, ...]

    def count(self, outcome: HoldingOutcome) -> int:
        """The number of runs with this outcome."""
        return sum(run.outcome is outcome for run in self.runs)


@dataclass(frozen=True)
class HoldingResult:
    """A sweep.

    Attributes:
        jobs: how many share the link.
        cells: by mismatch, then in the order of the policies.
        setting: the conditions that all mismatches share.
    """

    jobs: int
    cells: tuple[HoldingCell, ...]
    setting: dict[str, Any]

    @property
    def approaches(self) -> list[str]:
        """The policies, in order."""
        return list(dict.fromkeys(cell.approach for cell in self.cells))

    @property
    def mismatches(self) -> list[float]:
        """The mismatches, in order."""
        return list(dict.fromkeys(cell.mismatch for cell in self.cells))

    def cell(self, approach: str, mismatch: float) -> HoldingCell:
        """The runs of a policy at a mismatch."""
        return next(one for one in self.cells if (one.approach, one.mismatch) == (approach, mismatch))


def holding_result(measured: Sequence[Measured]) -> HoldingResult:
    """Classify every run of a sweep, over the median of all isolated runs of its mismatch.

    Raises:
        UsageError: a measurement is not of a sweep.
        MltcpError: a job has no isolated run.
    """
    cells: list[HoldingCell] = []
    for one in measured:
        mismatch = mismatch_of(one.setting, one.name)
        baselines = pooled_baselines(one.runs)
        contended = [run for run in one.runs if run.approach != ISOLATED]
        for approach in dict.fromkeys(run.approach for run in contended):
            runs = [run for run in contended if run.approach == approach]
            found = tuple(holding_run(run, baselines.get(run.repeat, {}), mismatch) for run in runs)
            cells.append(HoldingCell(approach, mismatch, found))
    first = measured[0]
    jobs = max(len(run.jobs) for run in first.runs)
    return HoldingResult(jobs, tuple(cells), {k: v for k, v in first.setting.items() if k != MISMATCH})


def document(result: HoldingResult) -> dict[str, Any]:
    """The result as a JSON document."""
    return {
        "schema": SCHEMA,
        "jobs": result.jobs,
        "setting": result.setting,
        "mismatches": [
            {
                "mismatch": mismatch,
                "bound": round(held_slowdown(mismatch, result.jobs), 6),
                "policies": [_policy(result.cell(approach, mismatch)) for approach in result.approaches],
            }
            for mismatch in result.mismatches
        ],
    }


def _policy(cell: HoldingCell) -> dict[str, Any]:
    return {
        "policy": cell.approach,
        **{outcome.value: cell.count(outcome) for outcome in HoldingOutcome},
        "repeats": [
            {k: v for k, v in asdict(run).items() if k not in ("approach", "mismatch")} for run in cell.runs
        ],
    }


_SIGNS = {HoldingOutcome.HELD: "", HoldingOutcome.SLIPPED: " s", HoldingOutcome.COLLIDED: " c"}
_WIDE = 200


def print_table(result: HoldingResult, file: TextIO | None = None) -> None:
    """Print, for each mismatch and policy, the second-half slowdown of every repeat, and how many were held."""
    console = Console(file=file, highlight=False)
    if not console.is_terminal:
        console = Console(file=file, highlight=False, width=_WIDE, no_color=True)
    table = Table(box=HORIZONTALS if console.is_terminal else None)
    for title in ("mismatch", "bound", "policy", "held", "slowdown of the second half, every repeat"):
        table.add_column(title)
    for cell in result.cells:
        values = sorted(cell.runs, key=lambda run: run.second_half)
        table.add_row(
            f"{100 * cell.mismatch:g} %",
            f"{held_slowdown(cell.mismatch, result.jobs):.3f}",
            cell.approach,
            f"{cell.count(HoldingOutcome.HELD)} of {len(cell.runs)}",
            "  ".join(f"{run.second_half:.3f}{_SIGNS[run.outcome]}" for run in values),
        )
    console.print(table)
    console.print("s: the jobs slip through each other; c: they collide; bound: all take the longest period")
    for cell in result.cells:
        for run in cell.runs:
            if run.other_load is not None and run.other_load > BUSY:
                console.print(
                    f"! other programs used {run.other_load:.0%} of the processors during: {cell.approach}, "
                    f"{100 * cell.mismatch:g} %, repeat {run.repeat + 1}"
                )
