"""Ratios of shared to isolated throughput from measurements, with intervals, in the format of the published table."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import chain
from pathlib import Path
from statistics import fmean, median

import numpy as np

from bench.lab.processors import BUSY
from bench.sensitivity.drift import UNSTEADY, drifts, variation
from bench.sensitivity.run import SensitivityRun
from bench.sensitivity.traffic import samples_of
from mltcp.core.atomic_files import write_atomically
from placement.model.throughput_table import (
    ISOLATED,
    PAIR_COLUMNS,
    RATIO_COLUMN,
    RATIOS,
    Layout,
    SensitivityTable,
)

MEASURED = "measured_ratios.csv"
"""The ratios as they are, above 1 too, with their intervals."""

_RESAMPLES = 1000


@dataclass(frozen=True)
class Cell:
    """A layout beside another.

    Attributes:
        layout, other: both.
        ratio: of throughputs, and so mean isolated over mean shared iteration time; not clipped.
        low, high: of its 95 % bootstrap interval.
        repeats: the ratio of each repeat.
    """

    layout: Layout
    other: Layout
    ratio: float
    low: float
    high: float
    repeats: tuple[float, ...]


@dataclass(frozen=True)
class MeasuredTable:
    """The table of one control.

    Attributes:
        control: the name of the policy.
        isolated_s: the mean iteration time of each layout alone.
        cells: of all ordered pairs.
        unsteady: layouts whose measurements alone vary by more than `drift.UNSTEADY`, with their variation.
        drift: the largest deviation of a reference from the median of all.
        other_loads: of each run, the share of the processors that other programs used.
    """

    control: str
    isolated_s: Mapping[Layout, float]
    cells: tuple[Cell, ...]
    unsteady: Mapping[Layout, float]
    drift: float
    other_loads: tuple[float, ...]

    @property
    def disturbed(self) -> int:
        """The number of runs during which other programs used more than 5 % of the processors."""
        return sum(load > BUSY for load in self.other_loads)

    @property
    def half_interval(self) -> float:
        """The median half width of the intervals."""
        return median((cell.high - cell.low) / 2 for cell in self.cells)

    def within(self, difference: float) -> float | None:
        """The share of cells whose repeats differ by at most so much; None with one repeat."""
        spreads = [max(cell.repeats) - min(cell.repeats) for cell in self.cells if len(cell.repeats) > 1]
        return sum(spread <= difference for spread in spreads) / len(spreads) if spreads else None


def table_of(control: str, runs: Sequence[SensitivityRun], seed: int = 0) -> MeasuredTable:
    """The table of a control from all of its runs."""
    chance = np.random.default_rng(seed)
    ours = [run for run in runs if run.control == control]
    runs_alone: dict[Layout, list[tuple[float, ...]]] = {}
    shared: dict[tuple[Layout, Layout], dict[int, list[float]]] = {}
    references: list[SensitivityRun] = []
    for run in ours:
        if run.is_reference:
            references.append(run)
        elif len(run.layouts) == 1:
            runs_alone.setdefault(run.layouts[0], []).append(run.iterations_s[0])
        else:
            for side, times in enumerate(run.iterations_s):
                pair = run.layouts[side], run.layouts[1 - side]
                shared.setdefault(pair, {}).setdefault(run.repeat, []).extend(times)
    alone = {layout: list(chain.from_iterable(each)) for layout, each in runs_alone.items()}
    isolated = {layout: fmean(times) for layout, times in alone.items()}
    cells = tuple(
        _cell(*pair, alone[pair[0]], times, chance)
        for pair, times in sorted(shared.items())
        if pair[0] in alone
    )
    drift = max(drifts(references), default=0.0)
    varying = {layout: variation(list(map(fmean, each))) for layout, each in runs_alone.items()}
    unsteady = {layout: each for layout, each in varying.items() if each > UNSTEADY}
    return MeasuredTable(control, isolated, cells, unsteady, drift, tuple(run.other_load for run in ours))


def _cell(
    layout: Layout,
    other: Layout,
    alone: Sequence[float],
    shared: Mapping[int, Sequence[float]],
    chance: np.random.Generator,
) -> Cell:
    together = [time for times in shared.values() for time in times]
    drawn = _drawn_means(alone, chance) / _drawn_means(together, chance)
    low, high = np.quantile(drawn, (0.025, 0.975))
    repeats = tuple(fmean(alone) / fmean(times) for times in shared.values())
    return Cell(layout, other, fmean(alone) / fmean(together), float(low), float(high), repeats)


def _drawn_means(times: Sequence[float], chance: np.random.Generator) -> np.ndarray:
    return np.asarray(chance.choice(np.asarray(times), size=(_RESAMPLES, len(times))).mean(axis=1))


def write_table(
    table: MeasuredTable, published: SensitivityTable, folder: Path, source: str, day: date
) -> list[Path]:
    """Write the table in the format of the published one, and the ratios as measured; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, tuple[tuple[str, ...], list[tuple[object, ...]]]] = {
        ISOLATED: (
            ("model", "gpus", "nodes", "gpus_per_node", "samples_per_s"),
            [
                (*layout, layout.gpus // layout.nodes, f"{samples_of(layout, published) / time:.6g}")
                for layout, time in table.isolated_s.items()
            ],
        ),
        RATIOS: (
            (*PAIR_COLUMNS, RATIO_COLUMN),
            [(*cell.layout, *cell.other, f"{min(1.0, cell.ratio):.4f}") for cell in table.cells],
        ),
        MEASURED: (
            (*PAIR_COLUMNS, "ratio", "low", "high"),
            [
                (*cell.layout, *cell.other, *(f"{each:.4f}" for each in (cell.ratio, cell.low, cell.high)))
                for cell in table.cells
            ],
        ),
    }
    for name, (columns, rows) in files.items():
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            [(*columns, "source", "date"), *((*row, source, day.isoformat()) for row in rows)]
        )
        write_atomically(folder / name, text.getvalue().encode())
    return [folder / name for name in files]
