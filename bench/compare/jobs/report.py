"""The table, the JSON document and the pictures of a comparison of schedulers on whole jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.compare.jobs.comparison import JobsPlan, PolicyComparison
from mltcp.core.atomic_files import write_atomically
from placement.experiments.deadline_jobs import values_of
from placement.simulator.rates.outcome import RatesOutcome

_COLUMNS = (
    "guarantee rate",
    "predicted",
    "wait mean (s)",
    "predicted",
    "completion mean (s)",
    "predicted",
    "restarts",
    "predicted",
    "run time off by",
    "on its GPUs",
)


def document(workload: str, plan: JobsPlan, results: Sequence[PolicyComparison]) -> dict[str, Any]:
    """The JSON document; times are seconds of the lab."""
    return {
        "workload": workload,
        "setting": {
            "speed": float(plan.scale.speed),
            "nodes": plan.scale.shape.racks,
            "gpus": plan.scale.shape.slots,
            "nic_bps": plan.scale.shape.nic.rate_bps,
            "inside_bytes_per_s": plan.scale.inside_bytes_per_s,
            "start_fixed_s": plan.cost.fixed_ns / 1e9,
            "start_per_gpu_s": plan.cost.per_gpu_ns / 1e9,
        },
        "policies": [result.document() for result in results],
    }


def print_table(plan: JobsPlan, results: Sequence[PolicyComparison]) -> None:
    """Print a row a policy."""
    from rich.box import HORIZONTALS
    from rich.table import Table

    from placement.experiments.console import open_console

    title = f"{plan.trace.name}: {len(plan.trace.jobs)} jobs, live; seconds of the lab"
    table = Table(title=title, box=HORIZONTALS, title_justify="left")
    table.add_column("policy", no_wrap=True, vertical="bottom")
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    for result in results:
        table.add_row(result.run.policy, *_cells(result))
    open_console(None).print(table)


def write_results(
    folder: Path, workload: str, plan: JobsPlan, results: Sequence[PolicyComparison]
) -> list[str]:
    """Write jobs.json, and of each policy a Gantt picture of the run and of its prediction; returns the files."""
    from placement.plots import timelines, whole_jobs
    from placement.plots.style import write

    written = [folder / "jobs.json"]
    text = json.dumps(document(workload, plan, results), allow_nan=False)
    write_atomically(written[0], text.encode() + b"\n")
    shape = plan.scale.shape

    def draw(outcome: RatesOutcome, name: str) -> None:
        timeline = whole_jobs.gantt_timeline(outcome, shape.racks, shape.slots)
        written.append(folder / f"gantt-{name}.svg")
        write(lambda: timelines.gantt_figure(timeline), written[-1])

    for result in results:
        draw(result.measured, result.run.policy)
        draw(result.predicted, f"{result.run.policy}-predicted")
    return [str(path) for path in written]


def _cells(result: PolicyComparison) -> list[str]:
    measured, predicted = values_of(result.measured), values_of(result.predicted)
    pairs = (
        (f"{each['guarantee_rate']:.3f}" for each in (measured, predicted)),
        (f"{each['mean_wait_s']:.1f}" for each in (measured, predicted)),
        (f"{each['mean_completion_s']:.1f}" for each in (measured, predicted)),
        (f"{each['restarts']}" for each in (measured, predicted)),
    )
    off = (median(result.differences), median(result.differences_on_measured_gpus))
    return [*(cell for pair in pairs for cell in pair), *(f"{each:.1%}" for each in off)]
