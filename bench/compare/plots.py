"""The pictures of a comparison: distributions, bars, who used the link when, and what compatibility has to do with it.

An approach has the same colour in all of them, and so has a job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from bench.compare.contend_results import ISOLATED
from bench.compare.report import compared
from bench.compare.results import (
    ApproachResult,
    ApproachRun,
    CompareResult,
    LinkExcerpt,
    SetResult,
    yardsticks,
)
from placement.plots.picture import INK, JOB_COLOURS, MUTED, framed, policy_colours

FAIR = "fair"
PANEL_IN, BAR_IN, ROW_IN = 3.4, 0.42, 1.15
_CHARACTER_IN = 0.083
_SENDING_SHARE = 0.05


@dataclass(frozen=True)
class Picture:
    """A picture: its name as that of a file, what it shows in one sentence, and how it is drawn."""

    name: str
    caption: str
    draw: Callable[[], Figure]


def pictures_of(one: SetResult, colours: dict[str, str]) -> list[Picture]:
    """The pictures that there are data for, of one set; `colours` are the approaches'."""
    found = [
        Picture(
            "slowdown",
            "Mean slowdown, its spread over repeats, and what the network saw.",
            lambda: bars_figure(one, colours),
        ),
        Picture(
            "distribution", "How many iterations took how long.", lambda: distribution_figure(one, colours)
        ),
        Picture(
            "iterations",
            "Every iteration of every job, in the repeat of middle length.",
            lambda: iterations_figure(one),
        ),
    ]
    if any(each.middle_run.link_use for each in one.approaches):
        found.append(
            Picture(
                "link",
                "Who used the link, in the first and in the last seconds in which all jobs ran.",
                lambda: link_figure(one),
            )
        )
    return found


def colours_of(result: CompareResult) -> dict[str, str]:
    """A colour for every approach; isolated jobs are grey."""
    others = [name for name in result.approaches if name != ISOLATED]
    return {ISOLATED: MUTED, **policy_colours(others)}


def bars_figure(one: SetResult, colours: dict[str, str]) -> Figure:
    """Left the slowdown, its spread and 99th percentile; right marks or, if there are none, retransmissions."""
    names = [each.approach for each in one.approaches]
    left_in = 0.35 + _CHARACTER_IN * max(map(len, names))
    marked = any(each.figures.marks_per_iteration for each in one.approaches)
    figure = framed(
        f"{one.name}: slowdown, and {'marks' if marked else 'retransmissions'}",
        [("mean", INK), ("line: smallest to largest repeat", MUTED), ("|  99th percentile", MUTED)],
        max(2, len(names)) * BAR_IN,
        columns=2,
        left_in=left_in,
    )
    slow, signs = figure.axes
    for row, each in enumerate(one.approaches):
        _bar(slow, row, each, colours[each.approach])
        figures = each.figures
        shown = figures.marks_per_iteration if marked else figures.retransmits_per_iteration
        signs.barh(row, shown, height=0.62, color=colours[each.approach], linewidth=0)
    with_yardstick = any(each.figures.slowdown is not None for each in one.approaches)
    slow.set_xlabel("iteration time over isolated" if with_yardstick else "iteration time, s")
    if with_yardstick:
        slow.axvline(1, color=INK, linewidth=0.9)
    signs.set_xlabel("marked packets an iteration" if marked else "segments sent again an iteration")
    slow.set_yticks(range(len(names)), names, color=INK)
    signs.set_yticks([])
    for ax in figure.axes:
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.set_xlim(left=0)
        ax.grid(axis="x")
    return figure


def distribution_figure(one: SetResult, colours: dict[str, str]) -> Figure:
    """The share of iterations that took so long, or less: a line an approach."""
    shown = {each.approach: _slowdowns(each, one) for each in one.approaches}
    figure = framed(f"{one.name}: iteration times", [(name, colours[name]) for name in shown], PANEL_IN)
    (ax,) = figure.axes
    widths = np.linspace(2.8, 1.4, len(shown))
    for (name, values), width in zip(shown.items(), widths, strict=True):
        ax.ecdf(values, color=colours[name], linewidth=width)
    with_yardstick = bool(yardsticks(one.measured.runs))
    ax.set_xlabel("iteration time over isolated" if with_yardstick else "iteration time, s")
    ax.set_ylabel("share of iterations")
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.set_ylim(0, 1.01)
    ax.grid()
    return figure


def iterations_figure(one: SetResult) -> Figure:
    """Iteration times over time: a panel an approach, a line a job."""
    shown = [each for each in one.approaches if each.approach != ISOLATED] or list(one.approaches)
    colours = _job_colours(one)
    figure, axes = _rows(f"{one.name}: iteration by iteration", colours, len(shown), 1)
    for each, (ax,) in zip(shown, axes, strict=True):
        run = each.middle_run
        alone = yardsticks(one.measured.runs).get(run.repeat)
        for job in run.jobs:
            times = np.array(job.iteration_s) / (alone[job.job] if alone else 1)
            ax.plot(job.began_s, times, color=colours[job.job], linewidth=1.5, marker="o", ms=2)
        _annotate(ax, one, run)
        _name(ax, each.approach)
        ax.grid(axis="y")
        ax.yaxis.set_major_locator(MaxNLocator(4))
        ax.set_ylabel("slowdown" if alone else "s")
    _share_limits([ax for (ax,) in axes])
    _only_lowest(axes)
    axes[-1][0].set_xlabel("seconds from the start")
    return figure


def link_figure(one: SetResult) -> Figure:
    """Who used the link when, stacked by job: at the start and at the end of each run."""
    shown = [each for each in one.approaches if each.middle_run.link_use]
    colours = _job_colours(one)
    figure, axes = _rows(f"{one.name}: who uses the link", colours, len(shown), 2)
    for each, row in zip(shown, axes, strict=True):
        use = each.middle_run.link_use
        for ax, excerpt, where in zip(row, (use[0], use[-1]), ("start", "end"), strict=True):
            _draw_use(ax, excerpt, colours)
            _name(ax, f"{each.approach}, {where}", f"shared {100 * overlap(excerpt):.0f} % of busy time")
        row[0].set_ylabel("Mbit/s")
    _share_limits([ax for row in axes for ax in row], x=False)
    _only_lowest(axes)
    for ax in axes[-1]:
        ax.set_xlabel("seconds from the start")
    return figure


def gain_figure(result: CompareResult, colours: dict[str, str]) -> Figure:
    """The gain over fair sharing against the compatibility score of the set: a line an approach.

    Only for sets with a score that were run under `fair` and something else; see :func:`gains`.
    """
    found = gains(result)
    figure = framed(
        "Compatibility, and what it is worth",
        [*((name, colours[name]) for name in found), ("fair = 1, dashed", MUTED)],
        PANEL_IN,
    )
    (ax,) = figure.axes
    for name, points in found.items():
        scores, values = zip(*((score, gain) for _, score, gain in points), strict=True)
        ax.plot(scores, values, "o-", color=colours[name], linewidth=1.6, ms=5)
    ax.axhline(1, color=MUTED, linewidth=1.1, linestyle=(0, (4, 3)))
    highest = max(gain for points in found.values() for _, _, gain in points)
    for score, names in _names_by_score(found).items():
        ax.annotate(
            names,
            (score, max(1.0, highest)),
            (0, 10),
            textcoords="offset points",
            ha="center",
            fontsize=8.5,
            color=MUTED,
        )
    ax.margins(x=0.1, y=0.3)
    ax.set_xlabel("compatibility score of the set (Table 4.1)")
    ax.set_ylabel("iteration time under fair over this")
    ax.grid()
    return figure


def gains(result: CompareResult) -> dict[str, list[tuple[str, float, float]]]:
    """For each approach: set, score and gain over fair, of all sets that have both, by score."""
    found: dict[str, list[tuple[str, float, float]]] = {}
    for one in result.sets:
        fair, score = one.approach(FAIR), one.measured.score
        if fair is None or score is None:
            continue
        for each in one.approaches:
            if each.approach not in (FAIR, ISOLATED):
                gain = compared(fair) / compared(each)
                found.setdefault(each.approach, []).append((one.name, score, gain))
    return {name: sorted(points, key=lambda point: point[1]) for name, points in found.items()}


def _names_by_score(found: dict[str, list[tuple[str, float, float]]]) -> dict[float, str]:
    """The sets of each score, one below the other."""
    pairs = dict.fromkeys((name, round(score, 2)) for points in found.values() for name, score, _ in points)
    scores = dict.fromkeys(score for _, score in pairs)
    return {score: "\n".join(name for name, same in pairs if same == score) for score in scores}


def overlap(use: LinkExcerpt) -> float:
    """The share, from 0 to 1, of the time in which the link is used that two or more jobs use it."""
    job_bytes = np.array([list(values) for values in use.job_bytes.values()])
    sending = job_bytes > _SENDING_SHARE * job_bytes.max(initial=0)
    busy = np.count_nonzero(sending.any(axis=0))
    return float(np.count_nonzero(sending.sum(axis=0) >= 2) / busy) if busy else 0.0


def _bar(ax: Axes, row: int, each: ApproachResult, colour: str) -> None:
    value = compared(each)
    ax.barh(row, value, height=0.62, color=colour, linewidth=0)
    low = each.lowest.slowdown or each.lowest.mean_s
    high = each.highest.slowdown or each.highest.mean_s
    tail = each.figures.p99_slowdown or each.figures.p99_s
    ax.plot([low, high], [row, row], color=INK, linewidth=1.4)
    ax.plot([tail, tail], [row - 0.31, row + 0.31], color=INK, linewidth=1.1)
    ax.text(0, row, f" {value:.2f}", va="center", fontsize=9.5, color="white")


def _slowdowns(each: ApproachResult, one: SetResult) -> list[float]:
    """Of all iterations over the job's isolated time in the same repeat; in seconds where there is none."""
    alone = yardsticks(one.measured.runs)
    return [
        time_s / alone[run.repeat][job.job] if run.repeat in alone else time_s
        for run in each.runs
        for job in run.jobs
        for time_s in job.iteration_s
    ]


def _job_colours(one: SetResult) -> dict[str, str]:
    names = dict.fromkeys(job.job for run in one.measured.runs for job in run.jobs)
    return {name: JOB_COLOURS[index % len(JOB_COLOURS)] for index, name in enumerate(names)}


def _rows(title: str, colours: dict[str, str], rows: int, columns: int) -> tuple[Figure, list[list[Axes]]]:
    """A figure with rows of panels instead of one row."""
    height_in = rows * ROW_IN + (rows - 1) * 0.45
    figure = framed(title, list(colours.items()), height_in)
    (only,) = figure.axes
    place = only.get_subplotspec()
    assert place is not None
    only.remove()
    grid = place.subgridspec(rows, columns, hspace=0.45 / ROW_IN, wspace=0.14)
    return figure, [
        [figure.add_subplot(grid[row, column]) for column in range(columns)] for row in range(rows)
    ]


def _annotate(ax: Axes, one: SetResult, run: ApproachRun) -> None:
    """When compute times changed, and when jobs were moved."""
    change = one.measured.change
    if (
        change is not None
        and (job := run.job(change.job)) is not None
        and change.iteration < len(job.began_s)
    ):
        ax.axvline(job.began_s[change.iteration], color=INK, linewidth=1.0, linestyle=(0, (2, 2)))
    for shift in run.shifts:
        if shift.delay_s > 0:
            ax.axvline(shift.at_s, color=MUTED, linewidth=0.7)


def _draw_use(ax: Axes, use: LinkExcerpt, colours: dict[str, str]) -> None:
    jobs = [job for job in colours if job in use.job_bytes]
    rates = [np.asarray(use.job_bytes[job]) * 8 / use.bin_s / 1e6 for job in jobs]
    times_s = use.from_s + np.arange(len(rates[0])) * use.bin_s
    ax.stackplot(times_s, rates, colors=[colours[job] for job in jobs], linewidth=0, step="post")
    ax.set_xlim(times_s[0], times_s[-1])
    ax.yaxis.set_major_locator(MaxNLocator(3))


def _name(ax: Axes, text: str, note: str = "") -> None:
    ax.set_title(text, loc="left", fontsize=10.5)
    if note:
        ax.set_title(note, loc="right", color=MUTED, fontsize=9)


def _share_limits(axes: Sequence[Axes], x: bool = True) -> None:
    """Give all panels the same scale: they are there to be compared."""
    lows, highs = zip(*(ax.get_ylim() for ax in axes), strict=True)
    firsts, lasts = zip(*(ax.get_xlim() for ax in axes), strict=True)
    for ax in axes:
        ax.set_ylim(min(lows), max(highs))
        if x:
            ax.set_xlim(min(firsts), max(lasts))


def _only_lowest(axes: Sequence[Sequence[Axes]]) -> None:
    """Tick labels where they are needed: on the lowest panel of a column and the leftmost of a row."""
    for row in axes:
        for ax in row[1:]:
            ax.tick_params(labelleft=False)
