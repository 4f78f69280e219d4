"""The pictures that ``mltcp-placement jobs -o DIR`` draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from placement.experiments.jobs.figures import Sweep
from placement.experiments.jobs.runs import Cell, Drawn, JobsTask, Results, result_of, run_trace
from placement.traces.deadlines import WORKLOADS


def draw(
    folder: Path,
    base: Cell,
    policies: Sequence[str],
    sweeps: Sequence[Sweep],
    runs: Mapping[JobsTask, Results],
) -> list[Path]:
    """Draw the figures of the paper and a Gantt picture of the first trace under each policy; returns their files.

    Args:
        folder: where they are written.
        base: the cell of the command line.
        policies: their names.
        sweeps: the experiments that were run besides.
        runs: their results.
    """
    # matplotlib takes 0.3 s to import: only -o pays for it.
    from placement.plots import timelines, whole_jobs
    from placement.plots.style import write

    settings = base.settings
    trace = base.traces.first()
    written = [folder / "figure5.svg"]
    write(lambda: whole_jobs.epoch_figure(settings.model, WORKLOADS, settings.gpus), written[0])
    for sweep in sweeps:
        assert isinstance(base.traces, Drawn), "only drawn traces are varied"
        cells = sweep.cells(base.traces, settings)
        results = {policy: [result_of(cell, policy, runs) for cell in cells] for policy in policies}
        written.append(folder / f"figure{sweep.figure}.svg")
        write(lambda sweep=sweep, results=results: whole_jobs.sweep_figure(sweep, results), written[-1])  # type: ignore[misc]
    outcomes = {policy: run_trace(trace, settings, policy) for policy in policies}
    written.append(folder / "figure12.svg")
    write(lambda: whole_jobs.utilization_figure(outcomes), written[-1])
    for policy in policies:
        timeline = whole_jobs.gantt_timeline(outcomes[policy], settings.nodes, settings.gpus)
        written.append(folder / f"gantt-{policy}.svg")
        write(lambda timeline=timeline: timelines.gantt_figure(timeline), written[-1])  # type: ignore[misc]
    return written
