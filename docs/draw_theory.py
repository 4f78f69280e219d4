"""Draws the maps of theory.md: ``python -m docs.draw_theory [FOLDER]``, from the repository's root (one minute).

Every value is the mean slowdown of the jobs over the second half of 40 iterations, over the jobs alone: the mean of the
seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from docs.compare_theory import LAB, pair
from placement.plots.style import FAINT, INK, JOB_COLOURS, MUTED, framed, write
from placement.simulator.network.laws.network_law import WINDOW_CONTROLS, Control, WindowLaw
from placement.simulator.network.laws.run import RunSettings, isolated_s, simulate
from placement.simulator.network.laws.workload import (
    FRAME_BYTES,
    ModelLink,
    PeriodicJob,
    bursts,
    one_burst,
    phased,
)

SEEDS = 3
RUN = RunSettings(iterations=40)
PERIOD_S = 0.386
LAWS: dict[str, Callable[[Control], WindowLaw]] = {
    "base": WindowLaw.unmodified,
    "paper": WindowLaw.paper,
    "remaining": WindowLaw.remaining,
}
COLOURS = {"base": MUTED, "paper": JOB_COLOURS[0], "remaining": JOB_COLOURS[4]}
LINES = {Control.RENO: "-", Control.CUBIC: "--", Control.DCTCP: ":"}
MISMATCHES = tuple(k / 100 for k in range(11))
DEMANDS = tuple(k / 10 for k in range(6, 13))
COLOUR_MAP = LinearSegmentedColormap.from_list("slowdown", ["#FFFFFF", "#F6D9A0", "#D55E00", "#4A1486"])
WORST_SHOWN = 1.3
NEAR_THE_BOUND = 0.015
BOUND_COLOUR = JOB_COLOURS[2]


@dataclass(frozen=True)
class Case:
    """One point of a map: a link and its jobs."""

    jobs: tuple[PeriodicJob, ...]
    link: ModelLink = LAB


def outcomes(case: Case) -> dict[tuple[Control, str], float]:
    """The slowdown of each control under each law."""
    alone_s = isolated_s(case.link, case.jobs, replace(RUN, iterations=10))
    found = {}
    for base in WINDOW_CONTROLS:
        for name, law in LAWS.items():
            found[base, name] = fmean(
                simulate(case.link, case.jobs, law(base), replace(RUN, seed=seed)).mean_slowdown(
                    alone_s, second_half=True
                )
                for seed in range(SEEDS)
            )
    return found


def held_bound(mismatch: float, demand: float, jobs: int = 2) -> float:
    """The smallest mean slowdown of jobs that take one period: the longest of their own and of the link's.

    Alone, each has a period that is longer than that of the one before by the mismatch, of the first one's.
    """
    alone = [1 + number * mismatch for number in range(jobs)]
    return fmean(max(alone[-1], demand) / each for each in alone)


def mismatch_and_demand() -> Figure:
    """A map for every control and law: dark is slow, a dot is as good as any law can be."""
    columns, rows = list(LAWS), list(WINDOW_CONTROLS)
    grid = {
        (mismatch, demand): outcomes(Case(pair(mismatch, demand / 2, PERIOD_S)))
        for mismatch in MISMATCHES
        for demand in DEMANDS
    }
    key = [("dot: within 1.5 % of the bound for a pair that is held", INK)]
    figure = framed("Slowdown by mismatch of periods and demand, two jobs", key, 6.3, columns=1)
    figure.delaxes(figure.axes[0])
    axes = figure.subplots(len(rows), len(columns), sharex=True, sharey=True)
    figure.subplots_adjust(hspace=0.22, wspace=0.08, right=0.88)
    for row, base in enumerate(rows):
        for column, law in enumerate(columns):
            values = np.array([[grid[m, d][base, law] for m in MISMATCHES] for d in DEMANDS])
            image = _map(axes[row][column], values)
            axes[row][column].set_title(f"{base.label}, {law}", fontsize=10)
    for each in axes[-1]:
        each.set_xlabel("mismatch of periods (%)")
        each.set_xticks(range(0, 11, 2))
    axes[1][0].set_ylabel("demand of both jobs (% of the link)")
    place = axes[1][-1].get_position()
    beside = figure.add_axes((place.x1 + 0.025, place.y0, 0.018, place.height))
    bar = figure.colorbar(image, cax=beside, extend="max")
    bar.set_label("mean slowdown")
    bar.set_ticks([1.0, 1.1, 1.2, WORST_SHOWN])
    return figure


def _map(axes: Axes, values: np.ndarray) -> AxesImage:
    extent = (-0.5, 100 * MISMATCHES[-1] + 0.5, 100 * DEMANDS[0] - 5, 100 * DEMANDS[-1] + 5)
    image = axes.imshow(
        values, origin="lower", aspect="auto", extent=extent, cmap=COLOUR_MAP, vmin=1.0, vmax=WORST_SHOWN
    )
    for i, demand in enumerate(DEMANDS):
        for j, mismatch in enumerate(MISMATCHES):
            if values[i, j] <= held_bound(mismatch, demand) + NEAR_THE_BOUND:
                axes.plot(100 * mismatch, 100 * demand, ".", color=INK, markersize=4)
    return image


def windows() -> Figure:
    """Over the window at which marks begin, with a link that is faster in proportion."""
    sizes = (2, 3, 4, 6, 8, 12, 16, 25, 50, 100, 200)

    def link(window: float) -> ModelLink:
        rate_bps = LAB.rate_bps * window / LAB.window_packets
        threshold = (
            window - LAB.rtt_s * rate_bps / 8 / FRAME_BYTES
        ) * FRAME_BYTES + LAB.burst_s * rate_bps / 8
        return ModelLink(rate_bps, 7.5 * threshold, threshold)

    panels = {
        f"periods differ by {100 * m:.0f} %": [Case(pair(m), link(window)) for window in sizes]
        for m in (0, 0.03)
    }
    figure = _lines("Slowdown by window size, two jobs at 43 %", "window (packets)", sizes, panels)
    for axes in figure.axes:
        axes.set_xscale("log")
        axes.set_xticks([2, 4, 8, 16, 50, 200], ["2", "4", "8", "16", "50", "200"])
        axes.minorticks_off()
    return figure


def several_bursts() -> Figure:
    """Over the number of bursts of an iteration."""
    counts = (1, 2, 3, 4, 5, 6)
    line_s = 0.43 * PERIOD_S

    def jobs(count: int, mismatch: float) -> tuple[PeriodicJob, ...]:
        silence_s = PERIOD_S - line_s
        return (
            bursts(line_s, silence_s, count),
            bursts(line_s, silence_s + mismatch * PERIOD_S, count),
        )

    panels = {
        f"periods differ by {100 * m:.0f} %": [Case(jobs(count, m)) for count in counts] for m in (0, 0.03)
    }
    return _lines("Slowdown by bursts an iteration, two jobs at 43 %", "bursts", counts, panels)


def below_line_rate() -> Figure:
    """Over the share of the line rate at which the phases of both jobs send."""
    shares = (0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 1.0)
    duration_s = 0.45 * PERIOD_S

    def jobs(share: float, mismatch: float) -> tuple[PeriodicJob, ...]:
        silence_s = PERIOD_S - duration_s
        return (
            phased([(silence_s, duration_s, share)]),
            phased([(silence_s + mismatch * PERIOD_S, duration_s, share)]),
        )

    panels = {
        f"periods differ by {100 * m:.0f} %": [Case(jobs(share, m)) for share in shares] for m in (0, 0.03)
    }
    return _lines(
        "Slowdown by the rate of the phases, two jobs that send for 45 % of the time",
        "rate of a phase (% of the link)",
        [100 * share for share in shares],
        panels,
    )


def several_jobs() -> Figure:
    """Over the mismatch, for two to four jobs that send for 86 % of the time together."""
    mismatches = (0, 0.005, 0.01, 0.02, 0.03, 0.05)

    def jobs(count: int, mismatch: float) -> tuple[PeriodicJob, ...]:
        line_s = 0.86 / count * PERIOD_S
        return tuple(one_burst(line_s, PERIOD_S - line_s + k * mismatch * PERIOD_S) for k in range(count))

    counts = (2, 3, 4)
    panels = {f"{count} jobs": [Case(jobs(count, m)) for m in mismatches] for count in counts}
    return _lines(
        "Slowdown by mismatch, jobs that need 86 % of the link together",
        "mismatch of neighbours (%)",
        [100 * m for m in mismatches],
        panels,
        {f"{count} jobs": [held_bound(m, 0.86, count) for m in mismatches] for count in counts},
    )


def _lines(
    title: str,
    label: str,
    values: Sequence[float],
    panels: dict[str, list[Case]],
    bounds: Mapping[str, Sequence[float]] | None = None,
) -> Figure:
    """A panel for each set of cases, with its bound where there is one."""
    bounds = bounds or {}
    key = [(name, COLOURS[name]) for name in LAWS] + [("solid Reno, dashed CUBIC, dotted DCTCP", MUTED)]
    if bounds:
        key.append(("bound of jobs that are held", BOUND_COLOUR))
    figure = framed(title, key, 3.0, columns=len(panels))
    for axes, (name, cases) in zip(figure.axes, panels.items(), strict=True):
        found = [outcomes(case) for case in cases]
        for base in WINDOW_CONTROLS:
            for law in LAWS:
                slowdowns = [each[base, law] for each in found]
                axes.plot(values, slowdowns, LINES[base], color=COLOURS[law], linewidth=1.5)
        if name in bounds:
            axes.plot(values, bounds[name], color=BOUND_COLOUR, linewidth=3.5, alpha=0.45, zorder=1)
        axes.set_title(name, fontsize=10.5, loc="left")
        axes.set_xlabel(label)
        axes.grid(color=FAINT)
        axes.set_ylim(bottom=0.99)
    highest = max(axes.get_ylim()[1] for axes in figure.axes)
    for axes in figure.axes:
        axes.set_ylim(0.99, highest)
    figure.axes[0].set_ylabel("slowdown, second half")
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "theory_mismatch.png": mismatch_and_demand,
    "theory_window.png": windows,
    "theory_bursts.png": several_bursts,
    "theory_rate.png": below_line_rate,
    "theory_jobs.png": several_jobs,
}


def main(arguments: list[str]) -> int:
    """Write the pictures into the folder given as the first argument (default: docs/pictures)."""
    folder = Path(arguments[0]) if arguments else Path("docs/pictures")
    for name, draw in PICTURES.items():
        write(draw, folder / name)
        print(folder / name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
