"""The comparison of schedulers with and without Cassini, and its gain: ``mltcp-placement schedule``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar

import numpy as np

from mltcp.core.policy_names import Vocabulary
from placement.experiments.comparison import (
    Column,
    ComparisonWorkload,
    Drawn,
    PolicyComparison,
    TraceRun,
    pooled,
)
from placement.policies.schedulers.scheduling_policy import AUGMENTED, SCHEDULER_NAMES, scheduling_policy
from placement.simulator.fluid_executor import FluidSettings
from placement.simulator.scheduled_cluster import IDEAL, TraceOutcome, joined, run_trace
from placement.traces import sets
from placement.traces.poisson import dynamic, poisson
from placement.traces.sets import JobSet

THESIS = {
    ("poisson", "themis"): (1.6, 1.8),
    ("dynamic", "themis"): (1.5, 2.2),
    ("dynamic", "pollux"): (1.6, 2.5),
}
"""Gains of the mean and of the 99th percentile of iteration times that 4.5.2 and 4.5.3 report, by kind of trace."""

ALL = Vocabulary("scheduler", (*SCHEDULER_NAMES.names, IDEAL), shown=(*SCHEDULER_NAMES.shown, IDEAL))

_ITERATIONS = ("iteration_ns", "slowdown", "marked_bits")


@dataclass(frozen=True)
class SeededJobs:
    """Jobs, and the seed of their noise and of the scheduler's choices."""

    jobs: JobSet
    seed: int

    @property
    def name(self) -> str:
        """That of the jobs."""
        return self.jobs.name


@dataclass(frozen=True)
class PhasedMix:
    """The parameters of drawn traces of jobs with demand phases.

    Attributes:
        kind: ``poisson`` or ``dynamic``.
        jobs: of a Poisson trace.
        load: of a Poisson trace.
        gpus: of the cluster.
    """

    kind: str
    jobs: int
    load: float
    gpus: int

    def trace(self, seed: int) -> SeededJobs:
        """The trace of a seed."""
        if self.kind == "poisson":
            return SeededJobs(poisson(seed, jobs=self.jobs, load=self.load, gpus=self.gpus), seed)
        return SeededJobs(dynamic(seed, gpus=self.gpus), seed)


def traces_of(
    trace: str, seeds: Sequence[int], jobs: int, load: float, gpus: int
) -> tuple[Drawn | SeededJobs, ...]:
    """The traces of ``poisson`` or ``dynamic``, one a seed; of the name or file of a set of jobs, the same again.

    Raises:
        UsageError: there is no such set or file, or it holds something else.
    """
    if trace in ("poisson", "dynamic"):
        return tuple(Drawn(PhasedMix(trace, jobs, load, gpus), seed) for seed in seeds)
    given = sets.load(trace)
    return tuple(SeededJobs(given, seed) for seed in seeds)


def _all(name: str, form: str, unit: float = 1, percentile: float | None = None) -> Any:
    """A cell: the mean or a percentile over all iterations of all jobs of all traces; a dash where there are none."""

    def cell(runs: Sequence[TraceRun]) -> str:
        values = pooled(runs, name) / unit
        if not len(values):
            return "-"
        return format(values.mean() if percentile is None else np.percentile(values, percentile), form)

    return cell


def _listed(runs: Sequence[TraceRun], name: str) -> list[float]:
    return [value for run in runs for value in run[name]]


def _completion(runs: Sequence[TraceRun]) -> str:
    return f"{np.mean([job['completion_s'] for run in runs for job in run['jobs']]):.0f}"


def _score(runs: Sequence[TraceRun]) -> str:
    scores = _listed(runs, "scores")
    return f"{np.mean(scores):.3f}" if scores else "-"


def _decision(runs: Sequence[TraceRun]) -> str:
    decisions = _listed(runs, "decision_ns")
    return f"{np.median(decisions) / 1e6:.1f}" if decisions else "-"


@dataclass(frozen=True)
class PhasedJobs(ComparisonWorkload):
    """Jobs with demand phases in the fluid simulation.

    The values of a run are those of `TraceOutcome.document`, and of all iterations of all jobs together their times,
    slowdowns and marked bits, and of all decisions their times and scores.

    Attributes:
        settings: the cluster.
        lease_ns: of Themis, instead of its default.
    """

    settings: FluidSettings
    lease_ns: int | None = None

    shown: ClassVar[tuple[str, ...]] = (
        *("iteration_s", "slowdown", "marked_bits", "completion_s", "moved", "delayed", "decisions"),
        *("decision_ms", "score", "jobs"),
    )
    kept: ClassVar[tuple[str, ...]] = (
        *(f"every_{name}" for name in _ITERATIONS),
        "decision_ns",
        "scores",
        "mean_iteration_s",
    )
    compared = "mean_iteration_s"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("iteration\nmean (s)", _all("every_iteration_ns", ".3f", 1e9)),
        Column("\np99 (s)", _all("every_iteration_ns", ".3f", 1e9, 99)),
        Column("slowdown\nmean", _all("every_slowdown", ".3f")),
        Column("\np99", _all("every_slowdown", ".2f", 1, 99)),
        Column("marked\n(Gbit)", _all("every_marked_bits", ".2f", 1e9)),
        Column("JCT\nmean (s)", _completion),
        Column("\nmoves", lambda runs: str(sum(run["moved"] for run in runs))),
        Column("score\nmean", _score),
        Column("decision\nmedian (ms)", _decision),
    )

    def variants(self, policy: str) -> tuple[str, ...]:
        """See `ComparisonWorkload.variants`."""
        ALL.parse(policy)
        return (policy,)

    def run(self, trace: SeededJobs, policy: str) -> dict[str, Any]:
        """See `ComparisonWorkload.run`."""
        chosen = (
            None if policy == IDEAL else scheduling_policy(policy, seed=trace.seed, lease_ns=self.lease_ns)
        )
        return trace_values(run_trace(trace.jobs, self.settings, chosen, trace.seed))


def trace_values(outcome: TraceOutcome) -> dict[str, Any]:
    """The values of a run of `PhasedJobs`."""
    document = outcome.document()
    every = {name: joined([getattr(job, name) for job in outcome.jobs]) for name in _ITERATIONS}
    return {
        **{name: document[name] for name in PhasedJobs.shown},
        **{f"every_{name}": values[~np.isnan(values)].tolist() for name, values in every.items()},
        "decision_ns": list(outcome.decision_ns),
        "scores": list(outcome.scores),
        "mean_iteration_s": document["iteration_s"]["mean"],
    }


# -- the gain of Cassini -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gain:
    """The gain of Cassini for a scheduler: its iteration times alone over those with Cassini, on the same traces.

    Attributes:
        scheduler: that was augmented.
        mean: the mean over traces of the ratio of their mean iteration times.
        p99: the same for the 99th percentiles.
        thesis: mean and p99 as the thesis reports them for this kind of trace; None if it does not.
    """

    scheduler: str
    mean: float
    p99: float
    thesis: tuple[float, float] | None

    def __str__(self) -> str:
        thesis = f"; the thesis: {self.thesis[0]:g}x and {self.thesis[1]:g}x" if self.thesis else ""
        return f"{self.scheduler} over {self.scheduler}+cassini: mean {self.mean:.2f}x, p99 {self.p99:.2f}x{thesis}"

    def document(self) -> dict[str, Any]:
        """The entry of `gains` in the JSON document."""
        thesis = None if self.thesis is None else {"mean": self.thesis[0], "p99": self.thesis[1]}
        return {"scheduler": self.scheduler, "mean": self.mean, "p99": self.p99, "thesis": thesis}


def gains_of(comparison: PolicyComparison, trace: str) -> tuple[Gain, ...]:
    """The gain of each scheduler that ran alone and with Cassini, on traces of this kind."""
    found = []
    for name, runs in comparison.runs.items():
        if name + AUGMENTED in comparison.runs:
            pairs = [
                (alone["iteration_s"], with_it["iteration_s"])
                for alone, with_it in zip(runs, comparison.runs[name + AUGMENTED], strict=True)
            ]
            means, p99s = ([alone[of] / with_it[of] for alone, with_it in pairs] for of in ("mean", "p99"))
            found.append(Gain(name, fmean(means), fmean(p99s), THESIS.get((trace, name))))
    return tuple(found)
