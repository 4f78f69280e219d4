"""The picture of a fit, after Fig. 2 of the Ada-SRSF paper: measured points, and the lines of eq. 5 through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from placement.experiments.fit import Fit
from placement.experiments.measurements import Measurement
from placement.plots.style import MUTED, WIDTH_IN, write

# From small to large; each can be told from its neighbours by colour-blind readers, too.
_COLOURS = "viridis"
_HEIGHT_IN = 3.9
_MAX_LINES = 6

# Any: newer type stubs of matplotlib list the accepted names, older ones do not.
_STYLE: Any = {
    "axes.grid": True,
    "legend.framealpha": 1.0,
    "legend.edgecolor": "white",
    "legend.fontsize": 9.5,
}


def write_picture(fit: Fit, measurements: Sequence[Measurement], path: Path) -> None:
    """Write the picture, in the format that the path's suffix says.

    Raises:
        UsageError: an unknown suffix, or a place where no file can be written.
        MltcpError: the file could not be written; what was there before still is.
    """
    with mpl.rc_context(_STYLE):
        write(lambda: figure(fit, measurements), path)


def figure(fit: Fit, measurements: Sequence[Measurement]) -> Figure:
    """Time against size, and time against the number of all-reduces, where the measurements have several of each."""
    panels: list[Callable[[Axes, Fit, Sequence[Measurement]], None]] = []
    if len(fit.sizes_bytes) > 1 or len(fit.jobs) == 1:
        panels.append(_against_size)
    if len(fit.jobs) > 1:
        panels.append(_against_jobs)
    drawn = Figure(
        figsize=(WIDTH_IN if len(panels) > 1 else WIDTH_IN / 2 + 0.5, _HEIGHT_IN), layout="constrained"
    )
    for panel, axes in zip(panels, np.atleast_1d(drawn.subplots(1, len(panels))), strict=True):
        panel(axes, fit, measurements)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("time of an all-reduce T (ms)")
        axes.legend(loc="upper left")
    drawn.suptitle(_formula(fit), x=0.01, horizontalalignment="left", fontsize=11)
    return drawn


def _formula(fit: Fit) -> str:
    eta = fit.penalty_ns_per_byte
    known = f"{eta.value:.3g} ns/byte" if eta.standard_error is not None else "unknown"
    return (
        f"T = a + k b M + (k - 1) η M\n"
        f"a = {fit.latency_ns.value / 1e6:.3g} ms, b = {fit.ns_per_byte.value:.4g} ns/byte, η = {known}"
    )


def _against_size(axes: Axes, fit: Fit, measurements: Sequence[Measurement]) -> None:
    shown = _some(fit.jobs)
    grid = np.linspace(0, fit.sizes_bytes[-1] * 1.05, 2)
    for jobs, colour in zip(shown, _colours(len(shown)), strict=True):
        ours = [each for each in measurements if each.jobs == jobs]
        _points(axes, [each.size_bytes / 1e6 for each in ours], ours, colour, f"k = {jobs}")
        times = [fit.duration_us(jobs, int(size)) / 1000 for size in grid]
        axes.plot(grid / 1e6, times, color=colour, linewidth=1.4)
    axes.set_xlim(0, grid[-1] / 1e6)
    axes.set_xlabel("size M (MB)")


def _against_jobs(axes: Axes, fit: Fit, measurements: Sequence[Measurement]) -> None:
    shown = _some(fit.sizes_bytes)
    for size, colour in zip(shown, _colours(len(shown)), strict=True):
        ours = [each for each in measurements if each.size_bytes == size]
        _points(axes, [each.jobs for each in ours], ours, colour, f"{size / 1e6:.3g} MB")
        times = [fit.duration_us(jobs, size) / 1000 for jobs in fit.jobs]
        axes.plot(fit.jobs, times, color=colour, linewidth=1.4)
    largest = fit.sizes_bytes[-1]
    fair = [(fit.latency_ns.value + jobs * fit.ns_per_byte.value * largest) / 1e6 for jobs in fit.jobs]
    axes.plot(fit.jobs, fair, color=MUTED, linewidth=1.2, linestyle="--", label="if η were 0")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("all-reduces at a time k")


def _points(
    axes: Axes, where: Sequence[float], measurements: Sequence[Measurement], colour: Any, label: str
) -> None:
    times = [each.latency_us / 1000 for each in measurements]
    axes.plot(where, times, "o", color=colour, markersize=4, alpha=0.75, markeredgewidth=0, label=label)


def _some(values: Sequence[int]) -> Sequence[int]:
    """All values, or, if a picture has no room for them, the first, the last and some between."""
    if len(values) <= _MAX_LINES:
        return values
    return [values[round(at)] for at in np.linspace(0, len(values) - 1, _MAX_LINES)]


def _colours(count: int) -> Any:
    return mpl.colormaps[_COLOURS](np.linspace(0.0, 0.82, count))
