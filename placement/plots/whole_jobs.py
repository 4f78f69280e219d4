"""The pictures of `mltcp-placement jobs`: Figures 5 and 7 to 12 of the DRS paper, and the jobs on each GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from placement.experiments.jobs.figures import Sweep
from placement.experiments.jobs.results import PolicyResult
from placement.model.throughput import ThroughputModel, Workload, spread
from placement.plots.style import MUTED, framed, policy_colours
from placement.plots.timelines import Span, Timeline
from placement.simulator.rates.outcome import RatesOutcome, numbered_spans

_PANEL_IN = 2.9
_S_PER_HOUR, _NS_PER_HOUR = 3600, 3600 * 10**9
_BINS = 240
_MARKERS = "osD^vPX*<>dh8"


def epoch_figure(model: ThroughputModel, workloads: Sequence[Workload], per_node: int) -> Figure:
    """Figure 5: the time of an epoch over that on one GPU, across nodes and on one node, a line a workload."""
    colours = dict(
        zip((w.name for w in workloads), policy_colours([w.name for w in workloads]).values(), strict=True)
    )
    figure = framed("Figure 5: epoch time by number of GPUs", list(colours.items()), _PANEL_IN, columns=2)
    for ax, one_node, title in zip(figure.axes, (False, True), ("across nodes", "on one node"), strict=True):
        numbers = [1, 2, 4] if one_node else [1, 2, 4, 8, 16]
        for workload in workloads:
            times = [1 / model.samples_per_ns(workload, spread(gpus, per_node, one_node)) for gpus in numbers]
            ax.plot(
                numbers, [float(time / times[0]) for time in times], "o-", ms=3, color=colours[workload.name]
            )
        ax.axhline(1, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
        ax.set_xscale("log", base=2)
        ax.set_xticks(numbers, [str(number) for number in numbers])
        ax.set_ylim(bottom=0)
        ax.set_xlabel(f"GPUs, {title}")
        ax.grid()
    figure.axes[0].set_ylabel("epoch time, 1 GPU = 1")
    return figure


def sweep_figure(sweep: Sweep, results: Mapping[str, Sequence[PolicyResult]]) -> Figure:
    """Figures 7 to 11: guarantee rate, waiting time and completion time, a line a policy.

    Args:
        sweep: what is varied.
        results: of each policy, one a value.
    """
    colours = policy_colours(list(results))
    title = f"Figure {sweep.figure}: {sweep.title.lower()}"
    figure = framed(title, list(colours.items()), _PANEL_IN, columns=3)
    rates, waits, completions = figure.axes
    # Later lines are thinner, so that lines that coincide all remain visible.
    widths = np.linspace(3.6, 1.2, len(results))
    for number, (policy, each) in enumerate(results.items()):
        line: dict[str, Any] = {
            "color": colours[policy],
            "marker": _MARKERS[number % len(_MARKERS)],
            "markersize": 2 + 1.2 * widths[number],
            "linewidth": widths[number],
        }
        rates.plot(sweep.values, [result.guarantee_rate for result in each], **line)
        waits.plot(sweep.values, [_hours(result, "mean_wait_s") for result in each], **line)
        completions.plot(sweep.values, [_hours(result, "mean_completion_s") for result in each], **line)
    rates.set_ylim(0, 1.02)
    rates.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    names = ("guarantee rate", "mean waiting time (h)", "mean completion time (h)")
    for ax, name in zip(figure.axes, names, strict=True):
        ax.set_title(name, loc="left")
        ax.set_xlabel(sweep.label)
        ax.set_xticks(sweep.values, [f"{value:.2g}" if value < 1 else f"{value:g}" for value in sweep.values])
        ax.grid()
    for ax in (waits, completions):
        ax.set_ylim(bottom=0)
    return figure


def utilization_figure(outcomes: Mapping[str, RatesOutcome]) -> Figure:
    """Figure 12: the share of the GPUs that are given out over time, on one trace, a panel a policy."""
    colours = policy_colours(list(outcomes))
    trace = next(iter(outcomes.values())).trace
    key = [
        (f"{name} {outcome.utilization_arrivals:.1%}", colours[name]) for name, outcome in outcomes.items()
    ]
    key.append(("while jobs arrive", MUTED))
    figure = framed(f"Figure 12: utilization, {trace.name}", key, 0.62 * len(outcomes) + 0.6)
    figure.delaxes(figure.axes[0])
    panels = figure.subplots(len(outcomes), 1, sharex=True, squeeze=False)[:, 0]
    latest_h = max(outcome.makespan_s for outcome in outcomes.values()) / _S_PER_HOUR
    for ax, (policy, outcome) in zip(panels, outcomes.items(), strict=True):
        _use(ax, outcome, latest_h, colours[policy])
        ax.axvline(trace.arrivals_ns / _NS_PER_HOUR, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
    panels[-1].set_xlabel("hours")
    return figure


def gantt_timeline(outcome: RatesOutcome, nodes: int, gpus: int) -> Timeline:
    """The jobs on each GPU, for `timelines.gantt_figure`."""
    numbers = {job.name: number for number, job in enumerate(outcome.trace.jobs)}
    spans = tuple(
        Span(numbers[span.job], gpu, span.start_ns / 1e9, span.end_ns / 1e9)
        for span in numbered_spans(outcome)
        for gpu in span.gpus
    )
    servers = tuple((f"node {node}", gpus) for node in range(nodes))
    title = f"{outcome.policy}, {outcome.trace.name}"
    return Timeline(title, servers, spans, outcome.makespan_s, 0.0, (), ())


def _hours(result: PolicyResult, field: str) -> float:
    return result.mean(lambda trace: getattr(trace, field)) / _S_PER_HOUR


def _use(ax: Axes, outcome: RatesOutcome, latest_h: float, colour: str) -> None:
    edges = np.linspace(0, latest_h * _NS_PER_HOUR, _BINS + 1).astype(np.int64)
    held = [outcome.table.held_ns(int(edge)) for edge in edges]
    shares = [
        (after - before) / (outcome.gpus * (end - start))
        for (before, after), (start, end) in zip(pairwise(held), pairwise(edges.tolist()), strict=True)
    ]
    ax.stairs(shares, edges / _NS_PER_HOUR, fill=True, color=colour)
    ax.set_ylim(0, 1)
    ax.set_yticks([0, 1], ["0", "100 %"])
    ax.set_xlim(0, latest_h)
