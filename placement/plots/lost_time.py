"""The picture of what jobs lost to others on which link."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from placement.plots.style import BOTTOM_IN, INK, MUTED, framed
from placement.simulator.network.outcome import FAILURE

_MOST_JOBS, _MOST_LINKS, _LONGEST_NAME = 24, 12, 8
_ROW_IN, _LEFT_IN, _UNDER_IN = 0.36, 1.3, 0.6
_NOTHING = 0.05


def lost_time_figure(title: str, alone_s: Mapping[str, float], lost: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw jobs by links: the time lost to other jobs, in percent of a job's time alone, and who took most of it.

    Where there are many, those with the largest sums are drawn.

    Args:
        title: of the picture.
        alone_s: of each job, what all of its iterations would have taken alone.
        lost: of `LostTime.entries`.
    """
    names = list(alone_s)
    of_links = sorted({entry["link"] for entry in lost}, key=_natural) or [""]
    percent, taker = _of_jobs_and_links(alone_s, of_links, lost)
    jobs = _largest(percent.sum(axis=1), _MOST_JOBS)
    links = _largest(percent.sum(axis=0), _MOST_LINKS)
    shown = percent[np.ix_(jobs, links)]
    parts = f"{len(jobs)} of {len(names)} jobs, {len(links)} of {len(of_links)} links"
    note = f"% of the time alone, and to whom most: {parts}"
    left_in = max(_LEFT_IN, 0.4 + 0.085 * max(len(names[job]) for job in jobs))
    figure = framed(title, [(note, MUTED)], _ROW_IN * max(4, len(jobs)) + _UNDER_IN, left_in=left_in)
    figure.subplots_adjust(bottom=(BOTTOM_IN + _UNDER_IN) / figure.get_figheight())
    axes = figure.axes[0]
    axes.imshow(shown, cmap="OrRd", aspect="auto", vmin=0)
    axes.set_yticks(range(len(jobs)), [names[job] for job in jobs])
    axes.set_xticks(range(len(links)), [of_links[link] for link in links], rotation=40, ha="right")
    axes.tick_params(length=0)
    for row, column in zip(*np.nonzero(shown >= _NOTHING), strict=True):
        name = taker[jobs[row], links[column]]
        words = f"{shown[row, column]:.2g}" + (f"\n{name}" if len(name) <= _LONGEST_NAME else "")
        colour = "white" if shown[row, column] > 0.6 * shown.max() else INK
        axes.text(column, row, words, ha="center", va="center", fontsize=7, color=colour)
    return figure


def _natural(name: str) -> list[tuple[int, str]]:
    """Of names with numbers in them, so that 10 comes after 9."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]


def _of_jobs_and_links(
    alone_s: Mapping[str, float], of_links: Sequence[str], lost: Sequence[Mapping[str, Any]]
) -> tuple[NDArray[np.float64], dict[tuple[int, int], str]]:
    """The percentages, and who took the largest part of each."""
    jobs = {name: number for number, name in enumerate(alone_s)}
    links = {name: number for number, name in enumerate(of_links)}
    percent, largest = np.zeros((len(jobs), len(links))), np.zeros((len(jobs), len(links)))
    taker: dict[tuple[int, int], str] = {}
    for entry in lost:
        if entry["job"] == entry["neighbour"]:
            continue
        cell = jobs[entry["job"]], links[entry["link"]]
        part = 100 * entry["lost_s"] / alone_s[entry["job"]]
        percent[cell] += part
        if part > largest[cell]:
            largest[cell], taker[cell] = part, entry["neighbour"] or FAILURE
    return percent, taker


def _largest(sums: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """The places of the largest sums above 0, at most so many, in their order; the first one if all are 0."""
    kept = np.argsort(-sums, kind="stable")[:most]
    kept = np.sort(kept[sums[kept] > 0])
    return kept if len(kept) else np.zeros(1, np.int64)
