"""The pictures of a simulation: the jobs on each GPU over time, and the use of the links."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection, QuadMesh
from matplotlib.colors import LinearSegmentedColormap, rgb_to_hsv, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from mltcp.core.bounded_files import MOST_DOCUMENT_BYTES, read_bounded
from mltcp.core.errors import UsageError
from mltcp.core.quantities import S_PER_HOUR
from placement.model.cluster import Cluster
from placement.plots.style import FAINT, INK, JOB_COLOURS, MUTED, WIDTH_IN, darker, framed, paler

SHADES = (*JOB_COLOURS, *(paler(each) for each in JOB_COLOURS), *(darker(each) for each in JOB_COLOURS))
_HIGHEST_IN, _ROW_IN = 24.0, 0.17
_LEGIBLE_IN, _DIGIT_IN = 0.1, 0.055
_FILLED = 0.88
_DARK = 0.72
_MOST_NAMES = 70
# The longest times in seconds and in minutes; beyond, hours.
_SECONDS_S, _MINUTES_S = 600, 3 * S_PER_HOUR
_USE = LinearSegmentedColormap.from_list("use", ["#FFFFFF", "#56B4E9", "#0072B2", "#003355"])


@dataclass(frozen=True)
class GpuSpan:
    """The time of a job on a GPU.

    Attributes:
        job: the job's number.
        gpu: the GPU's number.
        start_s: the time of its placement.
        end_s: the time of its end.
    """

    job: int
    gpu: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Slice:
    """A part of a GPU's row for a job and an interval, from `low` to `high` of 0 to 1."""

    job: int
    start_s: float
    end_s: float
    low: float
    high: float


@dataclass(frozen=True)
class Timeline:
    """A simulation, read from the document of `simulate --json`.

    Attributes:
        title: the policy and the trace.
        servers: the name of each, and how many GPUs it has.
        spans: of all jobs.
        makespan_s: until the last job ended.
        width_s: of an interval of the use; 0 without any.
        links: the links' names.
        link_use: per link and interval, the share of the time in which it was in use.
    """

    title: str
    servers: tuple[tuple[str, int], ...]
    spans: tuple[GpuSpan, ...]
    makespan_s: float
    width_s: float
    links: tuple[str, ...]
    link_use: Sequence[Sequence[float]]

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return sum(count for _, count in self.servers)


def load(path: Path) -> Timeline:
    """Read a document of `mltcp-placement simulate --json`.

    Raises:
        UsageError: the file cannot be read, or is something else.
    """
    try:
        return _timeline(json.loads(read_bounded(path, MOST_DOCUMENT_BYTES)))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except (ValueError, TypeError, KeyError, ArithmeticError, AttributeError, RecursionError, UsageError):
        raise UsageError(f"{path}: expected a document of `mltcp-placement simulate --json`") from None


def gantt_figure(timeline: Timeline) -> Figure:
    """A picture with a row a GPU, which its jobs share in equal parts."""
    height_in = min(_HIGHEST_IN, _ROW_IN * max(8, timeline.gpus))
    key = [("a colour a job, with its number where there is room", MUTED)]
    figure = framed(f"Jobs on GPUs: {timeline.title}", key, height_in)
    (ax,) = figure.axes
    _draw_spans(ax, timeline, height_in / timeline.gpus)
    first = 0
    for _, count in timeline.servers:
        first += count
        ax.axhline(first, color=MUTED, linewidth=0.5)
    _name_rows(ax, timeline.servers, height_in)
    _time_axis(ax, timeline.makespan_s)
    return figure


def links_figure(timeline: Timeline) -> Figure:
    """A picture with a row a link, darker where the link was in use for more of the time.

    Raises:
        UsageError: the document has no use over time.
    """
    if not timeline.links:
        raise UsageError(
            "links: expected a document with the use over time, which simulate --intervals N adds"
        )
    use = np.array(timeline.link_use, dtype=np.float64)
    height_in = min(_HIGHEST_IN, max(2.0, 0.22 * len(timeline.links)))
    figure = framed(f"Use of links: {timeline.title}", [("share of the time in use", MUTED)], height_in)
    (ax,) = figure.axes
    edges = timeline.width_s * np.arange(use.shape[1] + 1)
    mesh = ax.pcolormesh(edges, np.arange(len(use) + 1), use, cmap=_USE, vmin=0, vmax=1, rasterized=True)
    _scale(figure, ax, mesh)
    _name_rows(ax, [(name, 1) for name in timeline.links], height_in)
    _time_axis(ax, timeline.makespan_s)
    return figure


def slices(spans: Sequence[GpuSpan]) -> list[Slice]:
    """Divide a GPU's row among its jobs: at any time, all jobs on the GPU have equal parts.

    The parts are in the order of placement. A slice ends when its part changes.
    """
    ordered = sorted(spans, key=lambda each: (each.start_s, each.job))
    times = sorted({time for span in ordered for time in (span.start_s, span.end_s)})
    begun = {time: [span for span in ordered if span.start_s == time] for time in times}
    found: list[Slice] = []
    present: list[GpuSpan] = []
    last: dict[int, Slice] = {}
    for start, end in pairwise(times):
        present = [span for span in (*present, *begun[start]) if span.end_s > start]
        now = {
            span.job: Slice(span.job, start, end, index / len(present), (index + 1) / len(present))
            for index, span in enumerate(present)
        }
        for job, before in last.items():
            same = now.get(job)
            if same is not None and (same.low, same.high) == (before.low, before.high):
                now[job] = replace(same, start_s=before.start_s)
            else:
                found.append(before)
        last = now
    return [*found, *last.values()]


def _timeline(document: Any) -> Timeline:
    config, use = document["config"], document.get("use")
    spans = tuple(
        GpuSpan(int(job["job_id"]), int(gpu), float(job["start_s"]), float(job["end_s"]))
        for job in document["jobs"]
        for gpu in job["gpus"]
    )
    cluster = Cluster.from_document(config["cluster"])
    servers = tuple((server.name, len(server.gpus)) for server in cluster.servers)
    timeline = Timeline(
        f"{config['policy']}, {config['trace']}",
        servers,
        spans,
        float(document["makespan_s"]),
        float(use["width_s"]) if use else 0.0,
        tuple(map(str, use["link_names"])) if use else (),
        use["links"] if use else (),
    )
    if any(not 0 <= span.gpu < timeline.gpus for span in spans) or len(timeline.link_use) != len(
        timeline.links
    ):
        raise ValueError("numbers of GPUs or links that are not there")
    return timeline


def _draw_spans(ax: Axes, timeline: Timeline, row_in: float) -> None:
    boxes, colours = [], []
    per_second_in = (WIDTH_IN - 1.1) / timeline.makespan_s
    by_gpu: dict[int, list[GpuSpan]] = {}
    for span in timeline.spans:
        by_gpu.setdefault(span.gpu, []).append(span)
    for gpu, spans in by_gpu.items():
        found = slices(spans)
        for each in found:
            low, high = (gpu + (1 - _FILLED) / 2 + _FILLED * part for part in (each.low, each.high))
            boxes.append([(each.start_s, low), (each.end_s, low), (each.end_s, high), (each.start_s, high)])
            colours.append(SHADES[each.job % len(SHADES)])
        _number(ax, gpu, found, per_second_in, _FILLED * row_in)
    ax.add_collection(PolyCollection(boxes, facecolors=colours, linewidths=0))


def _number(ax: Axes, gpu: int, found: Sequence[Slice], per_second_in: float, row_in: float) -> None:
    """Write each job's number into the longest of its slices that is high enough, if there is room for it."""
    longest: dict[int, Slice] = {}
    for each in sorted(found, key=lambda each: each.end_s - each.start_s):
        if (each.high - each.low) * row_in >= _LEGIBLE_IN:
            longest[each.job] = each
    for job, each in longest.items():
        if (each.end_s - each.start_s) * per_second_in < _DIGIT_IN * (len(str(job)) + 1):
            continue
        x, y = (each.start_s + each.end_s) / 2, gpu + (1 - _FILLED) / 2 + _FILLED * (each.low + each.high) / 2
        shade = SHADES[job % len(SHADES)]
        colour = INK if rgb_to_hsv(to_rgb(shade))[2] > _DARK else "white"
        ax.text(x, y, str(job), ha="center", va="center", fontsize=5.5, color=colour)


def _scale(figure: Figure, ax: Axes, mesh: QuadMesh) -> None:
    """Add a colour bar at the right of the figure."""
    box = ax.get_position()
    ax.set_position((box.x0, box.y0, box.width - 0.07, box.height))
    axes = figure.add_axes((box.x1 - 0.05, box.y0, 0.015, box.height))
    bar = figure.colorbar(mesh, cax=axes, format=PercentFormatter(1, decimals=0))
    bar.outline.set_visible(False)
    axes.tick_params(labelsize=8, length=0)


def _name_rows(ax: Axes, groups: Sequence[tuple[str, int]], height_in: float) -> None:
    """Name groups of rows at the left, the first at the top; where there are too many, only some."""
    counts = np.array([count for _, count in groups])
    ends = np.cumsum(counts)
    step = -(-len(groups) // max(1, min(_MOST_NAMES, int(height_in / 0.16))))
    shown = slice(0, None, step)
    ax.set_yticks((ends - counts / 2)[shown], [name for name, _ in groups][shown], fontsize=8)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(int(ends[-1]), 0)


def _time_axis(ax: Axes, makespan_s: float) -> None:
    unit, unit_s = ("seconds", 1) if makespan_s <= _SECONDS_S else ("minutes", 60)
    if makespan_s > _MINUTES_S:
        unit, unit_s = "hours", S_PER_HOUR
    ticks = MaxNLocator(8, steps=[1, 2, 5, 10]).tick_values(0, makespan_s / unit_s)
    ax.set_xticks([unit_s * tick for tick in ticks], [f"{tick:g}" for tick in ticks])
    ax.set_xlim(0, makespan_s)
    ax.set_xlabel(unit)
    ax.grid(axis="x", color=FAINT)
