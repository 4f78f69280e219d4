"""The comparison of schedulers on whole jobs with deadlines: ``mltcp-placement jobs --workload drs``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from types import MappingProxyType
from typing import Any

from mltcp.core.quantities import S_PER_HOUR
from placement.experiments.comparison import (
    ComparisonPlan,
    ComparisonWorkload,
    Drawn,
    PolicyComparison,
    TraceRun,
    mean_column,
)
from placement.experiments.statistics import half_interval
from placement.policies.schedulers.registry import named_scheduler
from placement.simulator.rates.outcome import RatesOutcome
from placement.simulator.rates.run import run_rates
from placement.simulator.rates.timed_job import RatesSettings
from placement.traces.deadlines import DeadlineTrace


@dataclass(frozen=True)
class DeadlineJobs(ComparisonWorkload):
    """Whole jobs with deadlines, at the rates of a throughput model.

    The values of a run: ``jobs``, M; ``met``, the jobs that met their deadlines; ``mean_wait_s``, T_wait, from arrival
    to first start; ``mean_completion_s``, T_comp, from arrival to end; ``makespan_s``, until the last job ended;
    ``migrations``, restarts that left the number of GPUs as it was; ``restarts``, starts after a job's first, of all
    jobs; ``utilization_arrivals``, the share of the GPUs given out, over the time in which jobs arrive;
    ``utilization``, the same until the last job ended; ``guarantee_rate``, R_trace = N_sati / M (Equation 13).

    Attributes:
        settings: the cluster and the throughput model.
    """

    settings: RatesSettings

    shown = (
        *("jobs", "met", "mean_wait_s", "mean_completion_s", "makespan_s", "migrations", "restarts"),
        *("utilization_arrivals", "utilization"),
    )
    kept = ("guarantee_rate",)
    means = ("guarantee_rate", "mean_wait_s", "mean_completion_s", "utilization_arrivals", "utilization")
    compared = "guarantee_rate"
    columns = (
        mean_column("guarantee\nrate", "guarantee_rate", ".3f"),
        mean_column("wait\nmean (h)", "mean_wait_s", ".2f", S_PER_HOUR),
        mean_column("completion\nmean (h)", "mean_completion_s", ".2f", S_PER_HOUR),
        mean_column("utilization\nof arrivals", "utilization_arrivals", ".3f"),
        mean_column("\nof all", "utilization", ".3f"),
        mean_column("migrations\na trace", "migrations", ".1f"),
        mean_column("restarts\na trace", "restarts", ".1f"),
    )

    def run(self, trace: DeadlineTrace, policy: str) -> dict[str, Any]:
        """See `ComparisonWorkload.run`."""
        return values_of(run_trace(trace, self.settings, policy))

    def against(self, comparison: PolicyComparison, policy: str) -> dict[str, Any]:
        """The difference of the guarantee rate, in points."""
        points, half = rate_difference(comparison, policy)
        low, high = (None, None) if half is None else (points - half, points + half)
        difference = {"points": points, "low_points": low, "high_points": high}
        return {"difference": {"baseline": comparison.baseline, **difference}}

    def against_text(self, comparison: PolicyComparison, policy: str) -> str:
        """The same as a line."""
        points, half = rate_difference(comparison, policy)
        interval = "" if half is None else f" +- {half:.2f}"
        return f"{policy} - {comparison.baseline}: {points:+.2f}{interval} points of the guarantee rate"


def values_of(outcome: RatesOutcome) -> dict[str, Any]:
    """The values of a run."""
    jobs = len(outcome.trace.jobs)
    values = {name: getattr(outcome, name) for name in DeadlineJobs.shown if name != "jobs"}
    return {"jobs": jobs, **values, "guarantee_rate": outcome.met / jobs}


def run_of(outcome: RatesOutcome) -> TraceRun:
    """The run of an outcome that was not simulated here, without a key."""
    return TraceRun("", outcome.policy, outcome.trace.name, outcome.trace.seed, values_of(outcome))


def run_trace(trace: DeadlineTrace, settings: RatesSettings, policy: str) -> RatesOutcome:
    """Run a trace, compiled if that is possible: both give the same."""
    from placement.simulator.rates.compiled import compiles, run_compiled

    if compiles(policy, trace, settings):
        return run_compiled(trace, settings, policy)
    return run_rates(trace, settings, named_scheduler(policy))


def rate_difference(comparison: PolicyComparison, policy: str) -> tuple[float, float | None]:
    """The mean over traces of 100 * (rate - baseline's rate), in points, and half its 95 % interval (Student's t).

    The latter is None for a single trace.
    """
    pairs = zip(comparison.runs[policy], comparison.runs[comparison.baseline or ""], strict=True)
    points = [100 * (one["guarantee_rate"] - other["guarantee_rate"]) for one, other in pairs]
    return fmean(points), half_interval(points)


# -- Figures 7 to 11 of the DRS paper ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sweep:
    """An experiment that varies one parameter.

    Attributes:
        figure: its number in the paper.
        title: of the picture.
        label: of the parameter, with its unit.
        field: of the parameter, in `DrsMix` or in `RatesSettings`.
        values: that it takes.
    """

    figure: int
    title: str
    label: str
    field: str
    values: tuple[float, ...]

    def plans(self, base: ComparisonPlan[DeadlineJobs]) -> tuple[ComparisonPlan[DeadlineJobs], ...]:
        """The plan for each value; all else is as in a plan of drawn traces."""
        return tuple(self._plan(base, value) for value in self.values)

    def _plan(self, base: ComparisonPlan[DeadlineJobs], value: float) -> ComparisonPlan[DeadlineJobs]:
        if self.field == "nodes":
            settings = replace(base.workload.settings, nodes=int(value))
            return replace(base, workload=DeadlineJobs(settings))
        changed = {self.field: value}
        traces = (Drawn(replace(trace.mix, **changed), trace.seed) for trace in base.traces)
        return replace(base, traces=tuple(traces))

    def document(self, comparisons: Sequence[PolicyComparison], policies: Sequence[str]) -> dict[str, Any]:
        """The entry in figures.json: the means of each policy at each value."""
        return {
            "figure": self.figure,
            "field": self.field,
            "values": list(self.values),
            "policies": {
                policy: [
                    {name: each.mean(policy, name) for name in DeadlineJobs.means} for each in comparisons
                ]
                for policy in policies
            },
        }


SWEEPS: Mapping[int, Sweep] = MappingProxyType(
    {
        sweep.figure: sweep
        for sweep in (
            Sweep(7, "Arrival rate", "jobs an hour", "rate", (2.0, 4.0, 6.0, 8.0, 10.0)),
            Sweep(8, "Cluster size", "nodes", "nodes", (2, 3, 4)),
            Sweep(9, "Urgent jobs", "share of urgent jobs", "urgent", (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)),
            Sweep(10, "Length of the trace", "hours in which jobs arrive", "hours", (12.0, 24.0, 48.0, 72.0)),
            Sweep(11, "Fat models", "share of fat models", "fat", (0.2, 1 / 3)),
        )
    }
)
