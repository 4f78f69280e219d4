"""The pictures of `mltcp-placement jobs`.

Of jobs with deadlines, Figures 5 and 7 to 12 of the DRS paper and the jobs on each GPU; of jobs that slow each other
down, Figures 5 to 8 of Ryu and Eo (ICPADS 2023) in one; without deadlines, mean response times as in the HELL paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from mltcp.core.quantities import S_PER_HOUR
from placement.experiments.comparison import PolicyComparison, pooled
from placement.experiments.deadline_jobs import Sweep
from placement.model.throughput import ThroughputModel, Workload, spread
from placement.plots.style import MUTED, framed, policy_colours
from placement.plots.timelines import GpuSpan, Timeline
from placement.simulator.rates.outcome import RatesOutcome, numbered_spans

_PANEL_IN = 2.9
_NS_PER_HOUR = S_PER_HOUR * 10**9
_CONTENTION_IN, _RESPONSE_IN = 6.2, 3.6
_MOST_TIMES_LEAST = 4.0
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


def sweep_figure(sweep: Sweep, comparisons: Sequence[PolicyComparison]) -> Figure:
    """Figures 7 to 11: guarantee rate, waiting time and completion time, a line a policy.

    Args:
        sweep: what is varied.
        comparisons: one a value.
    """
    policies = list(comparisons[0].runs)
    colours = policy_colours(policies)
    title = f"Figure {sweep.figure}: {sweep.title.lower()}"
    figure = framed(title, list(colours.items()), _PANEL_IN, columns=3)
    rates, waits, completions = figure.axes
    # Later lines are thinner, so that lines that coincide all remain visible.
    widths = np.linspace(3.6, 1.2, len(policies))
    panels = ((rates, "guarantee_rate", 1), (waits, "mean_wait_s", S_PER_HOUR))
    for number, policy in enumerate(policies):
        line: dict[str, Any] = {
            "color": colours[policy],
            "marker": _MARKERS[number % len(_MARKERS)],
            "markersize": 2 + 1.2 * widths[number],
            "linewidth": widths[number],
        }
        for ax, name, unit in (*panels, (completions, "mean_completion_s", S_PER_HOUR)):
            ax.plot(sweep.values, [each.mean(policy, name) / unit for each in comparisons], **line)
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
    latest_h = max(outcome.makespan_s for outcome in outcomes.values()) / S_PER_HOUR
    for ax, (policy, outcome) in zip(panels, outcomes.items(), strict=True):
        _use(ax, outcome, latest_h, colours[policy])
        ax.axvline(trace.arrivals_ns / _NS_PER_HOUR, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
    panels[-1].set_xlabel("hours")
    return figure


def gantt_timeline(outcome: RatesOutcome, nodes: int, gpus: int) -> Timeline:
    """The jobs on each GPU, for `timelines.gantt_figure`."""
    numbers = {job.name: number for number, job in enumerate(outcome.trace.jobs)}
    spans = tuple(
        GpuSpan(numbers[span.job], gpu, span.start_ns / 1e9, span.end_ns / 1e9)
        for span in numbered_spans(outcome)
        for gpu in span.gpus
    )
    servers = tuple((f"node {node}", gpus) for node in range(nodes))
    title = f"{outcome.policy}, {outcome.trace.name}"
    return Timeline(title, servers, spans, outcome.makespan_s, 0.0, (), ())


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


# -- jobs that slow each other down ------------------------------------------------------------------------------------


def contention_figure(title: str, comparison: PolicyComparison) -> Figure:
    """Draw the distributions of single jobs and rounds of all traces, and the means of each policy.

    Figure 5 is drawn twice, with queueing and as the public code counts: only the time for which a job ran.
    """
    colours = policy_colours(list(comparison.runs))
    key = list(zip(key_names(list(colours)), colours.values(), strict=True))
    figure = framed(title, key, _CONTENTION_IN)
    figure.delaxes(figure.axes[0])
    (completion, run, dots), (sensitivity, use, run_dots) = figure.subplots(
        2, 3, gridspec_kw={"hspace": 0.42, "wspace": 0.42}
    )
    for policy, runs in comparison.runs.items():
        colour = colours[policy]
        _cumulate(completion, pooled(runs, "jct_s") / S_PER_HOUR, colour)
        _cumulate(run, pooled(runs, "run_s") / S_PER_HOUR, colour)
        _cumulate(sensitivity, pooled(runs, "sensitivities"), colour)
        _draw_use(use, np.sum([each["rounds_by_gpus"] for each in runs], axis=0), colour)
    _label(completion, "Figure 5: completion times", "hours, queueing included", "jobs")
    _label(run, "Figure 5 as coded: run times", "hours", "jobs")
    _label(sensitivity, "Figure 6: contention", "mean sensitivity of a job", "jobs")
    _label(use, "Figure 7: utilization", "GPUs given out, at most", "rounds")
    use.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    _draw_means(dots, comparison, "mean_jct_s", colours)
    dots.set_title("Figure 8", loc="left")
    dots.set_ylabel("mean completion time (h)")
    _draw_means(run_dots, comparison, "mean_run_s", colours)
    run_dots.set_title("Figure 8 as coded", loc="left")
    run_dots.set_ylabel("mean run time (h)")
    return figure


def key_names(policies: Sequence[str]) -> list[str]:
    """What a key calls policies: of a network in a file the name of the file, or of its folder where all have one name.

    Names that would be the same stay as they are.
    """
    files = {policy: PurePath(policy.partition(":")[2]) for policy in policies if policy.endswith(".npz")}
    alike = len({path.name for path in files.values()}) == 1 < len(files)
    short = {
        policy: f"{policy.partition(':')[0]} ({path.parent.name if alike else path.stem})"
        for policy, path in files.items()
    }
    names = [short.get(policy, policy) for policy in policies]
    return [name if names.count(name) == 1 else policy for name, policy in zip(names, policies, strict=True)]


def _cumulate(ax: Axes, values: np.ndarray, colour: str) -> None:
    ordered = np.sort(values)
    ax.plot(ordered, np.arange(1, len(ordered) + 1) / len(ordered), color=colour, linewidth=1.4)


def _draw_use(ax: Axes, rounds_by_gpus: np.ndarray, colour: str) -> None:
    shares = np.arange(len(rounds_by_gpus)) / (len(rounds_by_gpus) - 1)
    ax.step(shares, rounds_by_gpus.cumsum() / rounds_by_gpus.sum(), where="post", color=colour, linewidth=1.4)


def _draw_means(ax: Axes, comparison: PolicyComparison, name: str, colours: Mapping[str, str]) -> None:
    for policy in comparison.runs:
        share = comparison.mean(policy, "utilization")
        ax.plot(share, comparison.mean(policy, name) / S_PER_HOUR, "o", color=colours[policy])
    ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.set_xlabel("mean utilization")
    ax.grid()


def _label(ax: Axes, title: str, below: str, of: str) -> None:
    ax.set_title(title, loc="left")
    ax.set_xlabel(below)
    ax.set_ylabel(f"share of {of}")
    ax.set_ylim(0, 1)
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ax.grid()


# -- jobs without deadlines --------------------------------------------------------------------------------------------


def response_figure(document: Mapping[str, Any]) -> Figure:
    """Draw a figure of the HELL paper from its JSON document: a panel a set of models, a line a policy.

    Points that are unstable, or beyond four times the best of their load, are left out. Of early termination (Figure
    14) the distributions are drawn.
    """
    cells: Sequence[Mapping[str, Any]] = document["cells"]
    if "percentiles_h" in cells[0]:
        return _early_figure(document)
    names = list(dict.fromkeys(_curve_name(cell, each) for cell in cells for each in cell["policies"]))
    colours = policy_colours(names)
    panels = list(dict.fromkeys(cell["models"] for cell in cells))
    figure = framed(
        f"Figure {document['figure']}: {document['title']}", list(colours.items()), _RESPONSE_IN, len(panels)
    )
    for models, axes in zip(panels, figure.axes, strict=True):
        of_panel = [cell for cell in cells if cell["models"] == models]
        for name in names:
            points = _points(of_panel, name)
            if points:
                loads, means, halves = zip(*points, strict=True)
                axes.errorbar(
                    loads, means, halves, color=colours[name], marker="o", markersize=3, linewidth=1.4
                )
        axes.set_title(f"models: {models}")
        axes.set_xlabel("load")
        axes.set_ylim(bottom=0)
        axes.grid(axis="y")
    figure.axes[0].set_ylabel("mean response (h)")
    return figure


def _early_figure(document: Mapping[str, Any]) -> Figure:
    """A panel a load: by gamma, the share of jobs that have ended, and of those of which 40 % is done (dashed)."""
    cells: Sequence[Mapping[str, Any]] = document["cells"]
    loads = list(dict.fromkeys(cell["load"] for cell in cells))
    names = {cell["gamma"]: f"gamma {cell['gamma']:g}" for cell in cells}
    colours = policy_colours(list(names.values()))
    title = f"Figure {document['figure']}: {document['title']}; dashed: 40 % of a job"
    figure = framed(title, list(colours.items()), _RESPONSE_IN, len(loads))
    for load, axes in zip(loads, figure.axes, strict=True):
        for cell in cells:
            if cell["load"] == load:
                colour = colours[names[cell["gamma"]]]
                for name, style in (("percentiles_h", "-"), ("to_40_percent_percentiles_h", "--")):
                    shares = np.arange(1, 1 + len(cell[name])) / (1 + len(cell[name]))
                    axes.plot(cell[name], shares, style, color=colour, linewidth=1.2)
        _label(axes, f"load {load:g}", "hours since arrival", "jobs")
        axes.set_xscale("log")
    return figure


def _curve_name(cell: Mapping[str, Any], policy: Mapping[str, Any]) -> str:
    name = str(policy["policy"])
    return f"{name}, gamma {cell['gamma']:g}" if cell["gamma"] else name


def _points(cells: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float, float]]:
    """Load, mean and half the interval."""
    found = []
    for cell in cells:
        stable = [each["mean_response_h"] for each in cell["policies"] if each["stable"]]
        highest = _MOST_TIMES_LEAST * min(stable, default=0.0)
        found += [
            (cell["load"], each["mean_response_h"], each["interval_95_h"] or 0.0)
            for each in cell["policies"]
            if _curve_name(cell, each) == name and each["stable"] and each["mean_response_h"] <= highest
        ]
    return found
