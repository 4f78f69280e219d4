"""The table of a sweep, with every repeat."""

from __future__ import annotations

from typing import TextIO

from rich.box import HORIZONTALS
from rich.console import Console
from rich.table import Table

from bench.compare.holding.outcome import Outcome
from bench.compare.holding.result import HoldingResult
from bench.compare.holding.sweep import held_slowdown
from bench.lab.processors import BUSY

_SIGNS = {Outcome.HELD: "", Outcome.SLIPPED: " s", Outcome.COLLIDED: " c"}
_WIDE = 200


def print_table(result: HoldingResult, file: TextIO | None = None) -> None:
    """Print, for each mismatch and policy, the second-half slowdown of every repeat, and how many were held."""
    console = Console(file=file, highlight=False)
    if not console.is_terminal:
        console = Console(file=file, highlight=False, width=_WIDE, no_color=True)
    table = Table(box=HORIZONTALS if console.is_terminal else None)
    for title in ("mismatch", "bound", "policy", "held", "slowdown of the second half, every repeat"):
        table.add_column(title)
    for cell in result.cells:
        values = sorted(cell.runs, key=lambda run: run.second_half)
        table.add_row(
            f"{100 * cell.mismatch:g} %",
            f"{held_slowdown(cell.mismatch, result.jobs):.3f}",
            cell.approach,
            f"{cell.count(Outcome.HELD)} of {len(cell.runs)}",
            "  ".join(f"{run.second_half:.3f}{_SIGNS[run.outcome]}" for run in values),
        )
    console.print(table)
    console.print("s: the jobs slip through each other; c: they collide; bound: all take the longest period")
    for cell in result.cells:
        for run in cell.runs:
            if run.other_load is not None and run.other_load > BUSY:
                console.print(
                    f"! other programs used {run.other_load:.0%} of the processors during: {cell.approach}, "
                    f"{100 * cell.mismatch:g} %, repeat {run.repeat + 1}"
                )
