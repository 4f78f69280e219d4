"""Draws the heat map of reproduction-rl-measured.md from docs/tables: ``python -m docs.draw_sensitivity [FOLDER]``."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from placement.plots.style import INK, MUTED, STYLE

TABLES = Path(__file__).parent / "tables"
CONTROLS = ("cubic", "mltcp_cubic")
Layout = tuple[str, int, int]
"""A model, its GPUs, and its nodes."""


def ratios(control: str) -> dict[tuple[Layout, Layout], float]:
    """The measured throughput of a layout beside another one, over that alone."""
    with open(TABLES / control / "measured_ratios.csv", newline="") as file:
        return {
            (_layout(row, "target"), _layout(row, "other")): float(row["ratio"])
            for row in csv.DictReader(file)
        }


def _layout(row: dict[str, str], of: str) -> Layout:
    return row[f"{of}_model"], int(row[f"{of}_gpus"]), int(row[f"{of}_nodes"])


def _map(axes: Axes, values: np.ndarray, layouts: list[Layout], title: str, **colours: object) -> AxesImage:
    image = axes.imshow(values, interpolation="nearest", **colours)
    axes.set_title(title, fontsize=10, color=INK)
    models = sorted({model for model, _, _ in layouts})
    first = [next(number for number, each in enumerate(layouts) if each[0] == model) for model in models]
    ends = [*first[1:], len(layouts)]
    middles = [(start + end - 1) / 2 for start, end in zip(first, ends, strict=True)]
    axes.set_xticks(middles, models, rotation=35, ha="right", fontsize=8)
    axes.set_yticks(middles, models, fontsize=8)
    axes.tick_params(length=0)
    for start in first[1:]:
        axes.axhline(start - 0.5, color="white", linewidth=1.2)
        axes.axvline(start - 0.5, color="white", linewidth=1.2)
    axes.set_xlabel("beside", color=MUTED)
    return image


def sensitivity() -> Figure:
    """The ratios under CUBIC, under MLTCP-CUBIC, and their difference; a row is the job that is slowed down."""
    tables = {control: ratios(control) for control in CONTROLS}
    layouts = sorted({target for target, _ in tables[CONTROLS[0]]})
    cells = {
        control: np.array([[found[one, other] for other in layouts] for one in layouts])
        for control, found in tables.items()
    }
    figure = Figure(figsize=(13, 4.3), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for axes, control in zip((left, middle), CONTROLS, strict=True):
        title = f"{control}: mean {cells[control].mean():.3f}"
        image = _map(axes, cells[control], layouts, title, vmin=0.3, vmax=1.0, cmap="cividis")
    figure.colorbar(image, ax=(left, middle), shrink=0.8, label="throughput over that alone")
    gained = cells[CONTROLS[1]] - cells[CONTROLS[0]]
    image = _map(right, gained, layouts, "mltcp_cubic minus cubic", vmin=-0.2, vmax=0.2, cmap="PuOr")
    figure.colorbar(image, ax=right, shrink=0.8)
    left.set_ylabel("slowed down: 2, 4, 8 GPUs on 2 or 4 nodes", color=MUTED)
    return figure


def main(arguments: list[str]) -> None:
    """Write the picture into a folder, by default docs/pictures."""
    folder = Path(arguments[0]) if arguments else Path(__file__).parent / "pictures"
    with mpl.rc_context(STYLE):
        sensitivity().savefig(folder / "sensitivity.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main(sys.argv[1:])
