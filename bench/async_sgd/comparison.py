"""Measured throughput against the queueing model, as tables and as a JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.async_sgd.run import AsyncRun
from bench.lab.processors import BUSY
from bench.workloads.parameter_server.log import CycleTimes
from mltcp.core.errors import MltcpError
from placement.experiments.service_profile import ServiceProfile
from placement.model.queueing import Method, throughput_bound, throughputs
from placement.model.service_times import ServiceTimes

METHODS = (Method.EXACT, Method.APPROXIMATE, Method.HYBRID)


@dataclass(frozen=True)
class AsyncCell:
    """All repeats of one number of workers under one control.

    Attributes:
        workers: K.
        runs: in the order of the repeats.
        predicted: X(K) by each method of the model.
        bound: min(K/R, 1/Smax).
        load: K Smax / R; up to about 0.8 workers take turns by themselves.
    """

    workers: int
    runs: tuple[AsyncRun, ...]
    predicted: Mapping[Method, float]
    bound: float
    load: float

    @property
    def throughput(self) -> float:
        """The median over the repeats."""
        return median(run.throughput for run in self.runs)

    @property
    def of_bound(self) -> float:
        """The median as a share of the bound."""
        return self.throughput / self.bound

    def error(self, method: Method) -> float:
        """The relative error of a method: positive where it predicts too much."""
        return self.predicted[method] / self.throughput - 1


@dataclass(frozen=True)
class ControlComparison:
    """One congestion control: its profile, and its cells by the number of workers."""

    control: str
    profile: ServiceTimes
    cells: tuple[AsyncCell, ...]

    def errors(self, method: Method) -> dict[str, float] | None:
        """The least, mean and largest absolute relative error over two and more workers; None if there are none."""
        found = [abs(cell.error(method)) for cell in self.cells if cell.workers > 1]
        return {"min": min(found), "mean": fmean(found), "max": max(found)} if found else None


def compare(
    runs: Sequence[AsyncRun], profile: ServiceTimes | None = None, servers: int | Sequence[float] = 1
) -> tuple[ControlComparison, ...]:
    """Compare each control's runs with the predictions from a profile.

    Args:
        runs: measured.
        profile: of one worker; None: each control's own runs with one worker, or else those of the first that has any.
        servers: their number, or the share of each; the profile of measured runs has them already.

    Raises:
        MltcpError: there is no profile.
    """
    controls = list(dict.fromkeys(run.control for run in runs))
    own = {control: _profile(runs, control) for control in controls}
    shared = profile or next((found for found in own.values() if found is not None), None)
    if shared is None:
        raise MltcpError("profile: expected a run with one worker, or --profile, got neither")
    found = []
    for control in controls:
        mine = profile.split(servers) if profile is not None else own[control] or shared
        found.append(ControlComparison(control, mine, _cells(runs, control, mine)))
    return tuple(found)


def service_times(times: CycleTimes) -> ServiceTimes:
    """The service times that the cycles of a lone worker show."""
    return ServiceTimes(times.worker_s, times.uplink_s, times.server_s + times.wait_s, times.downlink_s)


def _profile(runs: Sequence[AsyncRun], control: str) -> ServiceTimes | None:
    """The median of each time over the runs with one worker."""
    alone = [service_times(run.times) for run in runs if run.control == control and run.workers == 1]
    if not alone:
        return None
    return ServiceTimes(
        median(each.worker_s for each in alone),
        median(each.uplink_s for each in alone),
        median(each.server_s for each in alone),
        median(each.downlink_s for each in alone),
    )


def _cells(runs: Sequence[AsyncRun], control: str, profile: ServiceTimes) -> tuple[AsyncCell, ...]:
    mine = [run for run in runs if run.control == control]
    numbers = sorted({run.workers for run in mine})
    predicted = {method: throughputs(profile, max(numbers), method=method) for method in METHODS}
    return tuple(
        AsyncCell(
            workers,
            tuple(sorted((run for run in mine if run.workers == workers), key=lambda run: run.repeat)),
            {method: float(values[workers - 1]) for method, values in predicted.items()},
            throughput_bound(profile, workers),
            workers * profile.bottleneck_s / profile.cycle_s,
        )
        for workers in numbers
    )


SCHEMA = 1


def print_report(
    comparisons: Sequence[ControlComparison], packets: ServiceProfile | None = None, files: Sequence[str] = ()
) -> None:
    """Print a table for each control, with every repeat, and the service times of a capture."""
    console = Console(highlight=False)
    for each in comparisons:
        console.print(_table(each))
        errors = ((method, each.errors(method)) for method in METHODS)
        shown = [
            f"{x} {e['mean']:.1%} ({e['min']:.1%} to {e['max']:.1%})" for x, e in errors if e is not None
        ]
        if shown:
            console.print(f"mean error from two workers on: {', '.join(shown)}\n", soft_wrap=True)
    if packets is not None:
        console.print(f"{packets.cycles} cycles in the capture: {_shown(packets.service)}", soft_wrap=True)
    busiest = max((run for each in comparisons for cell in each.cells for run in cell.runs), key=_load)
    if _load(busiest) > BUSY:
        console.print(
            f"other programs used up to {_load(busiest):.0%} of the processors during a run", soft_wrap=True
        )
    for path in files:
        console.print(f"wrote {path}", soft_wrap=True)


def document(comparisons: Sequence[ControlComparison]) -> dict[str, Any]:
    """The result as a JSON document; rates in updates a second."""
    return {
        "schema": SCHEMA,
        "controls": [
            {
                "control": each.control,
                "profile": asdict(each.profile),
                "cycle_s": each.profile.cycle_s,
                "error": {method.value: each.errors(method) for method in METHODS},
                "cells": [_cell(cell) for cell in each.cells],
            }
            for each in comparisons
        ],
    }


def _load(run: Any) -> float:
    return float(run.other_load)


def _table(comparison: ControlComparison) -> Table:
    title = f"{comparison.control}: {_shown(comparison.profile)}"
    # Narrow enough for a terminal of 80 columns with three repeats.
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    headings = ("K", "K Smax/R", "updates/s", "median", "bound", *("exact", "approx.", "hybrid"))
    for name in (*headings, "stale", "overlap", "drops"):
        table.add_column(name, justify="right")
    for cell in comparison.cells:
        table.add_row(*_row(cell))
    return table


def _shown(profile: ServiceTimes) -> str:
    times = (
        ("W", profile.worker_s),
        ("U", profile.uplink_s),
        ("S", profile.server_s),
        ("D", profile.downlink_s),
    )
    return ", ".join(f"S^{name} {time_s * 1000:.0f} ms" for name, time_s in times)


def _row(cell: AsyncCell) -> list[str]:
    middle = [
        median(values)
        for values in zip(*((run.up.overlap, run.down.overlap) for run in cell.runs), strict=True)
    ]
    return [
        str(cell.workers),
        f"{cell.load:.2f}",
        " ".join(f"{run.throughput:.2f}" for run in cell.runs),
        f"{cell.throughput:.2f}",
        f"{cell.bound:.2f}",
        *(f"{cell.predicted[method]:.2f}" for method in METHODS),
        f"{median(run.staleness for run in cell.runs):.2f}",
        "/".join(f"{each:.0%}" for each in middle),
        str(round(median(run.up.drops + run.down.drops for run in cell.runs))),
    ]


def _cell(cell: AsyncCell) -> dict[str, Any]:
    return {
        "workers": cell.workers,
        "load": cell.load,
        "throughput": cell.throughput,
        "bound": cell.bound,
        "of_bound": cell.of_bound,
        "predicted": {method.value: rate for method, rate in cell.predicted.items()},
        "error": {method.value: cell.error(method) for method in METHODS},
        "repeats": [
            {
                name: value
                for name, value in asdict(run).items()
                if name not in ("excerpt", "key", "control", "workers")
            }
            for run in cell.runs
        ],
    }
