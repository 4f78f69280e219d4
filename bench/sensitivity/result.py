"""Ratios of shared to isolated throughput from measurements, with intervals, in the format of the published table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from enum import Enum
from itertools import chain
from pathlib import Path
from statistics import fmean, median, pstdev

import numpy as np

from bench.lab.processors import BUSY
from bench.sensitivity.plan import SensitivityPlan, SensitivityPoint, computing_s, samples_of
from mltcp.core.atomic_files import write_atomically
from placement.model.throughput_table import (
    ISOLATED,
    PAIR_COLUMNS,
    RATIO_COLUMN,
    RATIOS,
    Layout,
    SensitivityTable,
)

# -- one measurement ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SensitivityRun:
    """One measurement.

    Attributes:
        key: of the plan's point.
        control: the name of the policy.
        layouts: one, or two that shared nodes.
        repeat: from 0.
        is_reference: whether it is one of the repeated measurements of the same layout.
        iterations_s: of each layout, the durations of the iterations that count.
        began_s: CLOCK_MONOTONIC.
        other_load: share of the processors that other programs used.
    """

    key: str
    control: str
    layouts: tuple[Layout, ...]
    repeat: int
    is_reference: bool
    iterations_s: tuple[tuple[float, ...], ...]
    began_s: float
    other_load: float = 0.0

    def line(self) -> str:
        """The run as a line of JSON."""
        return json.dumps(asdict(self), allow_nan=False)


def run_from_line(line: bytes) -> SensitivityRun:
    """The run of a line. Raises ValueError or TypeError if it is none."""
    found = json.loads(line)
    if not isinstance(found, Mapping):
        raise ValueError("expected an object")
    fields = dict(found)
    try:
        fields["layouts"] = tuple(Layout(*each) for each in fields["layouts"])
        fields["iterations_s"] = tuple(tuple(map(float, each)) for each in fields["iterations_s"])
    except KeyError as error:
        raise ValueError(f"no {error}") from None
    return SensitivityRun(**fields)


# -- measurements to be made once more ---------------------------------------------------------------------------------

DRIFT = 0.03
"""A reference that differs by more from the median of all voids the pairs that follow it."""

UNSTEADY = 0.02
"""A layout alone whose measurements have a larger coefficient of variation is measured again."""

Runs = Mapping[str, SensitivityRun]


def second_attempts(
    plan: SensitivityPlan, points: Sequence[SensitivityPoint], runs: Runs
) -> dict[SensitivityPoint, SensitivityPoint]:
    """The points of void blocks, references among them, and of unsteady layouts, with those that take their place.

    Args:
        plan: that was measured.
        points: of the plan, in its order.
        runs: of all of them, by their keys.
    """
    again = _unsteady(plan, points, runs) | _in_void_blocks(plan, points, runs)
    return {point: replace(point, attempt=1) for point in points if point in again}


def drifts(references: Sequence[SensitivityRun]) -> list[float]:
    """How far the iteration of each measurement of the reference is from the median of all, as a share."""
    times = [median(run.iterations_s[0]) for run in references]
    return [abs(time / median(times) - 1) for time in times]


def variation(means: Sequence[float]) -> float:
    """The coefficient of variation of the measurements of a layout alone, by the mean of each."""
    return pstdev(means) / fmean(means)


def _unsteady(plan: SensitivityPlan, points: Sequence[SensitivityPoint], runs: Runs) -> set[SensitivityPoint]:
    alone: dict[tuple[object, ...], list[SensitivityPoint]] = {}
    for point in points:
        if len(point.layouts) == 1 and point.block is None:
            alone.setdefault((point.control, point.layouts), []).append(point)
    return {
        point
        for each in alone.values()
        if variation([fmean(runs[plan.key(point)].iterations_s[0]) for point in each]) > UNSTEADY
        for point in each
    }


def _in_void_blocks(
    plan: SensitivityPlan, points: Sequence[SensitivityPoint], runs: Runs
) -> set[SensitivityPoint]:
    references: dict[str, list[SensitivityPoint]] = {}
    for point in points:
        if point.block is not None:
            references.setdefault(point.control, []).append(point)
    drifted = {
        point
        for each in references.values()
        for point, drift in zip(each, drifts([runs[plan.key(point)] for point in each]), strict=True)
        if drift > DRIFT
    }
    reference: dict[str, SensitivityPoint] = {}
    found = set()
    for point in points:
        if point.block is not None:
            reference[point.control] = point
        if reference.get(point.control) in drifted:
            found.add(point)
    return found


# -- the table of a control --------------------------------------------------------------------------------------------

MEASURED = "measured_ratios.csv"
"""The ratios as they are, above 1 too, with their intervals."""

_RATIO_RESAMPLES = 1000


@dataclass(frozen=True)
class PairRatio:
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
    cells: tuple[PairRatio, ...]
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
) -> PairRatio:
    together = [time for times in shared.values() for time in times]
    drawn = _drawn_means(alone, chance) / _drawn_means(together, chance)
    low, high = np.quantile(drawn, (0.025, 0.975))
    repeats = tuple(fmean(alone) / fmean(times) for times in shared.values())
    return PairRatio(layout, other, fmean(alone) / fmean(together), float(low), float(high), repeats)


def _drawn_means(times: Sequence[float], chance: np.random.Generator) -> np.ndarray:
    return np.asarray(chance.choice(np.asarray(times), size=(_RATIO_RESAMPLES, len(times))).mean(axis=1))


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


# -- what a control takes away of the loss under another one -----------------------------------------------------------

EQUAL = 1.05
"""Iterations alone of which the longer one takes at most so many times as long as the shorter one are equally long."""

_PAIR_RESAMPLES = 2000
_Pair = tuple[Layout, Layout]


class Pairs(Enum):
    """Which pairs are compared. Two layouts fit if they communicate for at most the whole time together."""

    ALL = "pairs"
    FIT_EQUAL = "pairs that fit, of equally long iterations"
    FIT = "other pairs that fit"
    UNFIT = "pairs that do not fit"


@dataclass(frozen=True)
class Relief:
    """A comparison of two controls over pairs of layouts.

    Attributes:
        control, base: the names of the policies.
        which: the pairs.
        pairs: their number.
        loss, base_loss: the mean share of its throughput that a layout loses beside the other one.
        taken_away: 1 - loss / base_loss; None without loss.
        low, high: of its 95 % bootstrap interval over pairs; None without loss.
    """

    control: str
    base: str
    which: Pairs
    pairs: int
    loss: float
    base_loss: float
    taken_away: float | None
    low: float | None
    high: float | None


def reliefs(tables: Sequence[MeasuredTable], published: SensitivityTable, seed: int = 0) -> list[Relief]:
    """Each control against the first one, over each kind of pairs that there are."""
    if not tables:
        return []
    base, *others = tables
    base_losses = _losses(base.cells)
    kinds = {pair: _kind_of(pair, base, published) for pair in base_losses}
    found = []
    for table in others:
        losses = _losses(table.cells)
        for which in Pairs:
            both = [
                (losses[pair], base_losses[pair])
                for pair, kind in kinds.items()
                if pair in losses and which in (Pairs.ALL, kind)
            ]
            if both:
                found.append(_relief(table.control, base.control, which, np.array(both), seed))
    return found


def communicating_share(layout: Layout, table: MeasuredTable, published: SensitivityTable) -> float:
    """The share of its iteration alone in which a layout does not compute."""
    return 1 - computing_s(layout, published) / table.isolated_s[layout]


def _relief(control: str, base: str, which: Pairs, losses: np.ndarray, seed: int) -> Relief:
    """The comparison over pairs, of which each has a row: its loss under the control, and under the base."""
    loss, base_loss = losses.mean(axis=0).tolist()
    if not base_loss:
        return Relief(control, base, which, len(losses), loss, base_loss, None, None, None)
    chance = np.random.default_rng(seed)
    drawn = losses[chance.integers(len(losses), size=(_PAIR_RESAMPLES, len(losses)))].mean(axis=1)
    shares = 1 - drawn[:, 0] / np.where(drawn[:, 1], drawn[:, 1], np.nan)
    low, high = np.nanquantile(shares, (0.025, 0.975)).tolist()
    return Relief(control, base, which, len(losses), loss, base_loss, 1 - loss / base_loss, low, high)


def _kind_of(pair: _Pair, base: MeasuredTable, published: SensitivityTable) -> Pairs:
    if sum(communicating_share(each, base, published) for each in pair) > 1:
        return Pairs.UNFIT
    times = [base.isolated_s[each] for each in pair]
    return Pairs.FIT_EQUAL if max(times) <= EQUAL * min(times) else Pairs.FIT


def _losses(cells: Iterable[PairRatio]) -> dict[_Pair, float]:
    """The mean loss of the two layouts of each pair."""
    found: dict[_Pair, list[float]] = {}
    for cell in cells:
        pair = min(cell.layout, cell.other), max(cell.layout, cell.other)
        found.setdefault(pair, []).append(1 - cell.ratio)
    return {pair: fmean(losses) for pair, losses in found.items()}
