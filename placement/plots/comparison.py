"""The pictures of a comparison: the distributions and bars of Figures 4 to 6 of the paper, and the simulation times.

A policy has the same colour in all of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, PercentFormatter

from mltcp.core.errors import UsageError
from placement.experiments.ada_srsf import mean_parts_of
from placement.experiments.comparison import PolicyComparison, TraceRun
from placement.plots.style import INK, JOB_COLOURS, MUTED, RIGHT_IN, WIDTH_IN, framed, policy_colours

PANEL_IN, BAR_IN = 3.6, 0.42
_CHARACTER_IN = 0.083
_SEEN = 1 / 500
"""Of the longest bar: a shorter part of a bar is no wider than a line."""

_PARTS = (
    ("queue_s", "queued", "#999999"),
    ("compute_s", "computing", JOB_COLOURS[2]),
    ("gpu_wait_s", "waiting for GPUs", JOB_COLOURS[5]),
    ("link_wait_s", "waiting for links", JOB_COLOURS[1]),
    ("alone_s", "communicating", JOB_COLOURS[0]),
    ("contention_s", "contention", JOB_COLOURS[4]),
)


def cdf_figure(comparison: PolicyComparison, log: bool = False) -> Figure:
    """The distribution of job completion times over all traces, a line a policy."""
    values = {
        policy: [jct for run in runs for jct in run["jct_s"]] for policy, runs in comparison.runs.items()
    }
    figure = _distributions("Job completion time", values)
    (ax,) = figure.axes
    ax.set_xlabel("JCT in seconds (left is better)")
    ax.set_ylabel("share of jobs")
    if log:
        ax.set_xscale("log")
    else:
        ax.set_xlim(left=0)
        ax.xaxis.set_major_formatter(_THOUSANDS)
    return figure


def utilization_figure(comparison: PolicyComparison) -> Figure:
    """The distribution of GPU utilization over all traces, a line a policy."""
    values = {
        policy: [share for run in runs for share in run["gpu_utilization"]]
        for policy, runs in comparison.runs.items()
    }
    figure = _distributions("GPU utilization", values)
    (ax,) = figure.axes
    ax.set_xlabel("share of the makespan in which a GPU computes (right is better)")
    ax.set_ylabel("share of GPUs")
    ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.set_xlim(left=0)
    return figure


def bars_figure(comparison: PolicyComparison) -> Figure:
    """The average JCT of each policy, its parts, and its difference from the baseline's."""
    policies = list(comparison.runs)
    parts = [_drawn_parts(runs) for runs in comparison.runs.values()]
    seen_s = _SEEN * max(sum(each.values()) for each in parts)
    key = [(words, colour) for name, words, colour in _PARTS if any(each[name] > seen_s for each in parts)]
    left_in = 0.35 + _CHARACTER_IN * max(map(len, policies))
    figure = framed("Average job completion time", key, BAR_IN * len(policies), left_in=left_in)
    (ax,) = figure.axes
    for row, policy in enumerate(policies):
        _bar(ax, row, comparison, policy)
    ax.set_yticks(range(len(policies)), policies, color=INK)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.set_ylim(len(policies) - 0.5, -0.5)
    ax.set_xlim(0, _reach(comparison, WIDTH_IN - left_in - RIGHT_IN))
    ax.grid(axis="x")
    ax.xaxis.set_major_formatter(_THOUSANDS)
    ax.set_xlabel("seconds, mean over traces")
    return figure


def scaling_figure(runs: Sequence[TraceRun]) -> Figure:
    """The wall-clock time of simulations against their numbers of jobs and of events, a line a policy.

    Raises:
        UsageError: all runs have the same number of jobs.
    """
    if len({run["jobs"] for run in runs}) < 2:
        raise UsageError("scaling: runs with two or more numbers of jobs are needed: compare --jobs N")
    policies = list(dict.fromkeys(run.policy for run in runs))
    colours = policy_colours(policies)
    key = [*colours.items(), ("in proportion, dashed", MUTED)]
    figure = framed("What a simulation takes", key, PANEL_IN, columns=2)
    for ax, attribute in zip(figure.axes, ("jobs", "events"), strict=True):
        for policy in policies:
            _cost(ax, [run for run in runs if run.policy == policy], attribute, colours[policy])
        _proportional(ax, runs, attribute)
        ax.set_xlabel(attribute)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(numticks=12))
        ax.grid()
    figure.axes[0].set_ylabel("seconds")
    return figure


def _distributions(title: str, values: dict[str, list[float]]) -> Figure:
    colours = policy_colours(list(values))
    names, common = short_names(list(values))
    figure = framed(title + common, list(zip(names, colours.values(), strict=True)), PANEL_IN)
    (ax,) = figure.axes
    # Later lines are thinner, so that lines that coincide all remain visible.
    widths = np.linspace(3.0, 1.4, len(values)) if len(values) > 1 else [1.8]
    for (policy, each), width in zip(values.items(), widths, strict=True):
        ax.ecdf(each, color=colours[policy], linewidth=width)
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.set_ylim(0, 1.01)
    ax.grid()
    return figure


def short_names(policies: Sequence[str]) -> tuple[list[str], str]:
    """What a key calls policies: their names without the parts that all begin or end with, and words for those."""
    parts = [re.split("(?=[+@])", policy) for policy in policies]
    most = min(map(len, parts)) - 1 if len(policies) > 1 else 0
    head = next((number for number in range(most) if len({each[number] for each in parts}) > 1), most)
    most -= head
    tail = next((number for number in range(most) if len({each[-1 - number] for each in parts}) > 1), most)
    names = ["".join(each[head : len(each) - tail]).lstrip("+@" if head else "") for each in parts]
    if not head and not tail:
        return names, ""
    before = "".join(parts[0][:head]) + (parts[0][head][0] if head else "")
    return names, f": {before}...{''.join(parts[0][len(parts[0]) - tail :])}"


def _bar(ax: Axes, row: int, comparison: PolicyComparison, policy: str) -> None:
    parts = _drawn_parts(comparison.runs[policy])
    left = 0.0
    for name, _, colour in _PARTS:
        ax.barh(row, parts[name], left=left, height=0.62, color=colour, linewidth=0)
        left += parts[name]
    ax.text(left, row, f"  {_note(comparison, policy)}", va="center", fontsize=9.5)


def _drawn_parts(runs: Sequence[TraceRun]) -> dict[str, float]:
    parts = mean_parts_of(runs)
    # With the defect, transfers take less time than alone: that is no part that could be drawn.
    parts["contention_s"] = max(0.0, parts["contention_s"])
    parts["alone_s"] = parts["communication_s"] - parts["contention_s"]
    return {name: parts[name] for name, _, _ in _PARTS}


def _note(comparison: PolicyComparison, policy: str) -> str:
    text = f"{_thousands(comparison.mean(policy, 'average_jct_s'))} s"
    if len(comparison.runs) == 1:
        return text
    if policy == comparison.baseline:
        return f"{text}   baseline"
    found = comparison.paired(policy, "average_jct_s")
    text += f"   {found.difference_percent:+.1f} %"
    if found.low_percent is None:
        return text
    return f"{text} ({found.low_percent:+.1f} to {found.high_percent:+.1f})"


def _reach(comparison: PolicyComparison, panel_in: float) -> float:
    """The seconds at the right end of a panel that has room for all bars and for the notes behind them."""
    return max(
        comparison.mean(policy, "average_jct_s")
        * panel_in
        / (panel_in - 0.1 - _CHARACTER_IN * len(_note(comparison, policy)))
        for policy in comparison.runs
    )


def _cost(ax: Axes, runs: Sequence[TraceRun], attribute: str, colour: str) -> None:
    ax.plot([run[attribute] for run in runs], [run["wall_s"] for run in runs], "o", color=colour, ms=3)
    sizes = sorted({run["jobs"] for run in runs})
    groups = [[run for run in runs if run["jobs"] == size] for size in sizes]
    middle = [median(run[attribute] for run in group) for group in groups]
    ax.plot(middle, [median(run["wall_s"] for run in group) for group in groups], color=colour, linewidth=1.6)


def _proportional(ax: Axes, runs: Sequence[TraceRun], attribute: str) -> None:
    """Draw a line of slope 1 through the median of the largest runs."""
    largest = max(run["jobs"] for run in runs)
    most = [run for run in runs if run["jobs"] == largest]
    pace = median(run["wall_s"] / run[attribute] for run in most)
    ends = np.array([min(run[attribute] for run in runs), max(run[attribute] for run in runs)])
    ax.plot(ends, pace * ends, color=MUTED, linewidth=1.1, linestyle=(0, (4, 3)))


def _thousands(value: float, _: object = None) -> str:
    return f"{value:,.0f}".replace(",", " ")


_THOUSANDS = FuncFormatter(_thousands)
