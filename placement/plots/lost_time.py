"""The picture of what jobs lost to others on which link."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from placement.plots.style import BOTTOM_IN, INK, MUTED, framed
from placement.simulator.network.outcome import LostTime, NetworkOutcome

_MOST_JOBS, _MOST_LINKS, _LONGEST_NAME = 24, 12, 8
_ROW_IN, _LEFT_IN, _UNDER_IN = 0.36, 1.3, 0.6
_NOTHING = 0.05


def lost_time_figure(title: str, outcome: NetworkOutcome, lost: LostTime) -> Figure:
    """Draw jobs by links: the time lost to other jobs, in percent of a job's time alone, and who took most of it.

    Where there are many, those with the largest sums are drawn.
    """
    percent, taker = _of_jobs_and_links(outcome, lost)
    jobs = _largest(percent.sum(axis=1), _MOST_JOBS)
    links = _largest(percent.sum(axis=0), _MOST_LINKS)
    shown = percent[np.ix_(jobs, links)]
    parts = f"{len(jobs)} of {percent.shape[0]} jobs, {len(links)} of {percent.shape[1]} links"
    note = f"lost to other jobs, % of the time alone, and to whom most: {parts}"
    figure = framed(title, [(note, MUTED)], _ROW_IN * max(4, len(jobs)) + _UNDER_IN, left_in=_LEFT_IN)
    figure.subplots_adjust(bottom=(BOTTOM_IN + _UNDER_IN) / figure.get_figheight())
    axes = figure.axes[0]
    axes.imshow(shown, cmap="OrRd", aspect="auto", vmin=0)
    axes.set_yticks(range(len(jobs)), [outcome.jobs[job].name for job in jobs])
    axes.set_xticks(range(len(links)), [outcome.links[link].name for link in links], rotation=40, ha="right")
    axes.tick_params(length=0)
    for row, column in zip(*np.nonzero(shown >= _NOTHING), strict=True):
        name = outcome.neighbour_name(lost, taker[jobs[row], links[column]])
        words = f"{shown[row, column]:.2g}" + (f"\n{name}" if len(name) <= _LONGEST_NAME else "")
        colour = "white" if shown[row, column] > 0.6 * shown.max() else INK
        axes.text(column, row, words, ha="center", va="center", fontsize=7, color=colour)
    return figure


def _of_jobs_and_links(
    outcome: NetworkOutcome, lost: LostTime
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The percentages, and the entry that is the largest part of each."""
    shape = len(outcome.jobs), len(outcome.links)
    percent, largest, taker = np.zeros(shape), np.zeros(shape), np.zeros(shape, np.int64)
    for entry, (job, neighbour, link) in enumerate(zip(lost.job, lost.neighbour, lost.link, strict=True)):
        course = outcome.jobs[job]
        part = 100 * lost.lost_ns[entry] / (course.alone_ns * len(course.ends_ns))
        if job == neighbour:
            continue
        percent[job, link] += part
        if part > largest[job, link]:
            largest[job, link], taker[job, link] = part, entry
    return percent, taker


def _largest(sums: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """The places of the largest sums above 0, at most so many, in their order; the first one if all are 0."""
    kept = np.argsort(-sums, kind="stable")[:most]
    kept = np.sort(kept[sums[kept] > 0])
    return kept if len(kept) else np.zeros(1, np.int64)
