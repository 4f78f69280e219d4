"""How much of the contention on one link could be taken away: ideal sharing rules on sets of jobs of the table.

The jobs are those of a measurement of sensitivity (`bench/sensitivity/plan.py`), all of which meet on one link; what a
rule loses there stands beside what congestion controls were measured to lose.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement, pairwise
from statistics import fmean
from typing import Any

from bench.sensitivity.plan import demand_of, work_of
from bench.tables import Column, console, number, table_of
from bench.workloads.job import Pattern
from mltcp.control.traffic_classes import bounds_between
from mltcp.core.errors import UsageError, shown
from placement.model.throughput_table import Layout, SensitivityTable
from placement.simulator.link_order import BurstJob, BurstPhase, LinkRule, LinkSettings, throughput_ratios

RATE_BPS = 300_000_000
"""Sizes are scaled with the rate of the link, so that it does not matter beyond rounding."""

CLASSES = 4
HARM = 0.01
"""A job is harmed by a rule under which it is slower by more than this than under fair shares."""

DEMANDS = (1.0, 1.3)
"""Sets are grouped by the sum of the parts of the link that their jobs need: up to each of these, and above."""


@dataclass(frozen=True)
class BoundSettings:
    """What is simulated of each set of jobs.

    Attributes:
        rules: of the link.
        offsets: random offsets of the jobs, over which the ratios are averaged.
        link: see there.
        seed: of offsets and noise.
    """

    rules: tuple[LinkRule, ...]
    offsets: int = 3
    link: LinkSettings = field(default_factory=LinkSettings)
    seed: int = 0


@dataclass(frozen=True)
class BoundRow:
    """A set of jobs.

    Attributes:
        layouts: the jobs.
        demand: the sum over the jobs of the time for which an iteration sends over that of an iteration, alone.
        ratios: for each rule, or measured control, the throughput of each job over that alone.
    """

    layouts: tuple[Layout, ...]
    demand: float
    ratios: Mapping[str, tuple[float, ...]]

    def lost(self, name: str) -> float:
        """The mean of the throughput lost."""
        return 1 - fmean(self.ratios[name])


def burst_job(layout: Layout, table: SensitivityTable) -> BurstJob:
    """The phases of an iteration of a layout. Raises UsageError: the model is none of the plan's."""
    work = work_of(layout, table, RATE_BPS)
    sends_s = work.sent_bytes(layout.nodes) * 8 / RATE_BPS
    step_s = work.compute_s / work.layers
    if work.pattern is Pattern.SHARDED:
        third_s, layers = step_s / 3, work.layers
        backwards = [third_s, 2 * third_s, *[0.0, 2 * third_s] * (layers - 1)]
        computing = [0.0, *[third_s] * (layers - 1), *backwards]
    else:
        computing = [step_s] * work.layers
    phases = (BurstPhase(each, sends_s / len(computing)) for each in computing)
    return BurstJob(name_of(layout), tuple(phases))


def bound_of(layouts: Sequence[Layout], table: SensitivityTable, settings: BoundSettings) -> BoundRow:
    """What each rule leaves to a set of jobs. Raises UsageError as `burst_job` and `throughput_ratios`."""
    jobs = [burst_job(layout, table) for layout in layouts]
    link = settings.link
    if LinkRule.CLASSES in settings.rules and not link.class_bounds_s:
        bounds_s = bounds_between((job.send_s for job in jobs), CLASSES)
        link = replace(link, class_bounds_s=bounds_s)
    runs: dict[str, list[list[float]]] = {rule.label: [] for rule in settings.rules}
    for repeat in range(settings.offsets):
        chance = random.Random(f"{settings.seed}/{'/'.join(job.name for job in jobs)}/{repeat}")
        offsets_s = [chance.uniform(0, job.alone_s) for job in jobs]
        for rule in settings.rules:
            runs[rule.label].append(throughput_ratios(jobs, rule, offsets_s, settings.seed + repeat, link))
    ratios = {
        label: tuple(fmean(of_job) for of_job in zip(*each, strict=True)) for label, each in runs.items()
    }
    return BoundRow(tuple(layouts), demand_of(layouts, table, RATE_BPS), ratios)


def sets_of(layouts: Sequence[Layout]) -> list[tuple[Layout, ...]]:
    """All pairs, each layout with itself too."""
    return list(combinations_with_replacement(layouts, 2))


def with_measured(row: BoundRow, tables: Mapping[str, SensitivityTable]) -> BoundRow:
    """The pair with what was measured of it. Raises UsageError: a table has no row for it."""
    first, second = row.layouts
    measured = {
        name: (table.ratio(first, second), table.ratio(second, first)) for name, table in tables.items()
    }
    return BoundRow(row.layouts, row.demand, measured | dict(row.ratios))


# -- results -----------------------------------------------------------------------------------------------------------


def name_of(layout: Layout) -> str:
    """The name of a layout: model, GPUs and nodes."""
    return f"{layout.model}-{layout.gpus}-{layout.nodes}"


def named_layout(text: str, table: SensitivityTable) -> Layout:
    """The layout of this name. Raises UsageError: the table has no such row."""
    known = {name_of(layout): layout for layout in table.samples_per_s}
    if text not in known:
        raise UsageError(f"--jobs: expected names such as {next(iter(known))}, got {shown(text)}")
    return known[text]


def print_rows(rows: Sequence[BoundRow]) -> None:
    """Print the ratios of each job of few sets, and the means of many."""
    out = console()
    if len(rows) == 1:
        (row,) = rows
        columns = [Column[str]("rule", str, left=True)]
        columns += [
            Column(name_of(layout), lambda rule, place=place: number(row.ratios[rule][place]))  # type: ignore[misc]
            for place, layout in enumerate(row.layouts)
        ]
        columns += [Column("lost, mean", lambda rule: f"{row.lost(rule):.1%}")]
        title = f"Throughput over that alone; demand {row.demand:.2f}"
        out.print(table_of(row.ratios, columns, title))
        return
    groups = groups_of(rows)
    for title, figure in (
        ("Throughput lost, mean of the jobs", _mean_lost),
        ("of the job of each set that loses most", _worst_lost),
        (f"Jobs slower than under fair shares by more than {HARM:.0%}", _harmed),
    ):
        columns = [Column[str]("rule", str, left=True)]
        columns += [
            Column(group, lambda rule, own=own, figure=figure: figure(own, rule))  # type: ignore[misc]
            for group, own in groups.items()
        ]
        out.print(table_of(rows[0].ratios, columns, title))


def groups_of(rows: Sequence[BoundRow]) -> dict[str, list[BoundRow]]:
    """The sets by demand; groups without any are left out."""
    edges = [0.0, *DEMANDS, float("inf")]
    groups = {f"all {len(rows)}": list(rows)}
    for low, high in pairwise(edges):
        own = [row for row in rows if low < row.demand <= high]
        words = f"demand to {high:g}" if high < edges[-1] else f"above {low:g}"
        groups |= {f"{words}: {len(own)}": own} if own else {}
    return groups


def document(rows: Iterable[BoundRow]) -> dict[str, Any]:
    """The sets as a JSON document."""
    return {
        "schema": 1,
        "sets": [
            {
                "jobs": [name_of(layout) for layout in row.layouts],
                "demand": row.demand,
                "ratios": {name: list(ratios) for name, ratios in row.ratios.items()},
            }
            for row in rows
        ],
    }


def _mean_lost(rows: Sequence[BoundRow], rule: str) -> str:
    return f"{fmean(row.lost(rule) for row in rows):.1%}"


def _worst_lost(rows: Sequence[BoundRow], rule: str) -> str:
    return f"{fmean(1 - min(row.ratios[rule]) for row in rows):.1%}"


def _harmed(rows: Sequence[BoundRow], rule: str) -> str:
    fair = LinkRule.FAIR.label
    if fair not in rows[0].ratios:
        return "-"
    harmed = [
        ours < (1 - HARM) * under_fair
        for row in rows
        for ours, under_fair in zip(row.ratios[rule], row.ratios[fair], strict=True)
    ]
    return f"{sum(harmed)} of {len(harmed)}"
