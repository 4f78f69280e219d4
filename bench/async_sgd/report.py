"""The result of a sweep as tables and as a JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.async_sgd.comparison import METHODS, AsyncCell, ControlComparison
from bench.lab.processors import BUSY
from placement.experiments.parameter_server.profile import ServiceProfile
from placement.model.service_times import ServiceTimes

SCHEMA = 1


def print_report(
    comparisons: Sequence[ControlComparison], packets: ServiceProfile | None = None, files: Sequence[str] = ()
) -> None:
    """Print a table for each control, with every repeat, and the service times of a capture."""
    console = Console(highlight=False)
    for each in comparisons:
        console.print(_table(each))
        errors = ((method, each.mean_error(method)) for method in METHODS)
        shown = [f"{method} {error:.1%}" for method, error in errors if error is not None]
        if shown:
            console.print(f"mean error from two workers on: {', '.join(shown)}\n", soft_wrap=True)
    if packets is not None:
        console.print(f"{packets.cycles} cycles in the capture: {_shown(packets.service)}", soft_wrap=True)
    busiest = max((run for each in comparisons for cell in each.cells for run in cell.runs), key=_load)
    if _load(busiest) > BUSY:
        console.print(
            f"other programs used up to {_load(busiest):.0%} of the processors during a run", soft_wrap=True
        )
    for path in files:
        console.print(f"wrote {path}", soft_wrap=True)


def document(comparisons: Sequence[ControlComparison]) -> dict[str, Any]:
    """The result as a JSON document; rates in updates a second."""
    return {
        "schema": SCHEMA,
        "controls": [
            {
                "control": each.control,
                "profile": asdict(each.profile),
                "cycle_s": each.profile.cycle_s,
                "mean_error": {method.value: each.mean_error(method) for method in METHODS},
                "cells": [_cell(cell) for cell in each.cells],
            }
            for each in comparisons
        ],
    }


def _load(run: Any) -> float:
    return float(run.other_load)


def _table(comparison: ControlComparison) -> Table:
    title = f"{comparison.control}: {_shown(comparison.profile)}"
    # Narrow enough for a terminal of 80 columns with three repeats.
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    headings = ("K", "K Smax/R", "updates/s", "median", "bound", *("exact", "approx.", "hybrid"))
    for name in (*headings, "stale", "overlap", "drops"):
        table.add_column(name, justify="right")
    for cell in comparison.cells:
        table.add_row(*_row(cell))
    return table


def _shown(profile: ServiceTimes) -> str:
    times = (
        ("W", profile.worker_s),
        ("U", profile.uplink_s),
        ("S", profile.server_s),
        ("D", profile.downlink_s),
    )
    return ", ".join(f"S^{name} {time_s * 1000:.0f} ms" for name, time_s in times)


def _row(cell: AsyncCell) -> list[str]:
    middle = [
        median(values)
        for values in zip(*((run.up.overlap, run.down.overlap) for run in cell.runs), strict=True)
    ]
    return [
        str(cell.workers),
        f"{cell.load:.2f}",
        " ".join(f"{run.throughput:.2f}" for run in cell.runs),
        f"{cell.throughput:.2f}",
        f"{cell.bound:.2f}",
        *(f"{cell.predicted[method]:.2f}" for method in METHODS),
        f"{median(run.staleness for run in cell.runs):.2f}",
        "/".join(f"{each:.0%}" for each in middle),
        str(round(median(run.up.drops + run.down.drops for run in cell.runs))),
    ]


def _cell(cell: AsyncCell) -> dict[str, Any]:
    return {
        "workers": cell.workers,
        "load": cell.load,
        "throughput": cell.throughput,
        "bound": cell.bound,
        "of_bound": cell.of_bound,
        "predicted": {method.value: rate for method, rate in cell.predicted.items()},
        "error": {method.value: cell.error(method) for method in METHODS},
        "repeats": [
            {
                name: value
                for name, value in asdict(run).items()
                if name not in ("excerpt", "key", "control", "workers")
            }
            for run in cell.runs
        ],
    }
