"""Draws the pictures of tables of results: ``python -m docs.draw_results [FOLDER]``, from the repository's root.

``results.png`` reads the tables of results.md, the others those of ``docs/results``, so that they show what the pages
say. ``does_it_help.png`` is the list of questions of start.md.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from docs.draw_architecture import Box, canvas, draw_arrow, draw_box
from placement.plots.style import FAINT, JOB_COLOURS, MUTED, framed, write

ROOT = Path(__file__).parents[1]
BASES = ("reno", "cubic", "dctcp")
BLUE, ORANGE, GREEN, RED = JOB_COLOURS[0], JOB_COLOURS[1], JOB_COLOURS[2], JOB_COLOURS[4]
SETTINGS = {
    "Two equal jobs, started together": "two equal jobs, 300 Mbit/s",
    "The same under disturbance": "two, disturbed",
    "Three and four equal jobs under disturbance": "three, disturbed",
    "A faster link": "two, 500 Mbit/s",
    "A small drop-tail queue": "two, drop-tail queue of 40 kB",
    "Buckets sent during the backward phase": "two, buckets overlap backward",
    "NCCL on a GPU": "two, NCCL on a GPU",
    "Different jobs": "VGG-16 and ResNet-50 (do not fit)",
    "A job alone": "one job alone",
}
"""The sections of results.md whose first table is drawn, and what the picture calls them."""


@dataclass(frozen=True)
class Bar:
    """One pair of the picture: slowdowns of the second half of a run, under a base and under MLTCP on it."""

    setting: str
    base: str
    without: float
    under: float


def bars(page: str) -> Iterator[Bar]:
    """The pairs of the first table of each section of `SETTINGS`.

    Raises:
        KeyError: a section has gone, or has no column of that name.
    """
    sections = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", page, re.MULTILINE))
    for section, setting in SETTINGS.items():
        table = re.search(r"^\|.*second half.*\n(?:\|.*\n)+", sections[section], re.MULTILINE)
        if table is None:
            raise KeyError(section)
        head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table[0].splitlines())
        column = head.index("second half")
        values = {row[0].strip("`"): float(row[column].split()[0]) for row in rows}
        for base in BASES:
            if base in values and f"mltcp_{base}" in values:
                yield Bar(setting, base, values[base], values[f"mltcp_{base}"])


def results() -> Figure:
    """A row for each setting and base: grey without MLTCP, blue with it; 1.00 is a job alone."""
    shown = list(bars((ROOT / "docs/results.md").read_text()))
    key = [("base", MUTED), ("under MLTCP", BLUE), ("second half of a run, lab; 1.00: alone", MUTED)]
    figure = framed("Iteration time over that of the job alone", key, 0.23 * len(shown), left_in=3.5)
    axes = figure.axes[0]
    for row, bar in enumerate(shown):
        if row == 0 or shown[row - 1].setting != bar.setting:
            axes.text(-0.63, row, bar.setting, transform=axes.get_yaxis_transform(), va="center", fontsize=9)
            axes.axhline(row - 0.5, color=FAINT, linewidth=0.8, xmin=-0.63, clip_on=False)
        axes.plot([bar.without, bar.under], [row, row], color=FAINT, linewidth=4, zorder=1)
        axes.plot(bar.without, row, "o", color=MUTED, markersize=6)
        axes.plot(bar.under, row, "o", color=BLUE, markersize=6)
        axes.text(
            max(bar.without, bar.under) + 0.012,
            row,
            f"{bar.without:.3f} to {bar.under:.3f}",
            va="center",
            fontsize=8,
            color=MUTED,
        )
    axes.set_yticks(range(len(shown)), [bar.base.upper() if bar.base != "reno" else "Reno" for bar in shown])
    axes.tick_params(axis="y", labelsize=8.5, length=0)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlim(0.95, 1.52)
    axes.axvline(1, color=GREEN, linewidth=1)
    axes.grid(axis="x")
    axes.set_xlabel("slowdown")
    return figure


QUESTIONS = (
    (
        "Do the job's gradients go over TCP?",
        "NCCL_DEBUG=INFO says NET/Socket;\nGloo always",
        "NET/IB, RoCE, InfiniBand, NVLink:\nnothing here acts on that traffic",
    ),
    (
        "Do two jobs or more share a link that fills?",
        "longer iterations as soon as another job runs",
        "nothing to gain;\na job alone loses at most 1.6 %",
    ),
    (
        "Do they fit: together at most the whole link?",
        "mltcp-placement circle a.json b.json: score 1.0",
        "nothing gains on average: place them on\ndifferent links (mltcp-placement serve)",
    ),
    (
        "Do their periods differ by at most 5 %?",
        "mltcp top, column typical",
        "multiples of each other: try it;\nelse nothing changes on average",
    ),
    (
        "One burst an iteration, or few?",
        "DDP, one all-reduce; not FSDP with its many",
        "overlapped buckets: most of the gain;\nfrom four equal bursts on: little",
    ),
)
"""Question, how to see it, and what the answer no means."""


def does_it_help() -> Figure:
    """The questions in a column, yes downwards, no to the right."""
    width, step = 10.2, 1.12
    height = step * (len(QUESTIONS) + 1)
    figure, axes = canvas(width, height)
    for number, (question, how, otherwise) in enumerate(QUESTIONS):
        y = height - step * (number + 0.5)
        draw_box(axes, Box(2.75, y, 4.9, 0.74, question, how, BLUE), 11)
        draw_arrow(axes, (5.25, y), (6.2, y), color=RED)
        axes.text(5.65, y + 0.14, "no", color=RED, fontsize=10, ha="center")
        draw_box(axes, Box(8.15, y, 3.8, 0.74, "", "", RED))
        axes.text(8.15, y, otherwise, ha="center", va="center", fontsize=9.5, linespacing=1.4)
        draw_arrow(axes, (2.75, y - 0.37), (2.75, y - step + 0.37), color=GREEN)
        axes.text(2.9, y - step / 2, "yes", color=GREEN, fontsize=10, va="center")
    last = Box(
        2.75, step / 2, 4.9, 0.74, "MLTCP helps", "lab: 1.04 to 1.42 times alone becomes 0.98 to 1.07", GREEN
    )
    draw_box(axes, last, 11)
    return figure


def table(page: str, column: str) -> list[dict[str, str]]:
    """The rows of the first table of ``docs/results/<page>.json`` that has this column.

    A column that has no name of its own has that of the column before it, and its own: "two: best other".
    """
    document = json.loads((ROOT / f"docs/results/{page}.json").read_text())
    found = next(each for each in document["tables"] if column in each["columns"])
    names: list[str] = []
    for name in found["columns"]:
        names.append(name if found["columns"].count(name) == 1 else f"{names[-1].split(':')[0]}: {name}")
    return [dict(zip(names, row, strict=True)) for row in found["rows"]]


def numbers(cell: str) -> list[float]:
    """The numbers of a cell: a median, then the smallest and the largest where they are there."""
    return [float(each) for each in re.findall(r"\d*\.?\d+", cell)]


def _point(axes: Axes, cell: str, row: float, colour: str) -> None:
    """A dot at the cell's median, and a line over its range."""
    value, *ends = numbers(cell)
    axes.plot(ends or [value], [row] * len(ends or [value]), color=colour, linewidth=2, alpha=0.45)
    axes.plot(value, row, "o", color=colour, markersize=6)


def compare_link() -> Figure:
    """Five sets of jobs on one link: what fair sharing, MLTCP and Cassini's time shifts leave."""
    rows = table("compare", "`fair`")
    shown = {"`fair`": MUTED, "`mltcp_cubic`": BLUE, "`cassini`": ORANGE}
    key = [
        *((name.strip("`"), colour) for name, colour in shown.items()),
        ("median and range of three repeats, lab", MUTED),
    ]
    figure = framed("Iteration time over that of the job alone, by compatibility", key, 3.0, left_in=1.9)
    axes = figure.axes[0]
    for number, row in enumerate(rows):
        for offset, (name, colour) in enumerate(shown.items()):
            _point(axes, row[name], number + 0.24 * (offset - 1), colour)
    axes.set_yticks(range(len(rows)), [row["set, compatibility"].replace(", ", ": ") for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.axvline(1, color=GREEN, linewidth=1)
    axes.grid(axis="x")
    axes.set_xlabel("slowdown")
    return figure


def compare_trace() -> Figure:
    """Ten jobs on racks under each approach: slowdowns, and iteration times."""
    rows = table("compare", "poisson")
    key = [
        ("placement", MUTED),
        ("with Cassini", ORANGE),
        ("a gate, or pacing", RED),
        ("median and range of two repeats, lab", MUTED),
    ]
    title = "Ten jobs on four racks: slowdown, and iteration times"
    figure = framed(title, key, 0.29 * len(rows), columns=2, left_in=2.2)
    slowdown, times = figure.axes
    for number, row in enumerate(rows):
        name = row["poisson"].strip("`")
        gated = "srsf" in name or "dcqcn" in name
        colour = ORANGE if "cassini" in name else RED if gated else MUTED
        _point(slowdown, row["slowdown"], number, colour)
        mean, tail = (numbers(row[column])[0] / 1000 for column in ("iteration, mean ms", "99th, ms"))
        times.plot([mean, tail], [number, number], color=colour, linewidth=2, alpha=0.3)
        times.plot(mean, number, "|", color=colour, markersize=11, markeredgewidth=2)
        times.plot(tail, number, "o", color=colour, markersize=6)
    slowdown.set_yticks(range(len(rows)), [row["poisson"].strip("`") for row in rows])
    times.set_yticks([])
    slowdown.axvline(1, color=GREEN, linewidth=1)
    slowdown.set_xlabel("iteration time over that of the job alone")
    times.set_xlabel("seconds: | mean, ● 99th percentile")
    times.set_xlim(left=0)
    for axes in (slowdown, times):
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(axis="x")
    return figure


def deadlines() -> Figure:
    """Jobs that meet their deadlines by load: two rules, ours, and what no rule can exceed."""
    pairs = (("`edf-late-last-node`", "`edf-efficient`"), ("`elastic-mh`", "`elastic-density`"))
    key = [
        ("best rule before", MUTED),
        ("edf-efficient, elastic-density", BLUE),
        ("upper bound", GREEN),
        ("simulated, 100 traces", MUTED),
    ]
    figure = framed("Jobs that meet their deadlines, at 10 and 6 GB/s", key, 2.7, columns=2)
    for axes, (other, ours), title in zip(
        figure.axes, pairs, ("no job is interrupted", "a restart costs 60 s"), strict=True
    ):
        rows = [row for row in table("reproduction-drs", ours) if row["GB/s"] == "10/6"]
        loads = [float(row["jobs an hour"]) for row in rows]
        for column, colour in ((other, MUTED), (ours, BLUE), ("upper bound", GREEN)):
            axes.plot(loads, [100 * float(row[column]) for row in rows], "o-", color=colour, markersize=4)
        axes.set_title(title, loc="left")
        axes.set_xlabel("jobs an hour")
        axes.set_ylim(50, 102)
        axes.grid(axis="y")
    figure.axes[0].set_ylabel("%")
    return figure


def node_price() -> Figure:
    """Mean response by load of asynchronous jobs: node-price and the best of the other policies."""
    sets = {"four": "four models", "two": "AlexNet, VGG19", "one": "AlexNet"}
    rows = table("reproduction-async-sgd-schedulers", "four: `node-price`")
    key = [("node-price", BLUE), ("best other policy", MUTED), ("simulated, 8 traces", MUTED)]
    figure = framed("Mean response of asynchronous jobs, by load", key, 2.4, columns=len(sets))
    loads = [float(row["load"]) for row in rows]
    for axes, (name, title) in zip(figure.axes, sets.items(), strict=True):
        for column, colour in ((f"{name}: best other", MUTED), (f"{name}: `node-price`", BLUE)):
            hours = [numbers(row[column])[0] for row in rows]
            axes.plot(loads, hours, "o-", color=colour, markersize=4)
        axes.set_title(title, loc="left")
        axes.set_xlabel("load")
        axes.grid(axis="y")
    figure.axes[0].set_ylabel("hours")
    return figure


PICTURES = {
    "results.png": results,
    "does_it_help.png": does_it_help,
    "compare_link.png": compare_link,
    "compare_trace.png": compare_trace,
    "deadlines.png": deadlines,
    "node_price.png": node_price,
}


def main() -> None:
    """Draw them all."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/pictures"
    for name, draw in PICTURES.items():
        write(draw, folder / name)


if __name__ == "__main__":
    main()
