"""Throughput by tables: isolated throughputs of jobs on layouts, and ratios of shared to isolated throughput of pairs.

A layout is (model, GPUs, nodes), with the same number of GPUs on each of its nodes. A job that shares nodes with others
has its isolated throughput times a ratio r: the least of its ratios beside these others, however many nodes it shares
with them, but not below 0.35; the inverse of r is the contention sensitivity of the paper (Ryu and Eo, ICPADS 2023,
Equation 1). That the least of several ratios counts is the guess of the paper's public code. Their product is another
combination here, and the sum of slowdowns the third: beside neighbours that stretch its iteration by a share each, the
job's is stretched by all of them, 1/r = 1 + the sum of (1/r_i - 1), which is exact for jobs that divide a link equally.
In the lab the sum is within 4 % of real jobs (docs/reproduction-rl-measured.md).

The tables that are shipped come from the paper's public code (gajagajago/deepshare, Apache-2.0), which measured six
models on 4 nodes of 8 GPUs with 10 Gb/s Ethernet, as comma-separated values.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, TypeVar

from mltcp.core.atomic_files import make_folder, write_atomically
from mltcp.core.errors import UsageError, shown
from mltcp.core.quantities import NS_PER_S, S_PER_HOUR
from placement.model.table_reader import Field, fault, read_rows
from placement.model.throughput import GpusByNode, Neighbour, Workload, gpus_of

_MOST_GPUS = 10**6

_Key = TypeVar("_Key", bound=Hashable)

FLOOR = 0.35
"""No ratio of a job is below this."""

Combination = Literal["minimum", "product", "sum"]
"""How the ratios of a job beside several neighbours combine."""

COMBINATIONS: tuple[Combination, ...] = ("minimum", "product", "sum")

PUBLISHED = Path(__file__).parent / "tables"
"""The folder of the tables that are shipped."""

ISOLATED = "isolated_throughput.csv"
RATIOS = "shared_throughput_ratio_long.csv"
SAMPLES = "total_samples.csv"
PAIR_COLUMNS = tuple(f"{side}_{name}" for side in ("target", "other") for name in ("model", "gpus", "nodes"))
RATIO_COLUMN = "shared_over_isolated_ratio"


class Layout(NamedTuple):
    """A model on so many GPUs, the same number on each of its nodes."""

    model: str
    gpus: int
    nodes: int

    def __str__(self) -> str:
        return f"{self.model} on {self.gpus} GPUs of {self.nodes} nodes"


@dataclass(frozen=True, eq=False)
class SensitivityTable:
    """Isolated throughputs and ratios of shared to isolated throughput.

    Attributes:
        name: for messages.
        samples_per_s: T, the isolated throughput of each layout.
        ratios: of each layout beside each other, and beside itself.
        samples: the size of a job, of each model and number of GPUs; where it is not given, an hour's worth at the mean
            of the throughputs on two and on four nodes.

    Raises:
        UsageError: a throughput is not positive, a ratio is missing, or it is not more than 0 and at most 1.
    """

    name: str
    samples_per_s: Mapping[Layout, float]
    ratios: Mapping[tuple[Layout, Layout], float]
    samples: Mapping[tuple[str, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.samples_per_s:
            raise UsageError(f"{self.name}: layouts: expected one or more, got none")
        for layout, rate in self.samples_per_s.items():
            if not (rate > 0 and math.isfinite(rate)):
                raise UsageError(f"{self.name}: samples_per_s of {layout}: expected more than 0, got {rate}")
        for layout in self.samples_per_s:
            for other in self.samples_per_s:
                ratio = self.ratios.get((layout, other))
                if ratio is None:
                    raise UsageError(
                        f"{self.name}: ratio of {layout} beside {other}: expected one, got a hole in the table"
                    )
                if not 0 < ratio <= 1:
                    raise UsageError(
                        f"{self.name}: ratio of {layout} beside {other}: expected more than 0 up to 1, got {ratio}"
                    )

    @property
    def models(self) -> tuple[str, ...]:
        """The models, in the order of the table."""
        return tuple(dict.fromkeys(layout.model for layout in self.samples_per_s))

    def gpus(self, model: str) -> tuple[int, ...]:
        """The numbers of GPUs of a model that have rows, ascending."""
        return tuple(sorted({layout.gpus for layout in self.samples_per_s if layout.model == model}))

    def nodes(self, model: str, gpus: int) -> tuple[int, ...]:
        """The numbers of nodes that have rows, ascending.

        Raises:
            UsageError: the model, or the model on so many GPUs, has no row.
        """
        found = tuple(
            sorted(each.nodes for each in self.samples_per_s if each.model == model and each.gpus == gpus)
        )
        if not found:
            known = ", ".join(self.models)
            if model in self.models:
                known = f"{model} on {', '.join(map(str, self.gpus(model)))} GPUs"
            raise UsageError(f"{self.name}: job: expected {known}, got {shown(model)} on {gpus} GPUs")
        return found

    def throughput(self, layout: Layout) -> float:
        """T of a layout; between two numbers of nodes that have rows, linear in the logarithm of nodes.

        Raises:
            UsageError: it has no row and lies between no two that have.
        """
        known = self.samples_per_s.get(layout)
        if known is not None:
            return known
        nodes = self.nodes(layout.model, layout.gpus)
        if not nodes[0] < layout.nodes < nodes[-1]:
            raise UsageError(
                f"{self.name}: {layout.model} on {layout.gpus} GPUs: nodes: expected {nodes[0]} to {nodes[-1]}, "
                f"got {layout.nodes}"
            )
        below = max(each for each in nodes if each < layout.nodes)
        above = min(each for each in nodes if each > layout.nodes)
        share = math.log2(layout.nodes / below) / math.log2(above / below)
        low, high = (self.samples_per_s[layout._replace(nodes=each)] for each in (below, above))
        return low + share * (high - low)

    def ratio(self, layout: Layout, other: Layout) -> float:
        """The ratio of a layout beside another; layouts without rows count as those with the nearest number of nodes.

        Raises:
            UsageError: a model, or a model on so many GPUs, has no row.
        """
        known = self.ratios.get((layout, other))
        return self.ratios[self._nearest(layout), self._nearest(other)] if known is None else known

    def job_samples(self, model: str, gpus: int) -> float:
        """S, the size of a job: an hour's worth.

        Raises:
            UsageError: the model on so many GPUs has no row.
        """
        known = self.samples.get((model, gpus))
        if known is not None:
            return known
        rates = [
            self.samples_per_s[Layout(model, gpus, each)] for each in self.nodes(model, gpus) if each <= 4
        ]
        rates = rates or [self.samples_per_s[Layout(model, gpus, self.nodes(model, gpus)[0])]]
        return S_PER_HOUR * math.fsum(rates) / len(rates)

    def _nearest(self, layout: Layout) -> Layout:
        nodes = self.nodes(layout.model, layout.gpus)
        nearest = min(nodes, key=lambda each: (abs(math.log2(each / layout.nodes)), each))
        return layout._replace(nodes=nearest)


@dataclass(frozen=True)
class TableModel:
    """The throughput model of a table; see the module.

    Attributes:
        table: of throughputs and ratios.
        combination: of the ratios beside several neighbours.

    Raises:
        UsageError: an unknown combination.
    """

    table: SensitivityTable
    combination: Combination = "minimum"

    def __post_init__(self) -> None:
        if self.combination not in COMBINATIONS:
            raise UsageError(
                f"combination: expected {', '.join(COMBINATIONS)}, got {shown(self.combination)}"
            )

    uses_neighbours: ClassVar[bool] = True

    def samples_per_ns(
        self, workload: Workload, allocation: GpusByNode, neighbours: Sequence[Neighbour] = ()
    ) -> Fraction:
        """See `ThroughputModel`; the workload's name is that of a model of the table.

        Raises:
            UsageError: the table has no row for a layout.
        """
        rate = self.table.throughput(layout_of(workload, allocation))
        return Fraction(rate) * Fraction(self.ratio(workload, allocation, neighbours)) / NS_PER_S

    def ratio(
        self, workload: Workload, allocation: GpusByNode, neighbours: Sequence[Neighbour] = ()
    ) -> float:
        """r, the share of its isolated throughput that a job has beside these neighbours; 1 if none shares a node."""
        layout, nodes = layout_of(workload, allocation), {node for node, _ in allocation}
        return self.combined(
            self.table.ratio(layout, layout_of(other.workload, other.allocation))
            for other in neighbours
            if nodes.intersection(node for node, _ in other.allocation)
        )

    def combined(self, ratios: Iterable[float]) -> float:
        """The ratio of a job that has these beside its neighbours."""
        match self.combination:
            case "minimum":
                raw = min(ratios, default=1.0)
            case "product":
                raw = math.prod(ratios, start=1.0)
            case "sum":
                # Rounded once, so that no neighbour can raise it, not even by its last bit.
                raw = 1 / (1 + math.fsum(1 / each - 1 for each in ratios))
        return max(raw, FLOOR)


def layout_of(workload: Workload, allocation: GpusByNode) -> Layout:
    """The layout of a job on these GPUs."""
    return Layout(workload.name, gpus_of(allocation), len(allocation))


def workload_of(model: str, samples: float) -> Workload:
    """The workload of a job of a table, of which nothing but its model and its samples is known.

    Raises:
        UsageError: less than 1 sample.
    """
    return Workload(model, 1, 1, 1, Fraction(samples), 1)


def read_table(folder: Path) -> SensitivityTable:
    """Read a table from the files of a folder: throughputs, ratios and, if it is there, sizes of jobs.

    The files are `isolated_throughput.csv` (model, gpus, nodes, samples_per_s), `shared_throughput_ratio_long.csv`
    (target_model, target_gpus, target_nodes, other_model, other_gpus, other_nodes, shared_over_isolated_ratio) and
    `total_samples.csv` (model, gpus, total_samples); other columns are ignored.

    Raises:
        UsageError: a file cannot be read, a line is wrong, a row is there twice or missing.
    """
    rates: dict[Layout, float] = {}
    for row in read_rows(folder / ISOLATED, ("model", "gpus", "nodes", "samples_per_s")):
        _add(rates, row, _layout(row, ""), row["samples_per_s"].real())
    ratios: dict[tuple[Layout, Layout], float] = {}
    for row in read_rows(folder / RATIOS, (*PAIR_COLUMNS, RATIO_COLUMN)):
        pair = _layout(row, "target_"), _layout(row, "other_")
        for side, layout in zip(("target", "other"), pair, strict=True):
            if layout not in rates:
                raise row[f"{side}_model"].error(f"no layout {layout}", f"one of {ISOLATED}")
        if not 0 < (ratio := row[RATIO_COLUMN].real()) <= 1:
            raise row[RATIO_COLUMN].error(f"{ratio:g} is out of range", "more than 0 up to 1")
        _add(ratios, row, pair, ratio)
    samples: dict[tuple[str, int], float] = {}
    if (folder / SAMPLES).exists():
        for row in read_rows(folder / SAMPLES, ("model", "gpus", "total_samples")):
            kind = row["model"].word(), row["gpus"].whole(1, _MOST_GPUS)
            _add(samples, row, kind, row["total_samples"].real())
    name = "published" if folder == PUBLISHED else str(folder)
    return SensitivityTable(name, rates, ratios, samples)


@cache
def published_table() -> SensitivityTable:
    """The table that is shipped: six models on 2, 4 and 8 GPUs, 36 layouts."""
    return read_table(PUBLISHED)


def _layout(row: Mapping[str, Field], prefix: str) -> Layout:
    gpus, nodes = (row[f"{prefix}{name}"].whole(1, _MOST_GPUS) for name in ("gpus", "nodes"))
    return Layout(row[f"{prefix}model"].word(), gpus, nodes)


def _add(found: dict[_Key, float], row: Mapping[str, Field], key: _Key, value: float) -> None:
    """Add a value under a key that is new."""
    if key in found:
        raise fault(next(iter(row.values())).place, "row", f"{key} is there twice", "each once")
    found[key] = value


# -- iteration times ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableTimes:
    """The iteration times of a model of a table; an iteration is one sample a worker.

    Attributes:
        model: the throughput model of the table.
        model_name: of the model in the table.
    """

    model: TableModel
    model_name: str

    def iteration_ns(self, workers: int, one_node: bool) -> float:
        """See `IterationTimes`; a rack is a node here, and other jobs are on the fewest nodes that have a row.

        Raises:
            UsageError: the table has no row, as it has none for one node.
        """
        table = self.model.table
        nodes = 1 if one_node else table.nodes(self.model_name, workers)[0]
        return workers * NS_PER_S / table.throughput(Layout(self.model_name, workers, nodes))


# -- writing -----------------------------------------------------------------------------------------------------------


def write_table(table: SensitivityTable, folder: Path) -> list[Path]:
    """Write the files of a table; returns them.

    Raises:
        UsageError: the folder cannot be written to.
    """
    files: dict[str, tuple[Sequence[str], Iterable[Sequence[object]]]] = {
        ISOLATED: (
            ("model", "gpus", "nodes", "gpus_per_node", "samples_per_s"),
            [
                (*layout, layout.gpus // layout.nodes, f"{rate:.17g}")
                for layout, rate in table.samples_per_s.items()
            ],
        ),
        RATIOS: (
            (*PAIR_COLUMNS, RATIO_COLUMN),
            [(*target, *other, f"{ratio:.17g}") for (target, other), ratio in table.ratios.items()],
        ),
    }
    if table.samples:
        files[SAMPLES] = (
            ("model", "gpus", "total_samples"),
            [(*kind, f"{samples:.17g}") for kind, samples in table.samples.items()],
        )
    make_folder(folder)
    for name, (columns, rows) in files.items():
        write_atomically(folder / name, _csv_text(columns, rows))
    return [folder / name for name in files]


def _csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue().encode()
