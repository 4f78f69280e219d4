"""The comparison of placement and communication policies on traces: ``mltcp-placement compare``."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from mltcp.core.bounded_files import MOST_DOCUMENT_BYTES, read_bounded
from mltcp.core.errors import MltcpError, UsageError
from placement.experiments.comparison import (
    ComparisonPlan,
    ComparisonWorkload,
    PolicyComparison,
    TraceRun,
    digest,
    run_plans,
    write_document,
)
from placement.experiments.console import open_console
from placement.experiments.run_journal import NAME, read_journal
from placement.experiments.simulation import (
    PARTS,
    PolicyName,
    Setting,
    Simulation,
    mean_parts,
    run_simulation,
)
from placement.experiments.statistics import Paired
from placement.simulator.outcome import Outcome
from placement.traces.job_trace import JobTrace

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SCHEMA = 1
PLAN = "compare.json"
_PLANNED = {"setting", "baseline", "traces", "keys"}
METRICS = ("average_jct_s", "median_jct_s", "p95_jct_s", "average_gpu_utilization", "makespan_s")
_DIGITS = 6


@dataclass(frozen=True)
class SeededTrace:
    """A trace and the seed of the policies' random choices on it."""

    trace: JobTrace
    seed: int

    @property
    def name(self) -> str:
        """That of the trace."""
        return self.trace.name

    @cached_property
    def digest(self) -> str:
        """A digest of the jobs and the scale, whatever their order and file."""
        jobs = sorted(self.trace.jobs, key=lambda job: job.job_id)
        return digest(f"{self.trace.seconds_per_simulated_s} {jobs!r}")


@dataclass(frozen=True)
class AllReduceJobs(ComparisonWorkload):
    """Jobs that alternate between computing and all-reduces, iteration by iteration.

    The values of a run, in seconds of the trace's scale, are those of `Outcome` with these names; ``parts_s``, the
    means of `PARTS`, which add up to the average; ``wall_s``, the wall-clock time of the simulation. Kept for pictures:
    ``jct_s`` of every job, in the order of their numbers, and ``gpu_utilization`` of every GPU, over the makespan.

    Attributes:
        setting: the cluster and the contention model.
    """

    setting: Setting

    shown = ("jobs", *METRICS, "events", "wall_s", "parts_s")
    kept = ("jct_s", "gpu_utilization")
    compared = METRICS[0]

    def variants(self, policy: str) -> tuple[str, ...]:
        """See `ComparisonWorkload.variants`."""
        self.setting.check(PolicyName.parse(policy))
        return (policy,)

    def run(self, trace: SeededTrace, policy: str) -> dict[str, Any]:
        """See `ComparisonWorkload.run`."""
        simulation = Simulation(trace.trace, PolicyName.parse(policy), self.setting, trace.seed)
        outcome = run_simulation(simulation)
        return {
            "jobs": len(outcome.jobs),
            **{name: getattr(outcome, name) for name in (*METRICS, "events", "wall_s")},
            "parts_s": mean_parts(outcome),
            "jct_s": [round(job.jct_s, _DIGITS) for job in outcome.jobs],
            "gpu_utilization": [round(each, _DIGITS) for each in outcome.gpu_utilization],
        }

    def identity(self, trace: SeededTrace, policy: str) -> object:
        """See `ComparisonWorkload.identity`; names of traces do not matter."""
        return trace.digest, policy, self.setting.text, trace.seed

    def policy_document(self, policy: str, runs: Sequence[TraceRun]) -> dict[str, Any]:
        """See `ComparisonWorkload.policy_document`."""
        return {
            "policy": policy,
            **{metric: statistics.fmean(run[metric] for run in runs) for metric in METRICS},
            "parts_s": mean_parts_of(runs),
            "runs": [{"policy": policy, "trace": run.trace, **run.document(self.shown)} for run in runs],
        }


def mean_parts_of(runs: Sequence[TraceRun]) -> dict[str, float]:
    """The parts of the mean JCT, averaged over traces."""
    return {name: statistics.fmean(run["parts_s"][name] for run in runs) for name in PARTS}


def plan_of(
    policies: Sequence[PolicyName], traces: Sequence[SeededTrace], setting: Setting, baseline: PolicyName
) -> ComparisonPlan[AllReduceJobs]:
    """The plan of a comparison.

    Raises:
        UsageError: a trace twice, and see `ComparisonPlan`.
    """
    names: dict[tuple[str, int], str] = {}
    for each in traces:
        if (each.digest, each.seed) in names:
            raise UsageError(
                f"{each.name}: expected each trace once, got the same jobs as {names[each.digest, each.seed]}"
            )
        names[each.digest, each.seed] = each.name
    workload = AllReduceJobs(setting)
    return ComparisonPlan(workload, tuple(map(str, policies)), tuple(traces), str(baseline))


def plan_document(plan: ComparisonPlan[AllReduceJobs]) -> dict[str, Any]:
    """The plan as a JSON document, with the keys of its runs."""
    return {
        "schema": SCHEMA,
        "setting": plan.workload.setting.document(),
        "baseline": plan.baseline,
        "traces": [
            {
                "name": each.name,
                "digest": each.digest,
                "seed": each.seed,
                "jobs": len(each.trace.jobs),
                "time_scale": float(each.trace.seconds_per_simulated_s),
            }
            for each in plan.traces
        ],
        "keys": {
            policy: [key for part in plan.parts if part.policy == policy for key in part.keys]
            for policy in plan.policies
        },
    }


def comparison_document(comparison: PolicyComparison, workload: AllReduceJobs) -> dict[str, Any]:
    """The document of `mltcp-placement compare --json`, without the fields that the command adds."""
    policies = []
    for policy, runs in comparison.runs.items():
        against = {metric: comparison.paired(policy, metric).document() for metric in METRICS}
        policies.append(workload.policy_document(policy, runs) | {"against_baseline": against})
    return {"schema": SCHEMA, "baseline": comparison.baseline, "policies": policies}


def compare(plan: ComparisonPlan[AllReduceJobs], processes: int, folder: Path | None) -> PolicyComparison:
    """Run what the folder does not have, which `load` then reads; see `run_plans`.

    Raises:
        UsageError: the folder holds a comparison in another setting, or see `run_plans`.
    """

    def opened() -> None:
        if folder is not None:
            write_document(folder, PLAN, json.dumps(plan_document(plan), indent=1))

    if folder is not None:
        _check_folder(plan, folder)
    return plan.result(run_plans([plan], processes, folder, apart=True, opened=opened))


def load(folder: Path) -> PolicyComparison:
    """Load the folder of a `compare -o`, without traces that are not finished under all policies.

    Raises:
        UsageError: there is no comparison.
        MltcpError: no trace is finished under all of its policies.
    """
    plan = read_plan(folder)
    log = read_journal(folder, AllReduceJobs.parse)
    keys = plan["keys"]
    whole = [row for row in zip(*keys.values(), strict=True) if all(key in log for key in row)]
    if not whole:
        raise MltcpError(
            f"{folder}: no trace is finished under all policies: run the same compare to its end"
        )
    runs = {policy: [log[row[column]] for row in whole] for column, policy in enumerate(keys)}
    return PolicyComparison(plan["baseline"], runs)


def read_plan(folder: Path) -> dict[str, Any]:
    """Read the plan of the comparison in this folder, a JSON document.

    Raises:
        UsageError: there is no plan of a comparison.
    """
    path = folder / PLAN
    try:
        document = json.loads(read_bounded(path, MOST_DOCUMENT_BYTES))
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror or error}; expected a folder that `compare -o` made"
        ) from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA or not set(document) >= _PLANNED:
        raise UsageError(f"{path}: this is no plan of a comparison")
    return document


def _check_folder(plan: ComparisonPlan[AllReduceJobs], folder: Path) -> None:
    """Refuse a folder with runs in another setting: they would lie there for nothing, or be taken for these."""
    if not (folder / PLAN).exists():
        if (folder / NAME).exists():
            raise UsageError(f"{folder}: runs of a comparison, but no {PLAN}: take another folder")
        return
    if read_plan(folder)["setting"] != plan.workload.setting.document():
        raise UsageError(
            f"{folder}: a comparison on another cluster or with other constants: take another folder"
        )


# -- tables ------------------------------------------------------------------------------------------------------------

ROOMY = 100
ABSENT = "-"
_LONG_S = 1000

_PARTS = {
    "queue_s": "waiting to be placed",
    "compute_s": "computing",
    "gpu_wait_s": "waiting for GPUs",
    "link_wait_s": "waiting to communicate",
    "communication_s": "communicating",
    "contention_s": "  of which contention",
}


def print_outcome(what: Simulation, outcome: Outcome, file: TextIO | None = None) -> None:
    """Print the outcome of a simulation to the file or to standard output.

    On a terminal with rules and bold type, fit for 80 columns; elsewhere as plain text, never cut to a width.
    """
    console = open_console(file)
    for table in outcome_tables(what, outcome):
        _print(console, table)
        console.print()


def print_comparison(comparison: PolicyComparison, file: TextIO | None = None) -> None:
    """Print a comparison of policies likewise."""
    console = open_console(file)
    _print(console, comparison_table(comparison, console.width < ROOMY))
    console.print()
    console.print(
        f"against {comparison.baseline}: mean over traces of the relative difference of the average JCT on the same "
        "trace; the interval is Student's",
        soft_wrap=True,
        markup=False,
    )


def outcome_tables(what: Simulation, outcome: Outcome) -> tuple[Table, ...]:
    """The tables of a simulation: its outcome, and the parts of its mean JCT."""
    title = f"{what.policy} on {what.trace.name}: {len(outcome.jobs)} jobs"
    figures = _table(title, [""], ["average", "median", "95th\npct"])
    figures.add_row("JCT (s)", *_seconds(outcome.average_jct_s, outcome.median_jct_s, outcome.p95_jct_s))
    figures.add_row("GPU utilization", f"{100 * outcome.average_gpu_utilization:.2f} %", "", "")
    figures.add_row("makespan (s)", *_seconds(outcome.makespan_s), "", "")
    parts = _table("What the average JCT is made of", [""], ["seconds", "share"])
    means, whole = mean_parts(outcome), outcome.average_jct_s
    for name, words in _PARTS.items():
        parts.add_row(words, *_seconds(means[name]), f"{100 * means[name] / whole:.1f} %")
    return figures, parts


def comparison_table(comparison: PolicyComparison, narrow: bool = False) -> Table:
    """The table of a comparison, a row a policy: means over traces, and the average JCT against the baseline's.

    Where it is to be narrow, long names of policies are broken.
    """
    traces = len(next(iter(comparison.runs.values())))
    title = f"JCT in seconds, mean over {traces} traces" if traces > 1 else "JCT in seconds, one trace"
    numbers = [
        "average",
        "median",
        "95th\npct",
        "GPU\nused",
        "against\nbaseline",
        "95 %\ninterval",
        "better\non",
    ]
    table = _table(title, ["policy"], numbers)
    table.columns[0].no_wrap = not narrow
    for policy in comparison.runs:
        metrics = ("average_jct_s", "median_jct_s", "p95_jct_s")
        table.add_row(
            policy.replace("+", " +").replace("@", " @") if narrow else policy,
            *_seconds(*(comparison.mean(policy, metric) for metric in metrics)),
            f"{100 * comparison.mean(policy, 'average_gpu_utilization'):.1f} %",
            *_against(comparison, policy),
            style="bold" if policy == _best(comparison) else None,
        )
    return table


def _best(comparison: PolicyComparison) -> str:
    return min(comparison.runs, key=lambda policy: comparison.mean(policy, "average_jct_s"))


def _against(comparison: PolicyComparison, policy: str) -> tuple[str, str, str]:
    if policy == comparison.baseline:
        return ("baseline", "", "")
    found = comparison.paired(policy, "average_jct_s")
    return f"{found.difference_percent:+.1f} %", _interval(found), f"{found.lower_on} of {found.traces}"


def _interval(found: Paired) -> str:
    if found.low_percent is None or found.high_percent is None:
        return ABSENT
    return f"{found.low_percent:+.1f}..{found.high_percent:+.1f}"


def _seconds(*values: float) -> tuple[str, ...]:
    """Numbers of seconds as text, with a decimal below 1,000."""
    return tuple(f"{value:,.{1 if abs(value) < _LONG_S else 0}f}".replace(",", " ") for value in values)


def _print(console: Console, table: Table) -> None:
    from rich.box import HORIZONTALS

    # Above the table rather than in it, where it would be broken to the width of the columns.
    title, table.title = table.title, None
    table.box = HORIZONTALS if console.is_terminal else None
    table.padding = (0, 1 if console.width >= ROOMY else 0, 0, 0)
    console.print(title, style="bold", soft_wrap=True, markup=False)
    console.print(table)


def _table(title: str, names: Sequence[str], numbers: Sequence[str]) -> Table:
    from rich.table import Table

    table = Table(title=title, pad_edge=False)
    for column in names:
        table.add_column(column, no_wrap=True, vertical="bottom")
    for column in numbers:
        table.add_column(column, no_wrap=True, justify="right")
    return table
