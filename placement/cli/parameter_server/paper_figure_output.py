"""The figures of the paper that ``mltcp-placement throughput --figure`` prints and draws."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mltcp.core.progress import progress_bar
from placement.experiments.console import open_console
from placement.experiments.parameter_server.paper_figures import (
    METHODS,
    Estimate,
    PanelResult,
    PaperFigure,
    evaluate,
)

if TYPE_CHECKING:
    from rich.table import Table

_MOST_ABREAST = 4
_GOAL = 0.05


def execute(figure: PaperFigure, picture: Path | None, as_json: bool) -> int:
    """Compute a figure and print it, or its JSON document; returns the exit status."""
    steps = sum(panel.most for panel in figure.panels)
    with progress_bar(steps, transient=True) as bar:
        results = [evaluate(panel, figure.cycles, step=bar.advance) for panel in figure.panels]
    if picture is not None:
        _draw(figure, results, picture)
    if as_json:
        print(json.dumps(_document(figure, results), allow_nan=False))
        return 0
    console = open_console()
    console.print(f"Figure {figure.number}: {figure.title}", soft_wrap=True)
    for claim in figure.claims:
        console.print(f"  the paper: {claim}", soft_wrap=True)
    for result in results:
        console.print(f"\n{result.panel.name}, mini-batches/s", soft_wrap=True)
        console.print(_table(result))
    widest = max(each.half_interval / each.value for result in results for each in _simulated(result))
    verdict = "below" if 2 * widest < _GOAL else "NOT below"
    console.print(f"\nwidest 95 % interval of a simulation: {2 * widest:.2%}, {verdict} {_GOAL:.0%}")
    return 0


def _simulated(result: PanelResult) -> tuple[Estimate, ...]:
    return result.shared + result.first_come


def _table(result: PanelResult) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    headings = (*(method.value for method in METHODS), "simulated: shared", "first come", "bound")
    for heading in ("workers", *headings):
        table.add_column(heading, justify="right")
    predictions = result.predictions
    for row, workers in enumerate(predictions.workers):
        rates = (predictions.solutions[method][row].throughput for method in METHODS)
        estimates = (result.shared[row], result.first_come[row])
        table.add_row(
            str(workers),
            *(f"{rate:.4g}" for rate in rates),
            *(f"{each.value:.4g} ± {each.half_interval:.2g}" for each in estimates),
            f"{predictions.bounds[row]:.4g}",
        )
    return table


def _document(figure: PaperFigure, results: list[PanelResult]) -> dict[str, Any]:
    return {
        "schema": 1,
        "figure": figure.number,
        "title": figure.title,
        "paper": list(figure.claims),
        "panels": [
            {
                "name": result.panel.name,
                **result.predictions.document(),
                "simulated": {
                    "shared": [asdict(each) for each in result.shared],
                    "first_come": [asdict(each) for each in result.first_come],
                },
            }
            for result in results
        ],
    }


def _draw(figure: PaperFigure, results: list[PanelResult], path: Path) -> None:
    from placement.plots.style import write
    from placement.plots.throughput import ThroughputPanel, throughput_figure

    panels = [
        ThroughputPanel(
            result.panel.name if len(results) > 1 else "",
            result.predictions.workers,
            {method.value: result.predictions.throughputs(method) for method in METHODS},
            result.predictions.bounds,
            {
                name: [
                    (workers, each.value, each.half_interval)
                    for workers, each in zip(result.predictions.workers, estimates, strict=True)
                ]
                for name, estimates in (
                    ("simulated, shared links", result.shared),
                    ("simulated, first come first served", result.first_come),
                )
            },
        )
        for result in results[:_MOST_ABREAST]
    ]
    write(lambda: throughput_figure(f"Figure {figure.number}", panels), path)
