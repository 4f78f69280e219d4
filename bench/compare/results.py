"""What a `mltcp-bench compare` run measured, the figures computed from it, and its JSON document.

Everything that was measured is in *runs*: one approach once over one set of jobs. Every figure is computed for each
repeat by itself, against the isolated run of the same repeat; an approach's figure is the median over its repeats, its
spread the smallest and the largest of them. Without an ``isolated`` approach in the run, every slowdown is None.

The document holds the runs and the figures; :func:`from_document` reads the former and computes the latter anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from statistics import fmean, median

from bench.compare.contend_results import ISOLATED, percentile, second_half
from mltcp.core.errors import MltcpError, UsageError

SCHEMA = 1
SETTLED_WINDOW = 5
SETTLED_SHARE = 0.05

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class JobRun:
    """One job in one repeat of one approach; times in seconds from the run's start.

    Attributes:
        job: its name.
        control: the congestion control that its connections used.
        iteration_s: how long each iteration took, in order.
        began_s: when each began.
        arrival_s: when it was submitted.
        ended_s: when its last iteration was over.
        marks: packets of its that arrived with an ECN mark.
        retransmits: segments that it sent again.
        servers: where its workers were, where servers were chosen.
    """

    job: str
    control: str
    iteration_s: tuple[float, ...]
    began_s: tuple[float, ...]
    arrival_s: float
    ended_s: float
    marks: int
    retransmits: int
    servers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.iteration_s or len(self.iteration_s) != len(self.began_s):
            raise MltcpError(
                f"job {self.job}: {len(self.iteration_s)} times of {len(self.began_s)} iterations; one or more of each"
            )
        if not all(0 < time_s < math.inf for time_s in self.iteration_s):
            raise MltcpError(f"job {self.job}: iteration times must be positive and finite")

    @property
    def jct_s(self) -> float:
        """The job's completion time: from its arrival on."""
        return self.ended_s - self.arrival_s


@dataclass(frozen=True)
class LinkExcerpt:
    """Who used a link during a part of a run: bytes of each job in consecutive bins."""

    link: str
    rate_bps: int
    from_s: float
    bin_s: float
    job_bytes: Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Shift:
    """A job was held back: by how much, and when (seconds from the run's start)."""

    job: str
    at_s: float
    delay_s: float


@dataclass(frozen=True)
class ApproachRun:
    """One approach, once, over one set.

    Attributes:
        approach: its name.
        repeat: counted from 0.
        jobs: what each did.
        decisions_s: what each decision of a scheduler, a placement or Cassini took.
        drops: packets that found a link's queue full.
        link_use: excerpts, of the busiest link, of the beginning and of the end.
        shifts: by which jobs were moved in time.
    """

    approach: str
    repeat: int
    jobs: tuple[JobRun, ...]
    decisions_s: tuple[float, ...] = ()
    drops: int = 0
    link_use: tuple[LinkExcerpt, ...] = ()
    shifts: tuple[Shift, ...] = ()

    def __post_init__(self) -> None:
        names = [job.job for job in self.jobs]
        if not names or len(set(names)) != len(names):
            raise MltcpError(f"approach {self.approach}: jobs must have names of their own, not {names}")

    def job(self, name: str) -> JobRun | None:
        """What the job of that name did; None if it was not there."""
        return next((job for job in self.jobs if job.job == name), None)


@dataclass(frozen=True)
class Change:
    """From which iteration on which job had another compute time, and by which factor."""

    job: str
    iteration: int
    factor: float


@dataclass(frozen=True)
class Measured:
    """A set of jobs, and what was measured of it.

    Attributes:
        name: of the set.
        setting: the link or the cluster, the scale and whatever else it was measured with.
        runs: in the order in which they were made.
        score: the compatibility score of all jobs on one link (Table 4.1); None where they share no single link.
        change: in mid-run, if any.
    """

    name: str
    setting: Mapping[str, Scalar]
    runs: tuple[ApproachRun, ...]
    score: float | None = None
    change: Change | None = None


@dataclass(frozen=True)
class Figures:
    """The figures of one repeat, of all of its jobs or of one of them; `figures_of` says what each one means."""

    mean_s: float
    p99_s: float
    slowdown: float | None
    steady_slowdown: float | None
    p99_slowdown: float | None
    jct_s: float
    marks_per_iteration: float
    retransmits_per_iteration: float


@dataclass(frozen=True)
class Settling:
    """After a change: how long until all iteration times stay within 5 % of what they come to in the end.

    None where that is never; of the job that takes longest.
    """

    iterations: int | None
    seconds: float | None


@dataclass(frozen=True)
class JobResult:
    """One job under one approach: medians over the repeats, and the smallest and largest."""

    job: str
    figures: Figures
    lowest: Figures
    highest: Figures


@dataclass(frozen=True)
class ApproachResult:
    """One approach over one set: medians over repeats, spread, jobs and runs.

    `makespan_s` is until the last job has ended, `decision_s` the median of a single decision (None: none was made).
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
    def iteration_s(self) -> tuple[float, ...]:
        """The times of all iterations of all jobs in all repeats."""
        return tuple(t for run in self.runs for job in run.jobs for t in job.iteration_s)

    @property
    def middle_run(self) -> ApproachRun:
        """The repeat whose mean iteration time is the median of all; the longer of two in the middle."""
        by_time = sorted(self.runs, key=lambda run: fmean(t for job in run.jobs for t in job.iteration_s))
        return by_time[len(by_time) // 2]


@dataclass(frozen=True)
class SetResult:
    """One set under every approach."""

    measured: Measured
    approaches: tuple[ApproachResult, ...]

    @property
    def name(self) -> str:
        """Of the set."""
        return self.measured.name

    def approach(self, name: str) -> ApproachResult | None:
        """The result of the approach of that name, or None if it was not run."""
        return next((each for each in self.approaches if each.approach == name), None)


@dataclass(frozen=True)
class CompareResult:
    """What a comparison found out: its sets in order."""

    sets: tuple[SetResult, ...] = field(default_factory=tuple)

    @property
    def approaches(self) -> tuple[str, ...]:
        """The names of all approaches, in the order in which they came first."""
        return tuple(dict.fromkeys(each.approach for one in self.sets for each in one.approaches))


Yardstick = Mapping[str, float]
"""Of each job by name: its mean iteration time alone, in the same repeat."""


def compare_result(measured: Sequence[Measured]) -> CompareResult:
    """Compute every figure.

    Raises:
        MltcpError: isolated jobs were run in some repeat, but not every job of the other approaches.
    """
    return CompareResult(tuple(_set_result(each) for each in measured))


def yardsticks(runs: Sequence[ApproachRun]) -> dict[int, dict[str, float]]:
    """Of each repeat that has isolated runs, each job's mean iteration time alone."""
    return {
        run.repeat: {job.job: fmean(job.iteration_s) for job in run.jobs}
        for run in runs
        if run.approach == ISOLATED
    }


def figures_of(jobs: Sequence[JobRun], yardstick: Yardstick | None) -> Figures:
    """The figures of some jobs of one run together, all of their iterations counting alike.

    ``slowdown`` is the mean of iteration times over the job's isolated one, ``p99_slowdown`` their 99th percentile,
    ``steady_slowdown`` the mean over the second half of each job's iterations; ``jct_s`` is the mean over jobs.
    """
    times = [time_s for job in jobs for time_s in job.iteration_s]
    slow, steady = _slowdowns(jobs, yardstick)
    return Figures(
        mean_s=fmean(times),
        p99_s=percentile(times, 99),
        slowdown=fmean(slow) if slow else None,
        steady_slowdown=fmean(steady) if steady else None,
        p99_slowdown=percentile(slow, 99) if slow else None,
        jct_s=fmean(job.jct_s for job in jobs),
        marks_per_iteration=sum(job.marks for job in jobs) / len(times),
        retransmits_per_iteration=sum(job.retransmits for job in jobs) / len(times),
    )


def settling_of(run: ApproachRun, change: Change) -> Settling | None:
    """How long this run took to settle after the change; None if no job has an iteration that began after it.

    The steady state of a job is the median of the second half of its iterations from the change on. It has settled at
    the first iteration from which on every window of five (or of all that are left) has a mean within 5 % of that.
    """
    changed = run.job(change.job)
    if changed is None or change.iteration >= len(changed.began_s):
        return None
    at_s = changed.began_s[change.iteration]
    found = [_settled(job, at_s) for job in run.jobs if job.began_s[-1] >= at_s]
    if any(each is None for each in found):
        return Settling(None, None)
    known = [each for each in found if each is not None]
    return Settling(max(count for count, _ in known), max(seconds for _, seconds in known))


def to_document(result: CompareResult) -> dict[str, object]:
    """The JSON document of schema 1; times in seconds, rounded to microseconds."""
    return {"schema": SCHEMA, "sets": [_set_document(each) for each in result.sets]}


def from_document(document: object) -> CompareResult:
    """The result in such a document, its figures computed anew from its runs.

    Raises:
        UsageError: it is no such document; the message names the field.
    """
    if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
        raise UsageError(f"not a comparison: an object with schema {SCHEMA} is allowed")
    try:
        measured = [_measured(each) for each in document["sets"]]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"not a comparison: {type(error).__name__}: {error}") from None
    return compare_result(measured)


def _slowdowns(jobs: Sequence[JobRun], yardstick: Yardstick | None) -> tuple[list[float], list[float]]:
    """Over isolated: of all iterations, and of the second half of each job's."""
    if yardstick is None:
        return [], []
    for job in jobs:
        if job.job not in yardstick:
            raise MltcpError(
                f"job {job.job} has no isolated run to compare with; {', '.join(yardstick)} have one"
            )
    return (
        [time_s / yardstick[job.job] for job in jobs for time_s in job.iteration_s],
        [time_s / yardstick[job.job] for job in jobs for time_s in second_half(job.iteration_s)],
    )


def _set_result(measured: Measured) -> SetResult:
    alone = yardsticks(measured.runs)
    names = dict.fromkeys(run.approach for run in measured.runs)
    return SetResult(measured, tuple(_approach_result(name, measured, alone) for name in names))


def _approach_result(name: str, measured: Measured, alone: Mapping[int, Yardstick]) -> ApproachResult:
    runs = tuple(run for run in measured.runs if run.approach == name)
    each = [figures_of(run.jobs, alone.get(run.repeat)) for run in runs]
    jobs = dict.fromkeys(job.job for run in runs for job in run.jobs)
    decisions = [taken_s for run in runs for taken_s in run.decisions_s]
    return ApproachResult(
        approach=name,
        figures=_together(each, median),
        lowest=_together(each, min),
        highest=_together(each, max),
        jobs=tuple(_job_result(job, runs, alone) for job in jobs),
        makespan_s=median(max(job.ended_s for job in run.jobs) for run in runs),
        decision_s=median(decisions) if decisions else None,
        longest_decision_s=max(decisions, default=None),
        decisions=len(decisions),
        settling=None if measured.change is None or name == ISOLATED else _settling(runs, measured.change),
        runs=runs,
    )


def _job_result(name: str, runs: Sequence[ApproachRun], alone: Mapping[int, Yardstick]) -> JobResult:
    each = []
    for run in runs:
        job = run.job(name)
        if job is not None:
            each.append(figures_of([job], alone.get(run.repeat)))
    return JobResult(name, _together(each, median), _together(each, min), _together(each, max))


def _together(figures: Sequence[Figures], pick: Callable[[Sequence[float]], float]) -> Figures:
    """Apply `pick` to each figure; where a repeat lacks one, it is left out, and None is left of none."""
    picked: dict[str, float | None] = {}
    for each in fields(Figures):
        values = [getattr(one, each.name) for one in figures]
        known = [value for value in values if value is not None]
        picked[each.name] = pick(known) if known else None
    return Figures(**picked)  # type: ignore[arg-type]


def _settling(runs: Sequence[ApproachRun], change: Change) -> Settling | None:
    """The median over the repeats, in which "never" is longer than anything."""
    found = [settled for run in runs if (settled := settling_of(run, change)) is not None]
    if not found:
        return None
    iterations = median(math.inf if each.iterations is None else each.iterations for each in found)
    seconds = median(math.inf if each.seconds is None else each.seconds for each in found)
    if math.isinf(iterations) or math.isinf(seconds):
        return Settling(None, None)
    return Settling(math.ceil(iterations), seconds)


def _settled(job: JobRun, at_s: float) -> tuple[int, float] | None:
    """After how many iterations, and how many seconds, from `at_s` on the job has settled; None: it does not."""
    first = next(index for index, began_s in enumerate(job.began_s) if began_s >= at_s)
    times = job.iteration_s[first:]
    steady = median(second_half(times))
    settled = len(times)
    for index in reversed(range(max(1, len(times) - SETTLED_WINDOW + 1))):
        if abs(fmean(times[index : index + SETTLED_WINDOW]) / steady - 1) > SETTLED_SHARE:
            break
        settled = index
    # A single window at the end says nothing: it is what "steady" was taken from.
    if settled == len(times) or (settled > len(times) // 2 and len(times) > 2 * SETTLED_WINDOW):
        return None
    return settled, job.began_s[first + settled] - at_s


# -- the document ----------------------------------------------------------------------------------------------------


def _set_document(result: SetResult) -> dict[str, object]:
    measured = result.measured
    return {
        "name": measured.name,
        "setting": dict(measured.setting),
        "score": _round(measured.score),
        "change": None if measured.change is None else asdict(measured.change),
        "approaches": [_approach_document(each) for each in result.approaches],
        "runs": [_round(asdict(run)) for run in measured.runs],
    }


def _approach_document(result: ApproachResult) -> dict[str, object]:
    return {
        "approach": result.approach,
        "repeats": len(result.runs),
        **_figures_document(result),
        "makespan_s": _round(result.makespan_s),
        "decision_s": result.decision_s,
        "longest_decision_s": result.longest_decision_s,
        "decisions": result.decisions,
        "settling": None if result.settling is None else _round(asdict(result.settling)),
        "jobs": [{"job": job.job, **_figures_document(job)} for job in result.jobs],
    }


def _figures_document(result: ApproachResult | JobResult) -> dict[str, object]:
    low, high = asdict(result.lowest), asdict(result.highest)
    figures = {name: _round(value) for name, value in asdict(result.figures).items()}
    return {**figures, "spread": {name: _round([low[name], high[name]]) for name in figures}}


def _round(value: object) -> object:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, Mapping):
        return {name: _round(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_round(each) for each in value]
    return value


def _measured(document: Mapping[str, object]) -> Measured:
    known = dict(document)
    del known["approaches"]
    change = known.pop("change")
    runs = known.pop("runs")
    return Measured(
        **known,  # type: ignore[arg-type]
        runs=tuple(_run(each) for each in runs),  # type: ignore[attr-defined]
        change=None if change is None else Change(**change),  # type: ignore[arg-type]
    )


def _run(document: Mapping[str, object]) -> ApproachRun:
    known: dict[str, object] = dict(document)
    known["jobs"] = tuple(_job_run(each) for each in known["jobs"])  # type: ignore[attr-defined]
    known["decisions_s"] = tuple(known["decisions_s"])  # type: ignore[arg-type]
    known["link_use"] = tuple(LinkExcerpt(**each) for each in known["link_use"])  # type: ignore[attr-defined]
    known["shifts"] = tuple(Shift(**each) for each in known["shifts"])  # type: ignore[attr-defined]
    return ApproachRun(**known)  # type: ignore[arg-type]


def _job_run(document: Mapping[str, object]) -> JobRun:
    listed = {name: tuple(value) if isinstance(value, list) else value for name, value in document.items()}
    return JobRun(**listed)  # type: ignore[arg-type]
