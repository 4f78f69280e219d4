"""The pictures of a comparison: slowdowns, distributions, iterations, the use of the link, and gains by compatibility.

An approach has the same colour in every picture, and so has a job. A base control is a paler shade of its ``mltcp_``
control. Time series show the repeat with the median iteration time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from bench.compare.report.text import PREFIX
from bench.compare.results.figures import slowdowns
from bench.compare.results.journal import writable
from bench.compare.results.results import ApproachResult, CompareResult, SetResult
from bench.compare.results.runs import FAIR, ISOLATED, ApproachRun, LinkExcerpt
from placement.plots.style import INK, JOB_COLOURS, MUTED, framed, paler, policy_colours, write

PANEL_IN, SMALL_PANEL_IN, BAR_IN, ROW_IN, GAP_IN = 3.4, 2.1, 0.42, 1.15, 0.45
SHOWN_ITERATIONS = 4
_CHARACTER_IN = 0.083
_NAME_SIZE, _LONGEST_NAME = 10.5, 24
# A job counts as sending in a bin that holds more than this share of the fullest one; single packets do not.
_SENDING_SHARE = 0.05
_DASHED = (0, (4, 3))
_ROUND_STEPS = [1, 2, 5, 10]

Colours = dict[str, str]


@dataclass(frozen=True)
class Picture:
    """A picture: the stem of its file's name, a caption of one sentence, and the function that draws it."""

    name: str
    caption: str
    draw: Callable[[], Figure]


def pictures_of(one: SetResult, colours: Colours) -> list[Picture]:
    """The pictures of one set of jobs for which there are data; `colours` are the approaches'."""
    found = [
        Picture(
            "slowdown",
            "Mean slowdown, its spread over repeats, and marks or retransmissions.",
            lambda: bars_figure(one, colours),
        ),
        Picture(
            "distribution",
            "The share of iterations that took at most a given time.",
            lambda: distribution_figure(one, colours),
        ),
        Picture(
            "iterations",
            "Every iteration of every job, in the repeat of median length.",
            lambda: iterations_figure(one),
        ),
    ]
    if _with_link_use(one):
        found.append(
            Picture(
                "link",
                "The use of the link at the start of a run and before its first job ends.",
                lambda: link_figure(one),
            )
        )
    return found


def contend_pictures(one: SetResult) -> list[Picture]:
    """The pictures of `mltcp-bench contend`, under the names of their files."""
    names = {"iterations": "iterations", "link": "link_use"}
    if one.baselines:
        names["distribution"] = "slowdown"
    if not one.contended:
        return []
    found = {each.name: each for each in pictures_of(one, colours_of(CompareResult((one,))))}
    return [
        Picture(names[name], found[name].caption, found[name].draw)
        for name in ("iterations", "link", "distribution")
        if name in found and name in names
    ]


def write_pictures(pictures: Sequence[Picture], directory: Path) -> tuple[Path, ...]:
    """Write the pictures as PNG files into the directory, made if need be; returns their paths.

    Raises:
        UsageError: nothing can be written there.
    """
    paths = [directory / f"{picture.name}.png" for picture in pictures]
    with writable(directory):
        for picture, path in zip(pictures, paths, strict=True):
            write(picture.draw, path)
    return tuple(paths)


def colours_of(result: CompareResult) -> Colours:
    """The colour of every approach; isolated jobs are grey."""
    names = [name for name in result.approaches if name != ISOLATED]
    hues = policy_colours(list(dict.fromkeys(name.removeprefix(PREFIX) for name in names)))
    colours = {ISOLATED: MUTED}
    for name in names:
        hue = hues[name.removeprefix(PREFIX)]
        colours[name] = paler(hue) if PREFIX + name in names else hue
    return colours


def bars_figure(one: SetResult, colours: Colours) -> Figure:
    """Left the slowdown, its spread and 99th percentile; right marks or, if there are none, retransmissions."""
    names = [each.approach for each in one.approaches]
    left_in = 0.35 + _CHARACTER_IN * max(map(len, names))
    marked = any(each.figures.marks_per_iteration for each in one.approaches)
    figure = framed(
        _title(one, f"slowdown, and {'marks' if marked else 'retransmissions'}"),
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
    slow.set_xlabel(_slowdown_label(one))
    if one.baselines:
        slow.axvline(1, color=INK, linewidth=0.9)
    signs.set_xlabel("marked packets an iteration" if marked else "retransmitted segments an iteration")
    slow.set_yticks(range(len(names)), names, color=INK)
    signs.set_yticks([])
    for ax in figure.axes:
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.set_xlim(left=0)
        ax.grid(axis="x")
    return figure


def distribution_figure(one: SetResult, colours: Colours) -> Figure:
    """The share of iterations up to a given time: a line for each approach.

    If ``mltcp_`` controls ran beside their base controls, each such pair has a panel of its own.
    """
    panels = _pairs(one.contended)
    if all(len(panel) == 1 for panel in panels):
        panels = [one.contended]
    isolated = one.approach(ISOLATED)
    if isolated is not None:
        panels = [[*panel, isolated] for panel in panels]
    key = [(each.approach, colours[each.approach]) for each in one.approaches]
    columns = len(panels) if len(panels) <= 3 else 2
    rows = -(-len(panels) // columns)
    panel_in = PANEL_IN if len(panels) == 1 else SMALL_PANEL_IN
    figure, axes = _grid(_title(one, "distribution of iteration times"), key, rows, columns, panel_in)
    flat = [ax for row in axes for ax in row]
    for ax, panel in zip(flat, panels, strict=False):
        for each, width in zip(panel, np.linspace(2.8, 1.4, len(panel)), strict=True):
            ax.ecdf(_iterations(each, one), color=colours[each.approach], linewidth=width)
        if len(panels) > 1:
            _name(ax, ", ".join(each.approach for each in panel if each is not isolated))
        ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        ax.set_ylim(0, 1.01)
        ax.grid()
    _drop_after(axes, len(panels))
    _label_edges(axes, _slowdown_label(one), "share of iterations")
    return figure


def iterations_figure(one: SetResult) -> Figure:
    """The slowdown of each iteration over time: a panel for each approach, a line for each job."""
    shown = one.contended or list(one.approaches)
    colours = _job_colours(one)
    rows = _rows(shown)
    key = [*colours.items(), *([("isolated, dashed", MUTED)] if one.baselines else [])]
    title = _title(one, "iteration time of jobs that share the network")
    figure, axes = _grid(title, key, len(rows), len(rows[0]), ROW_IN)
    for row, panels in zip(axes, rows, strict=True):
        for ax, each in zip(row, panels, strict=False):
            _draw_iterations(ax, each, one, colours)
    _drop_after(axes, len(shown))
    _label_edges(axes, "seconds from the start", "slowdown" if one.baselines else "seconds")
    return figure


def link_figure(one: SetResult) -> Figure:
    """The use of the link, stacked by job: at the start of each run, and before its first job ends."""
    shown = _with_link_use(one)
    colours = _job_colours(one)
    excerpts = [each.middle_run.link_use for each in shown]
    lengths = [use.bin_s * len(_bins(use)[0]) for pair in excerpts for use in pair]
    window_s = min(max(lengths), SHOWN_ITERATIONS * max(_longest_mean_s(each.middle_run) for each in shown))
    title = _title(one, "use of the link, at the start and at the end of a run")
    figure, axes = _grid(title, list(colours.items()), len(shown), 2, ROW_IN)
    for each, (first, last), row in zip(shown, ((use[0], use[-1]) for use in excerpts), axes, strict=True):
        for ax, use, at_end in zip(row, (first, last), (False, True), strict=True):
            part = _part(use, window_s, at_end)
            _draw_use(ax, part, -window_s if at_end else 0.0, window_s, colours)
            shared = f"shared {100 * overlap(part):.0f} % of busy time"
            _name(ax, f"{each.approach}, {'end' if at_end else 'start'}", shared)
    _share_limits([ax for row in axes for ax in row], x=False)
    _label_edges(axes, "", "Mbit/s")
    axes[-1][0].set_xlabel("seconds from the start")
    axes[-1][1].set_xlabel("seconds to the end of the first job")
    return figure


def gain_figure(result: CompareResult, colours: Colours) -> Figure:
    """The gain over fair sharing against the compatibility score of the set: a line for each approach.

    It covers the sets with a score that were run under `fair` and another approach; see :func:`gains`.
    """
    found = gains(result)
    figure = framed(
        "Gain over fair sharing, by compatibility",
        [*((name, colours[name]) for name in found), ("fair = 1, dashed", MUTED)],
        PANEL_IN,
    )
    (ax,) = figure.axes
    for name, points in found.items():
        scores, values = zip(*((score, gain) for _, score, gain in points), strict=True)
        ax.plot(scores, values, "o-", color=colours[name], linewidth=1.6, ms=5)
    ax.axhline(1, color=MUTED, linewidth=1.1, linestyle=_DASHED)
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
        for each in one.contended:
            if each is not fair:
                point = (one.name, score, fair.compared / each.compared)
                found.setdefault(each.approach, []).append(point)
    return {name: sorted(points, key=lambda point: point[1]) for name, points in found.items()}


def overlap(use: LinkExcerpt) -> float:
    """The share of the time in which the link is used that two or more jobs use it, from 0 to 1."""
    job_bytes = _bins(use)
    sending = job_bytes > _SENDING_SHARE * job_bytes.max(initial=0)
    busy = np.count_nonzero(sending.any(axis=0))
    return float(np.count_nonzero(sending.sum(axis=0) >= 2) / busy) if busy else 0.0


def _title(one: SetResult, text: str) -> str:
    return f"{one.name}: {text}" if one.name else text[0].upper() + text[1:]


def _slowdown_label(one: SetResult) -> str:
    return "iteration time over isolated" if one.baselines else "iteration time, s"


def _with_link_use(one: SetResult) -> list[ApproachResult]:
    return [each for each in one.contended if each.middle_run.link_use]


def _pairs(approaches: Sequence[ApproachResult]) -> list[list[ApproachResult]]:
    """The approaches, each base control together with its mltcp_ control, in that order."""
    groups: dict[str, list[ApproachResult]] = {}
    for each in approaches:
        groups.setdefault(each.approach.removeprefix(PREFIX), []).append(each)
    return [sorted(group, key=lambda each: each.approach.startswith(PREFIX)) for group in groups.values()]


def _rows(approaches: Sequence[ApproachResult]) -> list[list[ApproachResult]]:
    """Rows of panels: a base control beside its mltcp_ control, the others behind; one a row if there are no pairs."""
    pairs = sorted(_pairs(approaches), key=lambda pair: -len(pair))
    flat = [each for pair in pairs for each in pair]
    columns = len(pairs[0])
    return [flat[first : first + columns] for first in range(0, len(flat), columns)]


def _names_by_score(found: dict[str, list[tuple[str, float, float]]]) -> dict[float, str]:
    """The names of the sets of each score, one below the other."""
    pairs = dict.fromkeys((name, round(score, 2)) for points in found.values() for name, score, _ in points)
    scores = dict.fromkeys(score for _, score in pairs)
    return {score: "\n".join(name for name, same in pairs if same == score) for score in scores}


def _bar(ax: Axes, row: int, each: ApproachResult, colour: str) -> None:
    ax.barh(row, each.compared, height=0.62, color=colour, linewidth=0)
    tail = each.figures.p99_slowdown or each.figures.p99_s
    ax.plot(each.spread, [row, row], color=INK, linewidth=1.4)
    ax.plot([tail, tail], [row - 0.31, row + 0.31], color=INK, linewidth=1.1)
    ax.text(0, row, f" {each.compared:.2f}", va="center", fontsize=9.5, color="white")


def _iterations(each: ApproachResult, one: SetResult) -> list[float]:
    """The slowdowns of all iterations of all repeats; their times in seconds if there is no baseline."""
    return [value for run in each.runs for job in _job_iterations(run, one) for value in job]


def _job_iterations(run: ApproachRun, one: SetResult) -> Sequence[Sequence[float]]:
    return slowdowns(run, one.baselines.get(run.repeat)) or [job.iteration_s for job in run.jobs]


def _job_colours(one: SetResult) -> Colours:
    names = dict.fromkeys(job.job for run in one.measured.runs for job in run.jobs)
    return {name: JOB_COLOURS[index % len(JOB_COLOURS)] for index, name in enumerate(names)}


def _grid(
    title: str, key: Sequence[tuple[str, str]], rows: int, columns: int, row_in: float
) -> tuple[Figure, list[list[Axes]]]:
    """A figure with rows of panels instead of one row."""
    figure = framed(title, key, rows * row_in + (rows - 1) * GAP_IN)
    (only,) = figure.axes
    place = only.get_subplotspec()
    assert place is not None
    only.remove()
    grid = place.subgridspec(rows, columns, hspace=GAP_IN / row_in, wspace=0.14)
    return figure, [
        [figure.add_subplot(grid[row, column]) for column in range(columns)] for row in range(rows)
    ]


def _draw_iterations(ax: Axes, each: ApproachResult, one: SetResult, colours: Colours) -> None:
    run = each.middle_run
    if one.baselines:
        ax.axhline(1, color=MUTED, linewidth=1.1, linestyle=_DASHED)
    for job, values in zip(run.jobs, _job_iterations(run, one), strict=True):
        ax.plot(job.began_s, values, color=colours[job.job], linewidth=1.5, marker="o", ms=2)
    _mark_changes(ax, one, run)
    slowdown = each.figures.slowdown
    _name(ax, each.approach, "" if slowdown is None else f"{slowdown:.2f}x isolated on average")
    ax.grid(axis="y")
    ax.margins(y=0.12)
    ax.yaxis.set_major_locator(MaxNLocator(4, steps=_ROUND_STEPS))


def _mark_changes(ax: Axes, one: SetResult, run: ApproachRun) -> None:
    """Vertical lines where compute times changed, and where jobs were shifted in time."""
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


def _draw_use(ax: Axes, use: LinkExcerpt, from_s: float, window_s: float, colours: Colours) -> None:
    jobs = [job for job in colours if job in use.job_bytes]
    rates = [np.asarray(use.job_bytes[job]) * 8 / use.bin_s / 1e6 for job in jobs]
    times_s = from_s + np.arange(len(rates[0])) * use.bin_s
    ax.stackplot(times_s, rates, colors=[colours[job] for job in jobs], linewidth=0, step="post")
    ax.set_xlim(from_s, from_s + window_s)
    ax.xaxis.set_major_locator(MaxNLocator(5, steps=_ROUND_STEPS))
    ax.yaxis.set_major_locator(MaxNLocator(3, steps=_ROUND_STEPS))


def _part(use: LinkExcerpt, window_s: float, at_end: bool) -> LinkExcerpt:
    """The first or the last seconds of an excerpt."""
    count = max(1, round(window_s / use.bin_s))
    bins = slice(-count, None) if at_end else slice(count)
    job_bytes = {job: values[bins] for job, values in use.job_bytes.items()}
    return LinkExcerpt(use.link, use.rate_bps, use.from_s, use.bin_s, job_bytes)


def _bins(use: LinkExcerpt) -> NDArray[np.int64]:
    return np.array([list(values) for values in use.job_bytes.values()], dtype=np.int64)


def _longest_mean_s(run: ApproachRun) -> float:
    return max(float(np.mean(job.iteration_s)) for job in run.jobs)


def _name(ax: Axes, text: str, note: str = "") -> None:
    """A panel's title; a long one is smaller, so that it does not run into the note at the right."""
    ax.set_title(text, loc="left", fontsize=_NAME_SIZE * min(1.0, _LONGEST_NAME / max(1, len(text))))
    if note:
        ax.set_title(note, loc="right", color=MUTED, fontsize=9)


def _drop_after(axes: Sequence[Sequence[Axes]], count: int) -> None:
    """Remove the panels behind the first `count`, and give those the same scale."""
    flat = [ax for row in axes for ax in row]
    for ax in flat[count:]:
        ax.remove()
    _share_limits(flat[:count])


def _share_limits(axes: Sequence[Axes], x: bool = True) -> None:
    """Give all panels the same scale, so that they can be compared."""
    lows, highs = zip(*(ax.get_ylim() for ax in axes), strict=True)
    firsts, lasts = zip(*(ax.get_xlim() for ax in axes), strict=True)
    for ax in axes:
        ax.set_ylim(min(lows), max(highs))
        if x:
            ax.set_xlim(min(firsts), max(lasts))


def _label_edges(axes: Sequence[Sequence[Axes]], x_label: str, y_label: str) -> None:
    """Label the first panel of each row and the lowest of each column, and drop the tick labels in between."""
    for row in axes:
        shown = [ax for ax in row if ax.figure is not None]
        shown[0].set_ylabel(y_label)
        for ax in shown[1:]:
            ax.tick_params(labelleft=False)
    for column in zip(*axes, strict=True):
        shown = [ax for ax in column if ax.figure is not None]
        for ax in shown[:-1]:
            ax.tick_params(labelbottom=False)
        if shown:
            shown[-1].set_xlabel(x_label)
