"""The picture of a sweep of periods: where each policy holds the jobs apart, a dot for each repeat."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.compare.holding import HoldingCell, HoldingOutcome, HoldingResult, held_slowdown
from bench.compare.results.journal import writable
from placement.plots.style import MUTED, framed, write

PICTURE = "holding.png"
COLOURS = {
    HoldingOutcome.HELD: "#117733",
    HoldingOutcome.SLIPPED: "#DDAA33",
    HoldingOutcome.COLLIDED: "#CC6677",
}
_HEIGHT_IN = 3.0
_LONGEST_NAME = 28
_DASHED = (0, (4, 3))


def write_picture(result: HoldingResult, directory: Path) -> Path:
    """Draw the sweep into ``holding.png`` in the directory, made if need be; returns its path.

    Raises:
        UsageError: nothing can be written there.
    """
    path = directory / PICTURE
    with writable(directory):
        write(lambda: holding_figure(result), path)
    return path


def holding_figure(result: HoldingResult) -> Figure:
    """A panel for each policy: the slowdown of the second half over the mismatch of the periods."""
    key = [
        *((outcome.value, colour) for outcome, colour in COLOURS.items()),
        ("all at the longest period", MUTED),
    ]
    figure = framed(
        f"{result.jobs} jobs with different periods", key, _HEIGHT_IN, columns=len(result.approaches)
    )
    highest = max(run.second_half for cell in result.cells for run in cell.runs)
    for axes, approach in zip(figure.axes, result.approaches, strict=True):
        axes.set_title(_shortened(approach), loc="left")
        _draw_bound(axes, result)
        for cell in result.cells:
            if cell.approach == approach:
                _draw_cell(axes, cell)
        axes.set_ylim(0.98, max(1.1, highest + 0.02))
        axes.set_xlabel("mismatch, %")
        axes.grid(axis="y")
    figure.axes[0].set_ylabel("slowdown, second half")
    return figure


def _draw_bound(axes: Axes, result: HoldingResult) -> None:
    bounds = [held_slowdown(mismatch, result.jobs) for mismatch in result.mismatches]
    axes.plot([100 * mismatch for mismatch in result.mismatches], bounds, color=MUTED, linestyle=_DASHED)


def _draw_cell(axes: Axes, cell: HoldingCell) -> None:
    axes.scatter(
        [100 * cell.mismatch] * len(cell.runs),
        [run.second_half for run in cell.runs],
        c=[COLOURS[run.outcome] for run in cell.runs],
        s=22,
        alpha=0.8,
        zorder=3,
    )


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}\N{HORIZONTAL ELLIPSIS}"
