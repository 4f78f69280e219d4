"""The pictures of a sweep: measured throughput against the model, and who used the link when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.async_sgd.comparison import METHODS, AsyncCell, ControlComparison
from bench.async_sgd.run import AsyncRun
from bench.compare.results.journal import writable
from placement.model.queueing import Method
from placement.plots.style import INK, JOB_COLOURS, MUTED, POLICY_COLOURS, framed, write

_PANELS = 3
_PANEL_IN, _ROW_IN = 3.0, 0.9
_DASHED = (0, (4, 3))
_METHOD_COLOURS = dict(
    zip((Method.EXACT, Method.APPROXIMATE, Method.HYBRID), POLICY_COLOURS[1:], strict=False)
)
_FEW, _MANY = 2, 5


def write_pictures(
    comparisons: Sequence[ControlComparison], directory: Path, acks_first: bool = False
) -> list[Path]:
    """Draw a sweep into the directory: ``throughput.png`` (with more than three controls several), ``link.png``.

    `acks_first` is said in the titles: acknowledgements overtook data on the link.

    Raises:
        UsageError: nothing can be written there.
    """
    setting = _setting(comparisons, acks_first)
    paths = []
    with writable(directory):
        groups = [comparisons[at : at + _PANELS] for at in range(0, len(comparisons), _PANELS)]
        for number, group in enumerate(groups):
            path = directory / ("throughput.png" if not number else f"throughput-{number + 1}.png")
            write(lambda group=group: throughput_figure(group, setting), path)  # type: ignore[misc]
            paths.append(path)
        for workers in _shown_workers(comparisons):
            path = directory / f"link-{workers}.png"
            write(lambda workers=workers: link_figure(comparisons, workers, setting), path)  # type: ignore[misc]
            paths.append(path)
    return paths


def throughput_figure(comparisons: Sequence[ControlComparison], setting: str) -> Figure:
    """A panel for each control: the repeats and the three models over the number of workers (Figures 3, 7, 10, 11)."""
    key = [
        ("measured", INK),
        *((method.value, colour) for method, colour in _METHOD_COLOURS.items()),
        ("min(K/R, 1/Smax)", MUTED),
    ]
    figure = framed(f"Asynchronous SGD: throughput, {setting}", key, _PANEL_IN, columns=len(comparisons))
    highest = max(
        max(cell.bound, *cell.predicted.values(), *(run.throughput for run in cell.runs))
        for each in comparisons
        for cell in each.cells
    )
    for axes, each in zip(figure.axes, comparisons, strict=True):
        axes.set_title(each.control, loc="left", fontsize=8)
        _draw_throughput(axes, each.cells)
        axes.set_ylim(0, highest * 1.05)
        axes.set_xlabel("workers")
    figure.axes[0].set_ylabel("updates / s")
    return figure


def link_figure(comparisons: Sequence[ControlComparison], workers: int, setting: str) -> Figure:
    """The use of both directions of the link over time, a colour for each worker (Figures 8 and 9)."""
    found = [(each.control, run) for each in comparisons if (run := _middle(each, workers)) is not None]
    key = [(f"worker {number + 1}", _colour(number)) for number in range(workers)]
    title = f"Use of the link, {workers} workers, {setting}"
    figure = framed(title, key, _ROW_IN * 2 * len(found) * 1.25, columns=1)
    whole = figure.axes[0]
    box = whole.get_position()
    whole.remove()
    rows = 2 * len(found)
    for row in range(rows):
        control, run = found[row // 2]
        height = box.height / rows
        axes = figure.add_axes((box.x0, box.y1 - (row + 1) * height, box.width, height * 0.72))
        _draw_link(axes, run, up=row % 2 == 0)
        axes.set_title(
            f"{control}, {'into' if row % 2 == 0 else 'out of'} the server", loc="left", fontsize=9
        )
        if row < rows - 1:
            axes.set_xticklabels([])
    figure.axes[-1].set_xlabel("seconds")
    middle = (box.y0 + box.y1) / 2
    figure.supylabel("share of the rate of the link", x=box.x0 - 0.055, y=middle, color=MUTED, fontsize=10)
    return figure


def _setting(comparisons: Sequence[ControlComparison], acks_first: bool) -> str:
    """The conditions of a sweep that its pictures name."""
    computing = f"S^W {1000 * comparisons[0].profile.worker_s:.0f} ms"
    return f"{computing}, acknowledgements first" if acks_first else computing


def _draw_throughput(axes: Axes, cells: Sequence[AsyncCell]) -> None:
    numbers = [cell.workers for cell in cells]
    axes.plot(numbers, [cell.bound for cell in cells], color=MUTED, linestyle=_DASHED, linewidth=1)
    for method in METHODS:
        axes.plot(
            numbers, [cell.predicted[method] for cell in cells], color=_METHOD_COLOURS[method], linewidth=1.5
        )
    axes.plot(numbers, [cell.throughput for cell in cells], color=INK, linewidth=1.5)
    for cell in cells:
        axes.plot(
            [cell.workers] * len(cell.runs), [run.throughput for run in cell.runs], "o", color=INK, ms=3.5
        )
    axes.set_xticks(numbers)
    axes.grid(axis="y")


def _draw_link(axes: Axes, run: AsyncRun, up: bool) -> None:
    rows, bin_s = (run.excerpt.up if up else run.excerpt.down), run.excerpt.bin_s
    full = run.excerpt.rate_bps / 8 * bin_s
    times = [bin_s * at for at in range(len(rows[0]))]
    shares = [[count / full for count in row] for row in rows]
    axes.stackplot(times, shares, colors=[_colour(number) for number in range(len(rows))], linewidth=0)
    axes.set_ylim(0, 1.1)
    axes.set_xlim(0, times[-1] if times else 1)
    axes.set_yticks([0, 1])


def _middle(comparison: ControlComparison, workers: int) -> AsyncRun | None:
    """The repeat with the median throughput."""
    for cell in comparison.cells:
        if cell.workers == workers:
            ordered = sorted(cell.runs, key=lambda run: run.throughput)
            return ordered[len(ordered) // 2]
    return None


def _shown_workers(comparisons: Sequence[ControlComparison]) -> list[int]:
    """Two and five workers as in the paper, or those next to them."""
    numbers = sorted({cell.workers for each in comparisons for cell in each.cells})
    return sorted({min(numbers, key=lambda number: abs(number - wanted)) for wanted in (_FEW, _MANY)})


def _colour(worker: int) -> str:
    return (*JOB_COLOURS, *POLICY_COLOURS)[worker % (len(JOB_COLOURS) + len(POLICY_COLOURS))]
