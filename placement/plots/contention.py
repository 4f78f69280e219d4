"""Figures 5 to 8 of Ryu and Eo (ICPADS 2023) in one picture: completion and run times, contention, and utilization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from mltcp.core.quantities import S_PER_HOUR
from placement.experiments.contention.results import RoundsPolicyResult
from placement.plots.style import framed, policy_colours

_HEIGHT_IN = 6.2


def contention_figure(title: str, results: Sequence[RoundsPolicyResult]) -> Figure:
    """Draw the distributions of single jobs and rounds of all traces, and the means of each policy.

    Figure 5 is drawn twice, with queueing and as the public code counts: only the time for which a job ran.
    """
    colours = policy_colours([result.policy for result in results])
    figure = framed(title, list(colours.items()), _HEIGHT_IN)
    figure.delaxes(figure.axes[0])
    (completion, run, dots), (sensitivity, use, run_dots) = figure.subplots(
        2, 3, gridspec_kw={"hspace": 0.42, "wspace": 0.42}
    )
    for result in results:
        of_jobs, colour = result.distributions, colours[result.policy]
        _cumulate(completion, of_jobs.jct_s / S_PER_HOUR, colour)
        _cumulate(run, of_jobs.run_s / S_PER_HOUR, colour)
        _cumulate(sensitivity, of_jobs.sensitivities, colour)
        _draw_use(use, of_jobs.rounds_by_gpus, colour)
    _label(completion, "Figure 5: completion times", "hours, queueing included", "jobs")
    _label(run, "Figure 5 as coded: run times", "hours", "jobs")
    _label(sensitivity, "Figure 6: contention", "mean contention sensitivity of a job", "jobs")
    _label(use, "Figure 7: utilization", "GPUs given out, at most", "rounds")
    use.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    _draw_means(dots, results, "mean_jct_s", colours)
    dots.set_title("Figure 8", loc="left")
    dots.set_ylabel("mean completion time (h)")
    _draw_means(run_dots, results, "mean_run_s", colours)
    run_dots.set_title("Figure 8 as coded", loc="left")
    run_dots.set_ylabel("mean run time (h)")
    return figure


def _cumulate(ax: Axes, values: np.ndarray, colour: str) -> None:
    ordered = np.sort(values)
    ax.plot(ordered, np.arange(1, len(ordered) + 1) / len(ordered), color=colour, linewidth=1.4)


def _draw_use(ax: Axes, rounds_by_gpus: np.ndarray, colour: str) -> None:
    shares = np.arange(len(rounds_by_gpus)) / (len(rounds_by_gpus) - 1)
    ax.step(shares, rounds_by_gpus.cumsum() / rounds_by_gpus.sum(), where="post", color=colour, linewidth=1.4)


def _draw_means(
    ax: Axes, results: Sequence[RoundsPolicyResult], field: str, colours: Mapping[str, str]
) -> None:
    for result in results:
        mean_s = result.mean(lambda trace: float(getattr(trace, field)))
        share = result.mean(lambda trace: trace.utilization)
        ax.plot(share, mean_s / S_PER_HOUR, "o", color=colours[result.policy])
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
