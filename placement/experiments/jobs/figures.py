"""The experiments of Figures 7 to 11 of the DRS paper: what each varies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from placement.experiments.jobs.runs import Cell, Drawn
from placement.simulator.rates.timed_job import RatesSettings


@dataclass(frozen=True)
class Sweep:
    """An experiment that varies one parameter.

    Attributes:
        figure: its number in the paper.
        title: of the picture.
        label: of the parameter, with its unit.
        field: of the parameter, in `DrsMix` or in `RatesSettings`.
        values: that it takes.
    """

    figure: int
    title: str
    label: str
    field: str
    values: tuple[float, ...]

    def cells(self, base: Drawn, settings: RatesSettings) -> tuple[Cell, ...]:
        """The cell of each value; all else is as given."""
        return tuple(self._cell(value, base, settings) for value in self.values)

    def _cell(self, value: float, base: Drawn, settings: RatesSettings) -> Cell:
        if self.field == "nodes":
            return Cell(base, replace(settings, nodes=int(value)))
        return Cell(replace(base, mix=replace(base.mix, **{self.field: value})), settings)


SWEEPS: Mapping[int, Sweep] = MappingProxyType(
    {
        sweep.figure: sweep
        for sweep in (
            Sweep(7, "Arrival rate", "jobs an hour", "rate", (2.0, 4.0, 6.0, 8.0, 10.0)),
            Sweep(8, "Cluster size", "nodes", "nodes", (2, 3, 4)),
            Sweep(9, "Urgent jobs", "share of urgent jobs", "urgent", (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)),
            Sweep(10, "Length of the trace", "hours in which jobs arrive", "hours", (12.0, 24.0, 48.0, 72.0)),
            Sweep(11, "Fat models", "share of fat models", "fat", (0.2, 1 / 3)),
        )
    }
)


def sweep_cells(sweeps: Sequence[Sweep], base: Drawn, settings: RatesSettings) -> list[Cell]:
    """The cells of all sweeps."""
    return [cell for sweep in sweeps for cell in sweep.cells(base, settings)]
