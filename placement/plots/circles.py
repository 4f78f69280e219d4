"""The picture of the unified circles of a link's jobs, before and after rotation (Figures 4.4 and 4.5)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from mltcp.core.demand import Demand
from mltcp.core.quantities import with_si_prefix
from placement.cassini.circle import Circles
from placement.cassini.compatibility import Compatibility, score_at
from placement.plots.style import INK, JOB_COLOURS, MUTED, framed, write

_HEIGHT_IN = 4.4
_HOLE = 0.6
_EXCESS = "#B00020"


def write_picture(
    path: Path, names: Sequence[str], circles: Circles, capacity_bps: int, found: Compatibility
) -> None:
    """Draw the circles as they are, and as rotated, each with its score.

    Around the circle runs time; outwards the demands of the jobs are stacked. The dashed line is the capacity of the
    link, and what is beyond it the excess.

    Raises:
        UsageError: an unknown suffix, or a place where no file can be written.
        MltcpError: the file could not be written.
    """
    write(lambda: _drawn(names, circles, capacity_bps, found), path)


def _drawn(names: Sequence[str], circles: Circles, capacity_bps: int, found: Compatibility) -> Figure:
    key = [(name, _colour(job)) for job, name in enumerate(names)]
    still = (0,) * len(names)
    highest = max(*(int(circles.together(turns).max()) for turns in (still, found.rotations)), capacity_bps)
    rate = with_si_prefix(capacity_bps, "bit/s")
    title = f"Unified circles of {circles.perimeter_ns / 1e6:.6g} ms on a link of {rate}"
    figure = framed(title, [*key, ("excess", _EXCESS)], _HEIGHT_IN, columns=2)
    for axes, rotations, what in zip(
        figure.axes[:2], (still, found.rotations), ("as they are", "rotated"), strict=True
    ):
        circle = polar_in_place_of(axes)
        _draw_circle(circle, circles, capacity_bps, rotations, highest)
        score = score_at(circles, capacity_bps, rotations)
        circle.set_title(f"{what}: score {score:.3g}", color=INK, pad=14)
    return figure


def polar_in_place_of(axes: Any) -> Any:
    """Polar axes in the place of a figure's plain ones, with room for their labels."""
    figure, place = axes.figure, axes.get_position()
    axes.remove()
    return figure.add_axes(
        (place.x0 + 0.02, place.y0 - 0.04, place.width - 0.05, place.height), projection="polar"
    )


def _draw_circle(
    axes: Any, circles: Circles, capacity_bps: int, rotations: Sequence[int], highest: int
) -> None:
    edges = np.linspace(0, 2 * np.pi, circles.angles + 1)
    # a line between two angles of a polar plot is straight: arcs need points in between
    fine = np.linspace(0, 2 * np.pi, max(721, circles.angles * 4 + 1))
    at = np.minimum(np.searchsorted(edges, fine, side="right") - 1, circles.angles - 1)
    below = np.zeros(circles.angles)
    for job, rotation in enumerate(rotations):
        above = below + np.roll(circles.demand[job], rotation) / capacity_bps
        axes.fill_between(fine, _HOLE + below[at], _HOLE + above[at], color=_colour(job), linewidth=0)
        below = above
    over = np.maximum(below, 1)
    axes.fill_between(fine, _HOLE + 1, _HOLE + over[at], color=_EXCESS, linewidth=0)
    axes.plot(fine, np.full_like(fine, _HOLE), color=MUTED, linewidth=0.8)
    axes.plot(fine, np.full_like(fine, _HOLE + 1), color=INK, linewidth=1, linestyle=(0, (4, 3)))
    _mark_times(axes, circles.perimeter_ns)
    axes.set_ylim(0, _HOLE + 1.05 * max(1.0, highest / capacity_bps))


def _mark_times(axes: Any, perimeter_ns: int, apart: int = 45) -> None:
    """Let time run clockwise from the top, written around the circle every so many degrees."""
    axes.set_theta_zero_location("N")
    axes.set_theta_direction(-1)
    axes.set_yticks([])
    axes.spines["polar"].set_visible(False)
    angles = range(0, 360, apart)
    labels = [f"{angle / 360 * perimeter_ns / 1e6:.4g}" for angle in angles]
    axes.set_thetagrids(angles, labels, fontsize=8.5, color=MUTED)
    axes.grid(False)
    axes.text(0, 0, "ms", ha="center", va="center", fontsize=8.5, color=MUTED)


def _colour(job: int) -> str:
    return JOB_COLOURS[job % len(JOB_COLOURS)]


def draw_demand(axes: Any, demand: Demand, colour: str) -> None:
    """Draw a job's own circle (Figure 4.6): an arc for each phase that sends, the darker the more it sends.

    Args:
        axes: polar.
        demand: of the job.
        colour: of the phase that sends most.
    """
    most_bps = max((phase.bandwidth_bps for phase in demand.phases), default=0) or 1
    turn = 2 * np.pi / demand.iteration_ns
    for phase, end_ns in zip(demand.phases, demand.ends_ns, strict=True):
        if phase.bandwidth_bps:
            fine = (
                np.linspace(end_ns - phase.duration_ns, end_ns, max(2, round(phase.duration_ns * turn * 120)))
                * turn
            )
            alpha = 0.25 + 0.75 * phase.bandwidth_bps / most_bps
            axes.fill_between(fine, _HOLE, _HOLE + 0.4, color=colour, alpha=alpha, linewidth=0)
    _mark_times(axes, demand.iteration_ns, 90)
    axes.set_ylim(0, _HOLE + 0.45)
