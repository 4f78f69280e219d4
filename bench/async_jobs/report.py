"""The table, the JSON document and the pictures of a comparison of schedulers on asynchronous jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bench.async_jobs.comparison import AsyncJobsPlan, PolicyComparison
from bench.async_jobs.profile import Profile
from mltcp.core.atomic_files import write_atomically
from mltcp.core.quantities import NS_PER_S
from placement.simulator.rates.outcome import RatesOutcome


def document(plan: AsyncJobsPlan, profile: Profile, results: Sequence[PolicyComparison]) -> dict[str, Any]:
    """The JSON document; times are seconds of the lab."""
    return {
        "schema": 1,
        "trace": plan.trace.name,
        "setting": {**asdict(plan.shape), "told": plan.told, "seed": plan.seed},
        "profile": profile.document(),
        "policies": [_policy(plan, result) for result in results],
    }


def print_table(plan: AsyncJobsPlan, profile: Profile, results: Sequence[PolicyComparison]) -> None:
    """Print the profile, and a row a policy."""
    from rich.box import HORIZONTALS
    from rich.table import Table

    from placement.experiments.console import open_console

    console = open_console(None)
    services = Table(title="one worker, seconds", box=HORIZONTALS, title_justify="left")
    for column in ("model", "S^W", "S^U", "S^S", "S^D"):
        services.add_column(column, justify="left" if column == "model" else "right")
    for name, service in profile.service.items():
        times = (service.worker_s, service.uplink_s, service.server_s, service.downlink_s)
        services.add_row(name, *(f"{each:.4f}" for each in times))
    console.print(services)
    models = list(results[0].predicted)
    title = f"{plan.trace.name}: {len(plan.trace.jobs)} jobs; schedulers are told {plan.told}; seconds"
    table = Table(title=title, box=HORIZONTALS, title_justify="left")
    table.add_column("policy", no_wrap=True, vertical="bottom")
    columns = ["mean response", *(each for model in models for each in (model, "off by"))]
    for column in (
        *columns,
        "joins",
        "predicted",
        "leaves",
        "predicted",
        "a join (ms)",
        "a leave (ms)",
        "others' load",
    ):
        table.add_column(column, justify="right")
    for result in results:
        table.add_row(result.run.policy, *_cells(plan, result, models))
    console.print(table)


def write_results(
    folder: Path, plan: AsyncJobsPlan, profile: Profile, results: Sequence[PolicyComparison]
) -> list[str]:
    """Write async-jobs.json, and of each policy a Gantt picture of the run and of its prediction; returns the files."""
    from placement.plots import timelines, whole_jobs
    from placement.plots.style import write

    written = [folder / "async-jobs.json"]
    text = json.dumps(document(plan, profile, results), allow_nan=False)
    write_atomically(written[0], text.encode() + b"\n")

    def draw(outcome: RatesOutcome, name: str) -> None:
        timeline = whole_jobs.gantt_timeline(outcome, plan.shape.hosts, plan.shape.slots)
        written.append(folder / f"gantt-{name}.svg")
        write(lambda: timelines.gantt_figure(timeline), written[-1])

    for result in results:
        draw(result.measured, result.run.policy)
        draw(result.predicted[plan.told].outcome, f"{result.run.policy}-predicted")
    return [str(path) for path in written]


def _cells(plan: AsyncJobsPlan, result: PolicyComparison, models: Sequence[str]) -> list[str]:
    run, told = result.run, result.predicted[plan.told]
    cells = [f"{result.measured.mean_completion_s:.2f}"]
    for model in models:
        cells += [
            f"{result.predicted[model].outcome.mean_completion_s:.2f}",
            f"{result.difference(model):+.1%}",
        ]
    cells += [str(each) for each in (run.joins, told.joins, run.leaves, told.leaves)]
    cells += [_ms(run.join_s), _ms(run.leave_s), f"{run.other_load:.0%}"]
    return cells


def _ms(times_s: Sequence[float]) -> str:
    return f"{1000 * median(times_s):.0f}" if times_s else "-"


def _policy(plan: AsyncJobsPlan, result: PolicyComparison) -> dict[str, Any]:
    run = result.run
    return {
        "policy": run.policy,
        "mean_response_s": result.measured.mean_completion_s,
        "makespan_s": result.measured.makespan_s,
        "predicted": {
            name: {
                "mean_response_s": each.outcome.mean_completion_s,
                "difference": result.difference(name),
                "makespan_s": each.outcome.makespan_s,
                "joins": each.joins,
                "leaves": each.leaves,
            }
            for name, each in result.predicted.items()
        },
        "joins": run.joins,
        "leaves": run.leaves,
        "join_s": _spread(run.join_s),
        "leave_s": _spread(run.leave_s),
        "staleness": run.staleness,
        "deaths": list(run.deaths),
        "other_load": run.other_load,
        "busy": run.busy,
        "jobs": [_job(plan, result, number) for number in range(len(plan.trace.jobs))],
    }


def _job(plan: AsyncJobsPlan, result: PolicyComparison, number: int) -> dict[str, Any]:
    job = plan.trace.jobs[number]
    ends = {name: each.outcome.end_ns[number] for name, each in result.predicted.items()}
    return {
        "job": job.name,
        "model": job.workload.name,
        "batches": int(job.workload.total_samples),
        "arrival_s": job.arrival_ns / NS_PER_S,
        "response_s": (result.measured.end_ns[number] - job.arrival_ns) / NS_PER_S,
        "predicted_response_s": {name: (end - job.arrival_ns) / NS_PER_S for name, end in ends.items()},
    }


def _spread(times_s: Sequence[float]) -> dict[str, float] | None:
    if not times_s:
        return None
    return {"median": median(times_s), "mean": fmean(times_s), "longest": max(times_s)}
