"""Pictures of throughput by the number of workers, as Figures 7, 10, 11 and 15 of the parameter server paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from placement.plots.style import INK, MUTED, framed, policy_colours

_PANEL_IN = 3.4
_POINTS_LIMIT = 40


@dataclass(frozen=True)
class ThroughputPanel:
    """A diagram.

    Attributes:
        title: below the diagram, beside "workers"; may be empty.
        workers: the numbers K.
        lines: predictions in mini-batches a second by name.
        bound: min(K/R, 1/Smax), drawn as a dashed line.
        points: measured or simulated throughputs by name, as (K, value, half of the interval).
    """

    title: str
    workers: Sequence[int]
    lines: Mapping[str, Sequence[float]]
    bound: Sequence[float] = ()
    points: Mapping[str, Sequence[tuple[int, float, float]]] = field(default_factory=dict)


def throughput_figure(title: str, panels: Sequence[ThroughputPanel]) -> Figure:
    """Draw up to a few diagrams side by side with a common key.

    Args:
        title: of the picture.
        panels: the diagrams; the key is that of the first.
    """
    first = panels[0]
    colours = policy_colours([*first.lines, *first.points])
    key = list(colours.items())
    if first.bound:
        key.append(("bound min(K/R, 1/Smax)", MUTED))
    figure = framed(title, key, _PANEL_IN, columns=len(panels))
    for axes, panel in zip(figure.axes, panels, strict=True):
        marker = "o" if len(panel.workers) <= _POINTS_LIMIT else ""
        for name, values in panel.lines.items():
            axes.plot(panel.workers, values, color=colours[name], marker=marker, markersize=3, linewidth=1.6)
        for name, points in panel.points.items():
            numbers, values, intervals = zip(*points, strict=True)
            axes.errorbar(
                numbers, values, intervals, color=colours[name], fmt="s", markersize=5, capsize=3, mfc="none"
            )
        if panel.bound:
            axes.plot(panel.workers, panel.bound, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("workers K" + (f" ({panel.title})" if panel.title else ""))
        axes.grid()
    figure.axes[0].set_ylabel("mini-batches a second", color=INK)
    return figure
