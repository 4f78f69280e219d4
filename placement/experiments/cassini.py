"""The comparison of schedulers with and without Cassini, and its gain: ``mltcp-placement schedule``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, ClassVar, Self

import numpy as np

from mltcp.core.policy_names import CASSINI, Vocabulary, split_name
from mltcp.core.quantities import parse_number
from placement.experiments.comparison import (
    Column,
    ComparisonWorkload,
    Drawn,
    PolicyComparison,
    TraceRun,
    pooled,
)
from placement.experiments.network import MOST_ITERATIONS
from placement.experiments.statistics import half_interval
from placement.experiments.thesis_traces import ModelMix, dynamic, poisson
from placement.policies.schedulers.scheduling_policy import SCHEDULER_NAMES, plain_name, scheduling_policy
from placement.simulator.fluid_executor import FluidSettings
from placement.simulator.network.topologies import key_values, whole_number
from placement.simulator.scheduled_cluster import IDEAL, TraceOutcome, joined, run_trace
from placement.traces import sets
from placement.traces.sets import JobSet

THESIS = {
    ("poisson", "themis"): (1.6, 1.8),
    ("dynamic", "themis"): (1.5, 2.2),
    ("dynamic", "pollux"): (1.6, 2.5),
}
"""Gains of the mean and of the 99th percentile of iteration times that 4.5.2 and 4.5.3 report, by kind of trace."""

ALL = Vocabulary("scheduler", (*SCHEDULER_NAMES.names, IDEAL), shown=(*SCHEDULER_NAMES.shown, IDEAL))

_ITERATIONS = ("iteration_ns", "slowdown", "marked_bits", "ended_ns")


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
        mix: what the jobs train, and how long.
    """

    kind: str
    jobs: int
    load: float
    gpus: int
    mix: ModelMix = field(default_factory=ModelMix)

    @classmethod
    def parse(cls, text: str, gpus: int) -> Self | None:
        """The traces that a text such as ``poisson:jobs=20,load=0.8,models=VGG16+BERT`` describes; None: no such kind.

        Raises:
            UsageError: an unknown key, or a value out of range.
        """
        kind, _, rest = text.partition(":")
        if kind not in _KEYS:
            return None
        values = key_values(rest, _KEYS[kind], f"--trace {kind}")
        return cls(kind, *jobs_and_load(values), gpus, _mix(values))

    def trace(self, seed: int) -> SeededJobs:
        """The trace of a seed."""
        if self.kind == "poisson":
            drawn = poisson(seed, jobs=self.jobs, load=self.load, gpus=self.gpus, mix=self.mix)
            return SeededJobs(drawn, seed)
        return SeededJobs(dynamic(seed, gpus=self.gpus, mix=self.mix), seed)


_KEYS = {
    "poisson": ("jobs", "load", "iterations", "models", "compute"),
    "dynamic": ("iterations", "models", "compute"),
}


def jobs_and_load(values: Mapping[str, str]) -> tuple[int, float]:
    """The number of jobs and the load of a drawn trace's values, or their defaults.

    Raises:
        UsageError: one is out of range.
    """
    jobs = whole_number(values.get("jobs", "60"), "--trace: jobs", 100_000)
    return jobs, parse_number(values.get("load", "0.9"), field="--trace: load", lowest=1e-3, highest=10)


def _mix(values: Mapping[str, str]) -> ModelMix:
    low, _, high = values.get("iterations", "200-1000").partition("-")
    bounds = [whole_number(each, "--trace: iterations", MOST_ITERATIONS) for each in (low, high or low)]
    compute = parse_number(values.get("compute", "1"), field="--trace: compute", lowest=1e-3, highest=1000)
    return ModelMix(tuple(values.get("models", "data+model").split("+")), (bounds[0], bounds[1]), compute)


def traces_of(
    trace: str, seeds: Sequence[int], jobs: int, load: float, gpus: int
) -> tuple[Drawn | SeededJobs, ...]:
    """The traces of ``poisson`` or ``dynamic``, one a seed; of the name or file of a set of jobs, the same again.

    Raises:
        UsageError: there is no such set or file, or it holds something else.
    """
    if trace in _KEYS:
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
    slowdowns, marked bits and ends, and of all decisions their times and scores.

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
        ALL.parse(plain_name(policy))
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
    """The gain of Cassini for a scheduler: its value alone over that with Cassini, on the same traces.

    Attributes:
        scheduler: that was augmented.
        policy: the scheduler with Cassini.
        ratios: by measure the mean ratio over traces, and half the width of its 95 % confidence interval (None for a
            single trace): of the mean and the 99th percentile of iteration times, and of completion times.
        thesis: of the first two as the thesis reports them for this kind of trace; None if it does not.
    """

    scheduler: str
    policy: str
    ratios: Mapping[str, tuple[float, float | None]]
    thesis: tuple[float, float] | None

    def __str__(self) -> str:
        thesis = f"; the thesis: {self.thesis[0]:g}x and {self.thesis[1]:g}x" if self.thesis else ""
        shown = ", ".join(f"{name} {_ratio(*ratio)}" for name, ratio in self.ratios.items())
        return f"{self.scheduler} over {self.policy}: {shown}{thesis}"

    def document(self) -> dict[str, Any]:
        """The entry of `gains` in the JSON document."""
        thesis = None if self.thesis is None else {"mean": self.thesis[0], "p99": self.thesis[1]}
        ratios = {name.replace(" ", "_"): mean for name, (mean, _) in self.ratios.items()}
        halves = {name.replace(" ", "_"): half for name, (_, half) in self.ratios.items()}
        return {
            "scheduler": self.scheduler,
            "policy": self.policy,
            **ratios,
            "half_interval": halves,
            "thesis": thesis,
        }


def _ratio(mean: float, half: float | None) -> str:
    return f"{mean:.2f}x" if half is None else f"{mean:.2f}x +- {half:.2f}"


_MEASURES = {
    "mean": ("iteration_s", "mean"),
    "p99": ("iteration_s", "p99"),
    "completion mean": ("completion_s", "mean"),
    "completion p99": ("completion_s", "p99"),
}


def gains_of(comparison: PolicyComparison, trace: str) -> tuple[Gain, ...]:
    """The gain of each scheduler that ran alone and with Cassini, on traces of this kind."""
    found = []
    for policy, runs in comparison.runs.items():
        parts = split_name(policy)
        name = "+".join(part for part in parts if part.partition("@")[0] != CASSINI)
        if name != policy and name in comparison.runs:
            pairs = list(zip(comparison.runs[name], runs, strict=True))
            ratios = {}
            for measure, (value, of) in _MEASURES.items():
                each = [alone[value][of] / with_it[value][of] for alone, with_it in pairs]
                ratios[measure] = fmean(each), half_interval(each)
            found.append(Gain(name, policy, ratios, THESIS.get((trace.partition(":")[0], parts[0]))))
    return tuple(found)
