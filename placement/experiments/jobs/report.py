"""The table of a comparison of schedulers on traces of whole jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, TextIO

from mltcp.core.quantities import S_PER_HOUR
from placement.experiments.console import open_console
from placement.experiments.jobs.bound import TraceBound
from placement.experiments.jobs.differences import RateDifference
from placement.experiments.jobs.results import PolicyResult

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = (
    "guarantee\nrate",
    "wait\nmean (h)",
    "completion\nmean (h)",
    "utilization\nof arrivals",
    "\nof all",
    "migrations\na trace",
    "restarts\na trace",
)


def print_jobs(title: str, results: Sequence[PolicyResult], file: TextIO | None = None) -> None:
    """Print the results to the file or to standard output."""
    open_console(file).print(table(title, results))


def print_differences(differences: Mapping[str, RateDifference], file: TextIO | None = None) -> None:
    """Print the difference of each policy from the baseline, a line a policy."""
    console = open_console(file)
    for policy, each in differences.items():
        half = "" if each.half_points is None else f" +- {each.half_points:.2f}"
        console.print(f"{policy} - {each.baseline}: {each.points:+.2f}{half} points of the guarantee rate")


def print_bounds(bounds: Sequence[TraceBound], file: TextIO | None = None) -> None:
    """Print the mean of the upper bounds."""
    mean = fmean(each.guarantee_rate for each in bounds)
    open_console(file).print(f"upper bound of the guarantee rate under any policy: {mean:.3f}")


def table(title: str, results: Sequence[PolicyResult]) -> Table:
    """The table, a row a policy; means over traces."""
    from rich.box import HORIZONTALS
    from rich.table import Table

    found = Table(title=title, box=HORIZONTALS, title_justify="left")
    found.add_column("policy", no_wrap=True, vertical="bottom")
    for column in _COLUMNS:
        found.add_column(column, justify="right")
    for result in results:
        found.add_row(result.policy, *_cells(result))
    return found


def _cells(result: PolicyResult) -> list[str]:
    return [
        f"{result.guarantee_rate:.3f}",
        f"{result.mean(lambda trace: trace.mean_wait_s) / S_PER_HOUR:.2f}",
        f"{result.mean(lambda trace: trace.mean_completion_s) / S_PER_HOUR:.2f}",
        f"{result.mean(lambda trace: trace.utilization_arrivals):.3f}",
        f"{result.mean(lambda trace: trace.utilization):.3f}",
        f"{result.mean(lambda trace: trace.migrations):.1f}",
        f"{result.mean(lambda trace: trace.restarts):.1f}",
    ]
