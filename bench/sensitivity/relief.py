"""How much of what jobs lose beside each other a congestion control takes away, against another one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean

import numpy as np

from bench.sensitivity.result import Cell, MeasuredTable
from bench.sensitivity.traffic import computing_s
from placement.model.throughput.table import Layout, SensitivityTable

EQUAL = 1.05
"""Iterations alone of which the longer one takes at most so many times as long as the shorter one are equally long."""

_RESAMPLES = 2000


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
    return [
        relief
        for table in tables[1:]
        for which in Pairs
        if (relief := _relief(tables[0], table, published, which, seed)) is not None
    ]


def communicating_share(layout: Layout, table: MeasuredTable, published: SensitivityTable) -> float:
    """The share of its iteration alone in which a layout does not compute."""
    return 1 - computing_s(layout, published) / table.isolated_s[layout]


def _relief(
    base: MeasuredTable, table: MeasuredTable, published: SensitivityTable, which: Pairs, seed: int
) -> Relief | None:
    ours, theirs = _losses(table.cells), _losses(base.cells)
    pairs = [
        pair
        for pair in theirs
        if pair in ours and which in (Pairs.ALL, _kind_of(_both(pair), base, published))
    ]
    if not pairs:
        return None
    losses = np.array([(fmean(ours[pair]), fmean(theirs[pair])) for pair in pairs])
    loss, base_loss = losses.mean(axis=0).tolist()
    taken_away, low, high = _taken_away(losses, seed) if base_loss else (None, None, None)
    return Relief(table.control, base.control, which, len(pairs), loss, base_loss, taken_away, low, high)


def _taken_away(losses: np.ndarray, seed: int) -> tuple[float, float, float]:
    """The share of the second column's mean by which that of the first is less, and its interval."""
    chance = np.random.default_rng(seed)
    drawn = losses[chance.integers(len(losses), size=(_RESAMPLES, len(losses)))].mean(axis=1)
    shares = 1 - drawn[:, 0] / np.where(drawn[:, 1], drawn[:, 1], np.nan)
    low, high = np.nanquantile(shares, (0.025, 0.975)).tolist()
    mean, base_mean = losses.mean(axis=0).tolist()
    return 1 - mean / base_mean, low, high


def _kind_of(both: tuple[Layout, ...], base: MeasuredTable, published: SensitivityTable) -> Pairs:
    if sum(communicating_share(each, base, published) for each in both) > 1:
        return Pairs.UNFIT
    times = [base.isolated_s[each] for each in both]
    return Pairs.FIT_EQUAL if max(times) <= EQUAL * min(times) else Pairs.FIT


def _losses(cells: Iterable[Cell]) -> dict[frozenset[Layout], list[float]]:
    """What both layouts of each pair lose."""
    found: dict[frozenset[Layout], list[float]] = {}
    for cell in cells:
        found.setdefault(frozenset((cell.layout, cell.other)), []).append(1 - cell.ratio)
    return found


def _both(pair: frozenset[Layout]) -> tuple[Layout, ...]:
    return tuple(pair) * (2 if len(pair) == 1 else 1)
