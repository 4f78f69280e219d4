"""How much of what jobs lose beside each other a congestion control takes away, against another one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean

import numpy as np

from bench.sensitivity.result import Cell, MeasuredTable
from bench.sensitivity.traffic import computing_s
from placement.model.throughput_table import Layout, SensitivityTable

EQUAL = 1.05
"""Iterations alone of which the longer one takes at most so many times as long as the shorter one are equally long."""

_RESAMPLES = 2000
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
    drawn = losses[chance.integers(len(losses), size=(_RESAMPLES, len(losses)))].mean(axis=1)
    shares = 1 - drawn[:, 0] / np.where(drawn[:, 1], drawn[:, 1], np.nan)
    low, high = np.nanquantile(shares, (0.025, 0.975)).tolist()
    return Relief(control, base, which, len(losses), loss, base_loss, 1 - loss / base_loss, low, high)


def _kind_of(pair: _Pair, base: MeasuredTable, published: SensitivityTable) -> Pairs:
    if sum(communicating_share(each, base, published) for each in pair) > 1:
        return Pairs.UNFIT
    times = [base.isolated_s[each] for each in pair]
    return Pairs.FIT_EQUAL if max(times) <= EQUAL * min(times) else Pairs.FIT


def _losses(cells: Iterable[Cell]) -> dict[_Pair, float]:
    """The mean loss of the two layouts of each pair."""
    found: dict[_Pair, list[float]] = {}
    for cell in cells:
        pair = min(cell.layout, cell.other), max(cell.layout, cell.other)
        found.setdefault(pair, []).append(1 - cell.ratio)
    return {pair: fmean(losses) for pair, losses in found.items()}
