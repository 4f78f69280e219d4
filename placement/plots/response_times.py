"""Mean response times of policies by load, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from placement.plots.style import framed, policy_colours

_HEIGHT_IN = 3.6
_MOST_TIMES_LEAST = 4.0


def figure_of(document: Mapping[str, Any]) -> Figure:
    """Draw a figure of the HELL paper from its JSON document: a panel a set of models, a line a policy.

    Points that are unstable, or beyond four times the best of their load, are left out.
    """
    cells: Sequence[Mapping[str, Any]] = document["cells"]
    names = list(dict.fromkeys(_name(cell, each) for cell in cells for each in cell["policies"]))
    colours = policy_colours(names)
    panels = list(dict.fromkeys(cell["models"] for cell in cells))
    figure = framed(
        f"Figure {document['figure']}: {document['title']}", list(colours.items()), _HEIGHT_IN, len(panels)
    )
    for models, axes in zip(panels, figure.axes, strict=True):
        of_panel = [cell for cell in cells if cell["models"] == models]
        for name in names:
            points = _points(of_panel, name)
            if points:
                loads, means, halves = zip(*points, strict=True)
                axes.errorbar(
                    loads, means, halves, color=colours[name], marker="o", markersize=3, linewidth=1.4
                )
        axes.set_title(f"models: {models}")
        axes.set_xlabel("load")
        axes.set_ylim(bottom=0)
        axes.grid(axis="y")
    figure.axes[0].set_ylabel("mean response (h)")
    return figure


def _name(cell: Mapping[str, Any], policy: Mapping[str, Any]) -> str:
    name = str(policy["policy"])
    return f"{name}, gamma {cell['gamma']:g}" if cell["gamma"] else name


def _points(cells: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float, float]]:
    """Load, mean and half the interval."""
    found = []
    for cell in cells:
        stable = [each["mean_response_h"] for each in cell["policies"] if each["stable"]]
        highest = _MOST_TIMES_LEAST * min(stable, default=0.0)
        found += [
            (cell["load"], each["mean_response_h"], each["interval_95_h"] or 0.0)
            for each in cell["policies"]
            if _name(cell, each) == name and each["stable"] and each["mean_response_h"] <= highest
        ]
    return found
