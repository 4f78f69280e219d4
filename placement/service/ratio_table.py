"""The table of contention ratios in use: the given one, with the ratios that were measured on running jobs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from placement.model.throughput_table import FLOOR, Combination, Layout, SensitivityTable, TableModel
from placement.service.state.store import Store

WEIGHT = 0.2
"""The least weight of a new observation in the exponential mean."""

PRIOR = 3
"""The number of observations that the ratio of the given table counts for."""


@dataclass(frozen=True)
class RatioCell:
    """A ratio of shared to isolated throughput.

    Attributes:
        ratio: the mean, more than 0 and at most 1.
        observations: that it contains, beside the one of the given table.
    """

    ratio: float
    observations: int = 0

    def with_observation(self, ratio: float) -> RatioCell:
        """The cell after one more observation."""
        weight = max(WEIGHT, 1 / (PRIOR + self.observations + 1))
        return RatioCell(self.ratio + weight * (ratio - self.ratio), self.observations + 1)


LEAST, MOST = 0.1, 1.25
"""A ratio outside is refused: the job stood still, or the throughput in the table is not that of the job."""

Pair = tuple[Layout, Layout]


@dataclass
class RatioCounts:
    """The ratios that were measured since the service was started.

    Attributes:
        observed: taken into the table; those that were clamped are among them.
        clamped: outside `FLOOR` to 1, by so little that they were taken as the nearer bound.
        refused: outside `LEAST` to `MOST`.
        ambiguous: measured beside several jobs, so that they belong to no pair.
        last_refused: the last refusal, for people.
    """

    observed: int = 0
    clamped: int = 0
    refused: int = 0
    ambiguous: int = 0
    last_refused: str = ""


@dataclass
class RatioTable:
    """The given table and the measured ratios.

    Attributes:
        base: the given table.
        cells: the measured ratios.
        keep: called with each cell that has changed.
        combination: of the ratios beside several neighbours.
        counts: of measurements.
    """

    base: SensitivityTable
    cells: dict[Pair, RatioCell]
    keep: Callable[[Pair, RatioCell], None]
    combination: Combination = "minimum"
    counts: RatioCounts = field(default_factory=RatioCounts)
    _model: TableModel | None = None

    @property
    def model(self) -> TableModel:
        """The throughput model of the table in use; the same object until a ratio changes."""
        if self._model is None:
            self._model = TableModel(self.table(), self.combination)
        return self._model

    def table(self) -> SensitivityTable:
        """The table in use."""
        measured = {pair: cell.ratio for pair, cell in self.cells.items() if pair in self.base.ratios}
        return replace(self.base, ratios={**self.base.ratios, **measured})

    def note(self, pair: Pair, ratio: float) -> str:
        """Take a measured ratio into the table; returns why it was clamped or refused, or an empty text.

        A pair of which the table has no cell counts as refused.
        """
        name = f"{pair[0]} beside {pair[1]}: ratio {ratio:.3f}"
        if pair not in self.base.ratios or not (LEAST <= ratio <= MOST and math.isfinite(ratio)):
            why = f"{name}: refused, expected {LEAST} to {MOST} of a pair of the table"
            self.counts.refused += 1
            self.counts.last_refused = why
            return why
        taken = min(max(ratio, FLOOR), 1.0)
        cell = self.cells.get(pair, RatioCell(self.base.ratios[pair])).with_observation(taken)
        self.cells[pair], self._model = cell, None
        self.keep(pair, cell)
        self.counts.observed += 1
        self.counts.clamped += taken != ratio
        return f"{name}: clamped to {taken:g}" if taken != ratio else ""


def save_ratio(store: Store, digest: str, pair: tuple[Layout, Layout], cell: RatioCell) -> None:
    """Insert or replace a measured ratio, of the table with this digest."""
    values = (digest, *pair[0], *pair[1], cell.ratio, cell.observations)
    store.put("INSERT OR REPLACE INTO ratios VALUES (?,?,?,?,?,?,?,?,?)", values)


def saved_ratios(store: Store, digest: str) -> dict[tuple[Layout, Layout], RatioCell]:
    """The measured ratios of the table with this digest."""
    rows = store.rows(
        "SELECT target_model, target_gpus, target_nodes, other_model, other_gpus, other_nodes, ratio, observations"
        " FROM ratios WHERE digest=?",
        (digest,),
    )
    return {(Layout(*row[:3]), Layout(*row[3:6])): RatioCell(*row[6:]) for row in rows}
