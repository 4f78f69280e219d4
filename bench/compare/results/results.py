"""The result of a comparison: its figures, and the JSON document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median

from bench.compare.results.figures import (
    Baseline,
    Figures,
    Settling,
    figures_of,
    figures_of_job,
    paired_baselines,
    settling_together,
    together,
)
from bench.compare.results.runs import (
    ISOLATED,
    ApproachRun,
    JobRun,
    Measured,
)
from bench.lab.processors import BUSY
from bench.plain_documents import made_of
from mltcp.core.errors import UsageError


@dataclass(frozen=True)
class JobFigures:
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
    jobs: tuple[JobFigures, ...]
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
    """One set of jobs under every approach; `baselines` are the isolated times that each repeat is compared with."""

    measured: Measured
    approaches: tuple[ApproachResult, ...]
    baselines: Mapping[int, Baseline]

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
    baselines_of: Callable[[Sequence[ApproachRun]], Mapping[int, Baseline]] = paired_baselines,
) -> SetResult:
    """Compute every figure of one set of jobs.

    Raises:
        MltcpError: isolated jobs were run, but not every job of the other approaches.
    """
    baselines = baselines_of(measured.runs)
    names = dict.fromkeys(run.approach for run in measured.runs)
    approaches = tuple(_approach_result(name, measured, baselines) for name in names)
    return SetResult(measured, approaches, baselines)


def _compared(figures: Figures) -> float:
    return figures.mean_s if figures.slowdown is None else figures.slowdown


def _mean_iteration_s(run: ApproachRun) -> float:
    return fmean(time_s for job in run.jobs for time_s in job.iteration_s)


def _approach_result(name: str, measured: Measured, baselines: Mapping[int, Baseline]) -> ApproachResult:
    runs = tuple(run for run in measured.runs if run.approach == name)
    each = [figures_of(run, baselines.get(run.repeat)) for run in runs]
    jobs = {job.job: job.control for run in runs for job in run.jobs}
    decisions = [taken_s for run in runs for taken_s in run.decisions_s]
    change = measured.change
    return ApproachResult(
        approach=name,
        figures=together(each, median),
        lowest=together(each, min),
        highest=together(each, max),
        jobs=tuple(_job_result(job, control, runs, baselines) for job, control in jobs.items()),
        makespan_s=median(max(job.ended_s for job in run.jobs) for run in runs),
        decision_s=median(decisions) if decisions else None,
        longest_decision_s=max(decisions, default=None),
        decisions=len(decisions),
        settling=None if change is None or name == ISOLATED else settling_together(runs, change),
        runs=runs,
    )


def _job_result(
    name: str, control: str, runs: Sequence[ApproachRun], baselines: Mapping[int, Baseline]
) -> JobFigures:
    found = [figures_of_job(run, name, baselines.get(run.repeat)) for run in runs]
    each = [figures for figures in found if figures is not None]
    return JobFigures(name, control, together(each, median), together(each, min), together(each, max))


SCHEMA = 1

_COMPARE_FIGURES = (
    "mean_s",
    "p99_s",
    "slowdown",
    "steady_slowdown",
    "p99_slowdown",
    "jct_s",
    "marks_per_iteration",
    "retransmits_per_iteration",
)
_CONTEND_FIGURES = {
    "mean_slowdown": "slowdown",
    "steady_slowdown": "steady_slowdown",
    "p99_slowdown": "p99_slowdown",
    "steady_p99_slowdown": "steady_p99_slowdown",
    "converged_p99_slowdown": "converged_p99_slowdown",
    "convergence_iterations": "convergence_iterations",
    "retransmits": "retransmits",
    "ecn_marks": "ecn_marks",
    "drops": "drops",
    "utilization": "utilization",
    "sole_utilization": "sole_utilization",
}
_CONTEND_JOB_FIGURES = ("mean_s", "median_s", "p99_s", "slowdown", "steady_slowdown")


def compare_document(result: CompareResult) -> dict[str, object]:
    """The document of a comparison."""
    return {"schema": SCHEMA, "sets": [_set_document(each) for each in result.sets]}


def from_document(document: object) -> CompareResult:
    """The result in the document of a comparison, its figures computed anew from its runs.

    Raises:
        UsageError: it is no such document; the message names the field.
    """
    if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
        raise UsageError(f"not a comparison: expected an object with schema {SCHEMA}")
    try:
        measured = [
            made_of(Measured, {name: value for name, value in each.items() if name != "approaches"})
            for each in document["sets"]
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"not a comparison: {type(error).__name__}: {error}") from None
    return compare_result(measured)


def contend_document(result: SetResult) -> dict[str, object]:
    """The document of jobs that share one link.

    A job's ``iteration_s`` lists all repeats one after the other; ``iterations`` says how many each one has.
    ``other_load`` has a value for each repeat.
    """
    isolated_s = next(iter(result.baselines.values()), {})
    return {
        "schema": SCHEMA,
        "link": dict(result.measured.setting),
        **_hosts_document(result.measured),
        "isolated_s": _round(isolated_s),
        "policies": [_policy_document(each) for each in result.approaches],
    }


def _set_document(result: SetResult) -> dict[str, object]:
    measured = result.measured
    return {
        "name": measured.name,
        "setting": dict(measured.setting),
        "score": _round(measured.score),
        "change": None if measured.change is None else asdict(measured.change),
        **_hosts_document(measured),
        "approaches": [_approach_document(each) for each in result.approaches],
        "runs": [_run_document(run) for run in measured.runs],
    }


def _hosts_document(measured: Measured) -> dict[str, object]:
    """The facts of real hosts; nothing for a lab."""
    return {"hosts": _round([asdict(host) for host in measured.hosts])} if measured.hosts else {}


def _run_document(run: ApproachRun) -> object:
    document = asdict(run)
    del document["link"]
    for job in document["jobs"]:
        if job["parameters_sha256"] is None:
            del job["losses"], job["parameters_sha256"]
        if job["ideal_s"] is None:
            del job["ideal_s"]
    if not run.hosts:
        del document["hosts"]
    return _round(document)


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


def _policy_document(result: ApproachResult) -> dict[str, object]:
    return {
        "policy": result.approach,
        **_figures_document(result, _CONTEND_FIGURES),
        "repeats": len(result.runs),
        "other_load": _round([run.other_load for run in result.runs]),
        **_host_uses_document(result),
        "jobs": [_contend_job_document(result, job) for job in result.jobs],
    }


def _host_uses_document(result: ApproachResult) -> dict[str, object]:
    """The counters of real hosts, a list for each repeat; nothing for a lab."""
    uses = [[_round(asdict(use)) for use in run.hosts] for run in result.runs]
    return {"hosts": uses} if any(uses) else {}


def _contend_job_document(result: ApproachResult, job: JobFigures) -> dict[str, object]:
    runs = [each for run in result.runs for each in run.jobs if each.job == job.job]
    repeats = [each.iteration_s for each in runs]
    return {
        "job": job.job,
        "cc": job.control,
        **{name: _round(getattr(job.figures, name)) for name in _CONTEND_JOB_FIGURES},
        "iteration_s": _round([time_s for times in repeats for time_s in times]),
        "iterations": [len(times) for times in repeats],
        **_training_document(runs),
    }


def _training_document(runs: Sequence[JobRun]) -> dict[str, object]:
    """The losses and parameters of a training, the same in all repeats; nothing for a replay."""
    if runs[0].parameters_sha256 is None:
        return {}
    return {"losses": list(runs[0].losses), "parameters_sha256": runs[0].parameters_sha256}


def _figures_document(
    result: ApproachResult | JobFigures, names: Mapping[str, str] | None = None
) -> dict[str, object]:
    """The figures and their spread; `names` maps the fields of the document to attributes of Figures."""
    names = names or {name: name for name in _COMPARE_FIGURES}
    figures = {name: _round(getattr(result.figures, source)) for name, source in names.items()}
    spread = {
        name: _round([getattr(result.lowest, source), getattr(result.highest, source)])
        for name, source in names.items()
    }
    return {**figures, "spread": spread}


def _round(value: object) -> object:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, Mapping):
        return {name: _round(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_round(each) for each in value]
    return value
