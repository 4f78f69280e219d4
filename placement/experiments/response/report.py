"""The table of a comparison of schedulers by mean response time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TextIO

from placement.experiments.console import open_console
from placement.experiments.response.figures import Figure, FigureCell
from placement.experiments.response.results import PolicyResult
from placement.experiments.response.runs import ResponseTask, result_of
from placement.experiments.statistics import Paired

_WIDE = 0.05


def print_results(title: str, results: Sequence[PolicyResult], file: TextIO | None = None) -> None:
    """Print a row a policy; means over traces."""
    from rich.box import HORIZONTALS
    from rich.table import Table

    table = Table(title=title, box=HORIZONTALS, title_justify="left")
    table.add_column("policy", no_wrap=True, vertical="bottom")
    for column in (
        "response\nmean (h)",
        "95 %\n+- (h)",
        "to 40 %\nmean (h)",
        "most jobs\npresent",
        "\nstable",
        "to the first\n(paired, %)",
    ):
        table.add_column(column, justify="right")
    for result in results:
        table.add_row(
            shown_name(result),
            f"{result.mean_response_h:.1f}",
            shown_interval(result),
            f"{result.to_40_percent_h:.1f}",
            str(max(each.most_present for each in result.traces)),
            "yes" if result.stable else "no",
            "" if result is results[0] else _difference(result.against(results[0])),
        )
    console = open_console(file)
    console.print(table)
    if any(is_wide(result) for result in results):
        console.print("! the interval is wider than 5 % of the mean: more jobs or traces are needed")


def _difference(found: Paired) -> str:
    half = "" if found.high_percent is None else f" +- {found.high_percent - found.difference_percent:.2f}"
    return f"{found.difference_percent:+.2f}{half}"


def shown_name(result: PolicyResult) -> str:
    """The policy, with the K that was found."""
    if result.chunk is None or result.policy.endswith(f"-{result.chunk}"):
        return result.policy
    return f"{result.policy}, K = {result.chunk}"


def shown_interval(result: PolicyResult) -> str:
    """Half the width of the interval, marked if it is wide."""
    if result.interval_95_h is None:
        return "-"
    return f"{result.interval_95_h:.1f}{'!' if is_wide(result) else ''}"


def is_wide(result: PolicyResult) -> bool:
    """Whether the 95 % interval is wider than 5 % of the mean, to either side."""
    return result.interval_95_h is not None and result.interval_95_h > _WIDE * result.mean_response_h


def print_figure(
    figure: Figure,
    cells: Sequence[FigureCell],
    runs: Mapping[ResponseTask, PolicyResult],
    file: TextIO | None = None,
) -> None:
    """Print what the paper says, and a table a set of models: rows are policies and columns loads."""
    from rich.box import HORIZONTALS
    from rich.table import Table

    console = open_console(file)
    console.print(f"Figure {figure.number}: {figure.title}\npaper: {figure.paper}")
    wide = False
    for panel in figure.panels:
        table = Table(
            title=f"models: {panel.models}; mean response (h) +- 95 % by load",
            box=HORIZONTALS,
            title_justify="left",
        )
        table.add_column("policy", no_wrap=True)
        for load in panel.loads:
            table.add_column(f"{load:g}", justify="right")
        for gamma in panel.gammas:
            of_gamma = [cell for cell in cells if cell.panel is panel and cell.gamma == gamma]
            for policy in panel.policies:
                found = [_result_at(cell, policy, runs) for cell in of_gamma]
                name = policy if len(panel.gammas) == 1 else f"{policy}, gamma {gamma:g}"
                table.add_row(name, *(_cell(result, len(panel.gammas) > 1) for result in found))
                wide = wide or any(result is not None and is_wide(result) for result in found)
        console.print(table)
    if wide:
        console.print("! the interval is wider than 5 % of the mean: more jobs or traces are needed")


def _result_at(
    cell: FigureCell, policy: str, runs: Mapping[ResponseTask, PolicyResult]
) -> PolicyResult | None:
    return result_of(cell.comparison, policy, runs) if policy in cell.policies else None


def _cell(result: PolicyResult | None, with_part: bool) -> str:
    """A cell of the table: the mean, its interval, K of JSQ-Chunk, and the time to 40 % in front if it is asked for."""
    if result is None:
        return "unstable"
    text = f"{result.mean_response_h:.1f} +- {shown_interval(result)}"
    if not result.stable:
        text = "unstable"
    if result.chunk is not None:
        text += f" (K {result.chunk})"
    return f"40 %: {result.to_40_percent_h:.1f}, all: {text}" if with_part else text
