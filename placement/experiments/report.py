"""Tables of outcomes and comparisons for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from placement.experiments.comparison import PolicyComparison
from placement.experiments.console import open_console
from placement.experiments.run import SimulationTask, mean_parts
from placement.experiments.statistics import Paired
from placement.simulator.outcome import Outcome

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

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


def print_outcome(what: SimulationTask, outcome: Outcome, file: TextIO | None = None) -> None:
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


def outcome_tables(what: SimulationTask, outcome: Outcome) -> tuple[Table, ...]:
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
    traces = len(comparison.runs[comparison.baseline])
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
    found = comparison.paired(policy)
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
