"""The table of a comparison of schedulers, and the gains of Cassini beside those of the thesis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

import numpy as np

from placement.experiments.console import open_console
from placement.experiments.schedule import ScheduleComparison, pooled
from placement.simulator.scheduled_cluster import TraceOutcome

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = (
    "iteration\nmean (s)",
    "\np99 (s)",
    "slowdown\nmean",
    "\np99",
    "marked\n(Gbit)",
    "JCT\nmean (s)",
    "\nmoves",
    "score\nmean",
    "decision\nmedian (ms)",
)


def print_schedule(comparison: ScheduleComparison, file: TextIO | None = None) -> None:
    """Print a comparison to the file or to standard output."""
    console = open_console(file)
    console.print(table(comparison))
    for gain in comparison.gains():
        thesis = f"; the thesis: {gain.thesis[0]:g}x and {gain.thesis[1]:g}x" if gain.thesis else ""
        console.print(
            f"{gain.scheduler} over {gain.scheduler}+cassini: mean {gain.mean:.2f}x, p99 {gain.p99:.2f}x{thesis}",
            soft_wrap=True,
            markup=False,
        )


def table(comparison: ScheduleComparison) -> Table:
    """The table, a row a scheduler, over all iterations of all jobs of all seeds."""
    from rich.box import HORIZONTALS
    from rich.table import Table

    plan = comparison.plan
    seeds = len(plan.seeds)
    title = f"{plan.trace}, {seeds} seed{'s' if seeds > 1 else ''}, {len(plan.setup.cluster.gpus)} GPUs"
    found = Table(title=title, box=HORIZONTALS, title_justify="left")
    found.add_column("scheduler", no_wrap=True, vertical="bottom")
    for column in _COLUMNS:
        found.add_column(column, justify="right")
    for name, outcomes in comparison.outcomes.items():
        found.add_row(name, *_cells(outcomes))
    return found


def _cells(outcomes: Sequence[TraceOutcome]) -> list[str]:
    times_s = pooled(outcomes, "iteration_ns") / 1e9
    slowdowns = pooled(outcomes, "slowdown")
    scores = [score for each in outcomes for score in each.scores]
    decisions = [took for each in outcomes for took in each.decision_ns]
    completions = [job.completion_ns / 1e9 for each in outcomes for job in each.jobs]
    return [
        f"{times_s.mean():.3f}",
        f"{np.percentile(times_s, 99):.3f}",
        f"{slowdowns.mean():.3f}",
        f"{np.percentile(slowdowns, 99):.2f}",
        f"{pooled(outcomes, 'marked_bits').mean() / 1e9:.2f}",
        f"{np.mean(completions):.0f}",
        str(sum(job.moved for each in outcomes for job in each.jobs)),
        f"{np.mean(scores):.3f}" if scores else "-",
        f"{np.median(decisions) / 1e6:.1f}" if decisions else "-",
    ]
