"""The pictures of jobs in a network: slowdowns, iterations, and the links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from placement.experiments.comparison import PolicyComparison, TraceRun
from placement.plots.style import INK, framed, policy_colours
from placement.plots.timelines import SHADES

_PANEL_IN, _ROW_IN = 3.4, 0.3
_MOST_LINKS = 16
_MEASURES = (
    ("sent_bytes", "sent (GB)", 1e9),
    ("largest_queue_bytes", "longest queue (kB)", 1e3),
    ("marked_bytes", "marked (MB)", 1e6),
    ("down_s", "down (s)", 1.0),
)


def slowdowns_figure(title: str, values: Mapping[str, np.ndarray]) -> Figure:
    """The distribution of the slowdowns of all iterations, a line a control, with the 99th percentiles."""
    return _distribution(title, "slowdown of an iteration", values)


def times_figure(title: str, values: Mapping[str, np.ndarray]) -> Figure:
    """The distribution of the times of all iterations, in s, a line a policy."""
    return _distribution(title, "time of an iteration (s)", values)


def _distribution(title: str, label: str, values: Mapping[str, np.ndarray]) -> Figure:
    colours = policy_colours(list(values))
    figure = framed(title, list(colours.items()), _PANEL_IN)
    (ax,) = figure.axes
    for policy, each in values.items():
        ax.ecdf(each, color=colours[policy], linewidth=1.8)
        tail = float(np.percentile(each, 99))
        ax.plot(tail, 0.99, "o", color=colours[policy], ms=6)
    ax.set_xlabel(f"{label}; the points are the 99th percentiles")
    ax.set_ylabel("share of iterations")
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.set_ylim(0, 1.02)
    ax.grid()
    return figure


def iterations_figure(title: str, comparison: PolicyComparison) -> Figure:
    """The slowdown of the k-th iteration, mean over jobs and seeds, a line a control, between the 10th and 90th
    percentiles."""
    colours = policy_colours(list(comparison.runs))
    figure = framed(title, list(colours.items()), _PANEL_IN)
    (ax,) = figure.axes
    for policy, runs in comparison.runs.items():
        jobs = [job for run in runs for job in run["slowdowns"] if job]
        by_number = [
            [job[number] for job in jobs if number < len(job)] for number in range(max(map(len, jobs)))
        ]
        numbers = range(1, len(by_number) + 1)
        ax.plot(numbers, [np.mean(each) for each in by_number], color=colours[policy], linewidth=1.8)
        low, high = (
            [float(np.percentile(each, percentile)) for each in by_number] for percentile in (10, 90)
        )
        ax.fill_between(numbers, low, high, color=colours[policy], alpha=0.15, linewidth=0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("iteration")
    ax.set_ylabel("slowdown, mean of all jobs")
    ax.grid()
    return figure


def course_figure(title: str, comparison: PolicyComparison) -> Figure:
    """The iteration times of each job over time, a panel a policy, of the first trace: means over a hundredth of it.

    Jobs of a model have one colour.
    """
    first = {policy: runs[0] for policy, runs in comparison.runs.items()}
    models = sorted({job["model"] for run in first.values() for job in run["jobs"]})
    colours = {model: SHADES[number % len(SHADES)] for number, model in enumerate(models)}
    figure = framed(
        title, [(model or "-", colour) for model, colour in colours.items()], _PANEL_IN, columns=len(first)
    )
    latest_s = max(max(run["every_ended_ns"]) for run in first.values()) / 1e9
    for ax, (policy, run) in zip(figure.axes, first.items(), strict=True):
        for model, ended_s, times_s in _jobs_of(run):
            bins = (100 * ended_s / latest_s).astype(int)
            means = [(ended_s[bins == each].mean(), times_s[bins == each].mean()) for each in np.unique(bins)]
            ax.plot(*zip(*means, strict=True), color=colours[model], linewidth=1.2)
        ax.set_title(policy, loc="left")
        ax.set_xlim(0, latest_s)
        ax.set_xlabel("time (s)")
        ax.grid()
    tallest = max(ax.get_ylim()[1] for ax in figure.axes)
    for ax in figure.axes:
        ax.set_ylim(0, tallest)
    figure.axes[0].set_ylabel("iteration (s)")
    return figure


def _jobs_of(run: TraceRun) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Of each job with iterations: its model, and when they ended and how long they took, in s."""
    place = 0
    for job in run["jobs"]:
        span = slice(place, place + job["iterations"])
        place = span.stop
        if job["iterations"]:
            yield (
                job["model"],
                np.array(run["every_ended_ns"][span]) / 1e9,
                np.array(run["every_iteration_ns"][span]) / 1e9,
            )


def marks_figure(title: str, comparison: PolicyComparison) -> Figure:
    """What was marked in an iteration, by model, a bar a policy: means over all iterations of all traces."""
    means = {policy: marks_by_model(runs) for policy, runs in comparison.runs.items()}
    models = sorted({model for each in means.values() for model in each})
    colours = policy_colours(list(means))
    figure = framed(
        title,
        list(colours.items()),
        max(1.5, _ROW_IN * len(models) * max(1.0, len(colours) / 2)),
        left_in=1.6,
    )
    (ax,) = figure.axes
    height = 0.8 / len(colours)
    for row, (policy, of_models) in enumerate(means.items()):
        places = np.arange(len(models)) + (row - (len(colours) - 1) / 2) * height
        values = [of_models.get(model, 0.0) / 8e6 for model in models]
        ax.barh(places, values, height=height * 0.9, color=colours[policy], linewidth=0)
    ax.set_yticks(range(len(models)), models, color=INK)
    ax.set_ylim(len(models) - 0.5, -0.5)
    ax.set_xlabel("marked (MB an iteration)")
    ax.grid(axis="x")
    return figure


def marks_by_model(runs: Sequence[TraceRun]) -> dict[str, float]:
    """The marked bits of an iteration of each model."""
    marked: dict[str, float] = {}
    iterations: dict[str, int] = {}
    for job in (job for run in runs for job in run["jobs"] if job["marked_bits"] is not None):
        model = job["model"] or "-"
        marked[model] = marked.get(model, 0.0) + job["marked_bits"] * job["iterations"]
        iterations[model] = iterations.get(model, 0) + job["iterations"]
    return {model: bits / iterations[model] for model, bits in marked.items() if iterations[model]}


def links_figure(title: str, comparison: PolicyComparison) -> Figure:
    """Of the links that failed or were busiest: bytes, queue, marks and time down, a bar a control."""
    runs_of_all = [run for runs in comparison.runs.values() for run in runs]
    names = _busiest(runs_of_all)
    colours = policy_colours(list(comparison.runs))
    left_in = 0.4 + 0.085 * max(map(len, names))
    height_in = max(1.5, _ROW_IN * len(names) * max(1.0, len(colours) / 2))
    known = [
        each
        for each in _MEASURES
        if any(link[each[0]] is not None for run in runs_of_all for link in run["by_link"])
    ]
    figure = framed(title, list(colours.items()), height_in, columns=len(known), left_in=left_in)
    width = 0.8 / len(colours)
    for ax, (measure, label, unit) in zip(figure.axes, known, strict=True):
        for row, (policy, runs) in enumerate(comparison.runs.items()):
            values = [_mean_of_link(runs, name, measure) / unit for name in names]
            places = np.arange(len(names)) + (row - (len(colours) - 1) / 2) * width
            ax.barh(places, values, height=width * 0.9, color=colours[policy], linewidth=0)
        ax.set_yticks(range(len(names)), names if ax is figure.axes[0] else [""] * len(names), color=INK)
        ax.tick_params(axis="y", length=0)
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.set_xlabel(label)
        ax.grid(axis="x")
    return figure


def pooled_slowdowns(runs: Sequence[TraceRun]) -> np.ndarray:
    """Those of all iterations of all jobs."""
    return np.concatenate([np.asarray(job) for run in runs for job in run["slowdowns"]])


def _busiest(runs: Sequence[TraceRun]) -> list[str]:
    """The links that were down for longest, those with the longest queues, or else with most bytes."""
    found: dict[str, tuple[float, float, float]] = {}
    for run in runs:
        for link in run["by_link"]:
            down_s, queue, sent = found.get(link["link"], (0.0, 0.0, 0.0))
            found[link["link"]] = (
                down_s + (link["down_s"] or 0.0),
                max(queue, link["largest_queue_bytes"] or 0.0),
                sent + link["sent_bytes"],
            )
    return sorted(found, key=lambda name: found[name], reverse=True)[:_MOST_LINKS]


def _mean_of_link(runs: Sequence[TraceRun], name: str, measure: str) -> float:
    """Mean over seeds; a link that was not used in one counts 0 there, as does what a mode does not have."""
    return float(
        np.mean(
            [sum(link[measure] or 0.0 for link in run["by_link"] if link["link"] == name) for run in runs]
        )
    )
