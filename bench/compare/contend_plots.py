"""The pictures of a `contend` run, as PNG files.

A job has the same colour in every picture, and so has a policy; both palettes can be told apart by
colour-blind readers (Okabe and Ito's for jobs, Tol's "muted" for policies, where a base control is a paler
shade of its mltcp_ control). Where a policy was repeated, time series show the repeat with the median
iteration time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from bench.compare.contend_results import ISOLATED, ContendResult, LinkUse, PolicyResult
from mltcp.core.errors import UsageError

JOB_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
BASE_COLOURS = {"reno": "#332288", "cubic": "#882255", "dctcp": "#117733", "bbr": "#AA4499"}
OTHER_COLOURS = ("#44AA99", "#999933", "#CC6677", "#88CCEE")
INK, MUTED, FAINT = "#222222", "#707070", "#D8D8D8"
PREFIX = "mltcp_"

WIDTH_IN, DPI = 9.0, 180
LEFT_IN, RIGHT_IN, TOP_IN, BOTTOM_IN, GAP_IN = 0.85, 0.2, 1.05, 0.6, 0.42
SHOWN_ITERATIONS = 4
SAME_TIME = 1.02
ROUND_STEPS = [1, 2, 5, 10]
NAME_SIZE, LONGEST_NAME = 11, 21
# A job counts as sending in a bin that holds more than this share of the fullest one; lone packets do not.
SENDING_SHARE = 0.05

# Any: newer type stubs of matplotlib list the names that are allowed, older ones do not.
STYLE: Any = {
    "font.size": 10.5,
    "axes.titlesize": NAME_SIZE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 10,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "text.color": INK,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
}

Panels = Sequence[Sequence[PolicyResult | None]]


def write_plots(result: ContendResult, directory: Path) -> tuple[Path, ...]:
    """Write every picture that the result has data for into the directory, made if need be; return the paths.

    Raises UsageError if the directory cannot be written to.
    """
    pictures: list[tuple[str, Callable[[ContendResult], Figure]]] = []
    if _contended(result):
        pictures.append(("iterations.png", iterations_figure))
    if _with_link_use(result):
        pictures.append(("link_use.png", link_use_figure))
    if _contended(result) and result.isolated_s:
        pictures.append(("slowdown.png", slowdown_figure))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, draw in pictures:
            with mpl.rc_context(STYLE):
                draw(result).savefig(directory / name, dpi=DPI)
    except OSError as error:
        raise UsageError(f"cannot write plots to {directory}: {error.strerror or error}") from error
    return tuple(directory / name for name, _ in pictures)


def iterations_figure(result: ContendResult) -> Figure:
    """Iteration time over iterations: a panel a policy, a line a job, the isolated time as a dashed line."""
    panels = _side_by_side(_contended(result))
    colours = _job_colours(result)
    figure, axes = _grid(len(panels), max(len(row) for row in panels), row_in=1.4)
    _header(
        figure, "Iteration time of jobs that share one link", [*colours.items(), ("isolated, dashed", MUTED)]
    )
    shown = _shown_axes(axes, panels)
    for policy, ax in shown:
        _draw_iterations(ax, policy, result, colours)
    _share_limits([ax for _, ax in shown])
    _label_edges(axes, "iteration", "seconds")
    return figure


def link_use_figure(result: ContendResult) -> Figure:
    """Who uses the link when: at the start and at the end of each run, stacked by job."""
    policies = _with_link_use(result)
    colours = _job_colours(result)
    window_s = SHOWN_ITERATIONS * max(_mean_iteration_s(policy) for policy in policies)
    figure, axes = _grid(len(policies), 2, row_in=0.95)
    _header(figure, "Who uses the link, at the start and at the end of a run", [*colours.items()])
    for policy, row in zip(policies, axes, strict=True):
        use = policy.middle_run.link_use
        assert use is not None
        start, end = _excerpt(use, window_s, at_end=False), _excerpt(use, window_s, at_end=True)
        _draw_link_use(row[0], use, start, 0.0, colours)
        _draw_link_use(row[1], use, end, -window_s, colours)
        _name(row[0], f"{policy.policy}, start")
        _name(row[1], f"{policy.policy}, end")
    _share_limits([ax for row in axes for ax in row], x=False)
    for row in axes:
        row[0].set_xlim(0, window_s)
        row[1].set_xlim(-window_s, 0)
    _label_edges(axes, "", "Mbit/s")
    axes[-1][0].set_xlabel("seconds from the start")
    axes[-1][1].set_xlabel("seconds to the end")
    return figure


def slowdown_figure(result: ContendResult) -> Figure:
    """The distribution of the slowdown: a panel a base control, with its mltcp_ control and isolated jobs."""
    groups = [[policy for policy in row if policy] for row in _side_by_side(_contended(result))]
    columns = len(groups) if len(groups) <= 3 else 2
    figure, axes = _grid(-(-len(groups) // columns), columns, row_in=2.1)
    figure.subplots_adjust(top=1 - (TOP_IN - 0.2) / figure.get_figheight())
    _header(figure, "How many iterations are slowed down, and by how much", [])
    flat = [ax for row in axes for ax in row]
    isolated = result.policy(ISOLATED)
    for ax, group in zip(flat, groups, strict=False):
        shown = [*group, *([isolated] if isolated else [])]
        _draw_distribution(ax, shown[::-1], result)
        _coloured_title(ax, [(policy.policy, _policy_colour(result, policy.policy)) for policy in shown])
    for ax in flat[len(groups) :]:
        ax.remove()
    _share_limits(flat[: len(groups)], y=False)
    _label_edges(axes, "iteration time over isolated", "share of iterations")
    return figure


def overlap(use: LinkUse) -> float:
    """The share, from 0 to 1, of the time in which the link is used that two or more jobs use it."""
    sending = _sending(use)
    busy = np.count_nonzero(sending.any(axis=0))
    return float(np.count_nonzero(sending.sum(axis=0) >= 2) / busy) if busy else 0.0


def _contended(result: ContendResult) -> list[PolicyResult]:
    return [policy for policy in result.policies if policy.policy != ISOLATED]


def _with_link_use(result: ContendResult) -> list[PolicyResult]:
    return [policy for policy in _contended(result) if policy.middle_run.link_use is not None]


def _side_by_side(policies: Sequence[PolicyResult]) -> list[list[PolicyResult | None]]:
    """Rows of a base control and its mltcp_ control; a policy that has no counterpart leaves a gap."""
    named = {policy.policy: policy for policy in policies}
    bases = dict.fromkeys(name.removeprefix(PREFIX) for name in named)
    rows = [[named.get(base), named.get(PREFIX + base)] for base in bases]
    if any(row[1] for row in rows):
        return rows
    return [[row[0] for row in rows[index : index + 2]] for index in range(0, len(rows), 2)]


def _job_colours(result: ContendResult) -> dict[str, str]:
    names = dict.fromkeys(job.job for policy in result.policies for job in policy.jobs)
    return {name: JOB_COLOURS[index % len(JOB_COLOURS)] for index, name in enumerate(names)}


def _policy_colour(result: ContendResult, policy: str) -> str:
    if policy == ISOLATED:
        return MUTED
    base = policy.removeprefix(PREFIX)
    others = [name for name in _base_names(result) if name not in BASE_COLOURS]
    colour = BASE_COLOURS.get(base) or OTHER_COLOURS[others.index(base) % len(OTHER_COLOURS)]
    return colour if policy.startswith(PREFIX) else _paler(colour)


def _base_names(result: ContendResult) -> list[str]:
    return list(dict.fromkeys(policy.policy.removeprefix(PREFIX) for policy in _contended(result)))


def _paler(colour: str) -> str:
    red, green, blue = to_rgb(colour)
    return to_hex(((1 + red) / 2, (1 + green) / 2, (1 + blue) / 2))


def _grid(rows: int, columns: int, row_in: float) -> tuple[Figure, list[list[Axes]]]:
    """A figure of README width with margins in inches, so that text has the same size in every picture."""
    height_in = TOP_IN + BOTTOM_IN + rows * row_in + (rows - 1) * GAP_IN
    figure = Figure(figsize=(WIDTH_IN, height_in))
    FigureCanvasAgg(figure)
    figure.subplots_adjust(
        left=LEFT_IN / WIDTH_IN,
        right=1 - RIGHT_IN / WIDTH_IN,
        top=1 - TOP_IN / height_in,
        bottom=BOTTOM_IN / height_in,
        hspace=GAP_IN / row_in,
        wspace=0.14,
    )
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, [list(row) for row in axes]


def _header(figure: Figure, title: str, key: Sequence[tuple[str, str]]) -> None:
    """The title and, below it, the key: each name in its own colour."""
    height_in = figure.get_figheight()
    figure.text(0.15 / WIDTH_IN, 1 - 0.33 / height_in, title, fontsize=14, fontweight="bold")
    _words(figure, 0.15, height_in - 0.62, key)


def _words(figure: Figure, x_in: float, y_in: float, words: Sequence[tuple[str, str]]) -> None:
    """Write words one after another, each in its colour, from a point given in inches."""
    height_in = figure.get_figheight()
    for word, colour in words:
        text = figure.text(
            x_in / WIDTH_IN, y_in / height_in, word, color=colour, fontweight="bold", fontsize=11
        )
        x_in += text.get_window_extent().width / figure.dpi + 0.25


def _coloured_title(ax: Axes, words: Sequence[tuple[str, str]]) -> None:
    figure, corner = ax.get_figure(root=True), ax.get_position()
    assert figure is not None
    _words(figure, corner.x0 * WIDTH_IN, corner.y1 * figure.get_figheight() + 0.1, words)


def _shown_axes(axes: Sequence[Sequence[Axes]], panels: Panels) -> list[tuple[PolicyResult, Axes]]:
    shown = []
    for row, policies in zip(axes, panels, strict=True):
        for index, ax in enumerate(row):
            policy = policies[index] if index < len(policies) else None
            if policy is None:
                ax.remove()
            else:
                shown.append((policy, ax))
    return shown


def _draw_iterations(ax: Axes, policy: PolicyResult, result: ContendResult, colours: dict[str, str]) -> None:
    for time_s, colour in _isolated_lines(result, colours):
        ax.axhline(time_s, color=colour, linewidth=1.1, linestyle=(0, (4, 3)))
    for job in policy.middle_run.jobs:
        ax.plot(range(1, len(job.iteration_s) + 1), job.iteration_s, color=colours[job.job], linewidth=1.6)
    _name(ax, policy.policy)
    ax.grid(axis="y")
    ax.margins(y=0.12)
    ax.yaxis.set_major_locator(MaxNLocator(4, steps=ROUND_STEPS))
    ax.xaxis.set_major_locator(MaxNLocator(8, steps=ROUND_STEPS, integer=True))
    if policy.figures.mean_slowdown is not None:
        _note(ax, f"{policy.figures.mean_slowdown:.2f}x isolated on average")


def _isolated_lines(result: ContendResult, colours: dict[str, str]) -> list[tuple[float, str]]:
    """One line for jobs that take the same time when isolated, else one a job in the job's colour."""
    times_s = result.isolated_s
    if not times_s:
        return []
    if max(times_s.values()) <= SAME_TIME * min(times_s.values()):
        return [(fmean(times_s.values()), MUTED)]
    return [(time_s, colours[job]) for job, time_s in times_s.items()]


def _draw_link_use(ax: Axes, use: LinkUse, bins: slice, from_s: float, colours: dict[str, str]) -> None:
    jobs = [job for job in colours if job in use.job_bytes]
    rates_mbps = [np.asarray(use.job_bytes[job][bins]) * 8 / use.bin_s / 1e6 for job in jobs]
    times_s = from_s + np.arange(len(rates_mbps[0])) * use.bin_s
    ax.stackplot(times_s, rates_mbps, colors=[colours[job] for job in jobs], linewidth=0, step="post")
    ax.yaxis.set_major_locator(MaxNLocator(3, steps=ROUND_STEPS))
    excerpt = LinkUse(use.bin_s, {job: use.job_bytes[job][bins] for job in jobs})
    _note(ax, f"shared {100 * overlap(excerpt):.0f} % of busy time")


def _draw_distribution(ax: Axes, policies: Sequence[PolicyResult], result: ContendResult) -> None:
    for policy in policies:
        slowdowns = [t / result.isolated_s[job.job] for job in policy.jobs for t in job.iteration_s]
        ax.ecdf(slowdowns, color=_policy_colour(result, policy.policy), linewidth=2)
    ax.yaxis.set_major_formatter(PercentFormatter(1))
    ax.grid()


def _name(ax: Axes, text: str) -> None:
    """A panel's title; a long one is smaller, so that it does not run into the note at the right."""
    ax.set_title(text, loc="left", fontsize=NAME_SIZE * min(1.0, LONGEST_NAME / len(text)))


def _note(ax: Axes, text: str) -> None:
    ax.set_title(text, loc="right", color=MUTED, fontsize=10)


def _excerpt(use: LinkUse, window_s: float, at_end: bool) -> slice:
    """The bins of the first or of the last seconds in which all jobs were still running."""
    count = max(1, round(window_s / use.bin_s))
    if not at_end:
        return slice(0, count)
    sending = _sending(use)
    lasts = [int(np.flatnonzero(job)[-1]) for job in sending if job.any()]
    end = min(lasts, default=sending.shape[1] - 1) + 1
    return slice(max(0, end - count), end)


def _sending(use: LinkUse) -> NDArray[np.bool_]:
    """For each job and bin, whether the job sent more than now and then a packet."""
    job_bytes = np.array([list(values) for values in use.job_bytes.values()])
    return np.asarray(job_bytes > SENDING_SHARE * job_bytes.max(initial=0))


def _mean_iteration_s(policy: PolicyResult) -> float:
    return max(fmean(job.iteration_s) for job in policy.middle_run.jobs)


def _share_limits(axes: Sequence[Axes], x: bool = True, y: bool = True) -> None:
    """Give all panels the same scale: they are there to be compared."""
    for wanted, get, put in ((x, "get_xlim", "set_xlim"), (y, "get_ylim", "set_ylim")):
        if wanted:
            limits = [getattr(ax, get)() for ax in axes]
            for ax in axes:
                getattr(ax, put)(min(low for low, _ in limits), max(high for _, high in limits))


def _label_edges(axes: Sequence[Sequence[Axes]], x_label: str, y_label: str) -> None:
    """Label the left column and the lowest panel of each column, and drop the tick labels in between."""
    for row in axes:
        row[0].set_ylabel(y_label)
        for ax in row[1:]:
            ax.tick_params(labelleft=False)
    for column in zip(*axes, strict=True):
        alive = [ax for ax in column if ax.figure is not None]
        for ax in alive[:-1]:
            ax.tick_params(labelbottom=False)
        if alive:
            alive[-1].set_xlabel(x_label)
