"""Speeds of jobs, and their kinds, cells, ratios and sets of nodes as the arrays that a `RoundsWorld` holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

from mltcp.core.errors import UsageError
from mltcp.core.quantities import NS_PER_S
from placement.model.throughput_table import Layout, TableModel
from placement.policies.schedulers.scheduler import IterationTimes, JobView

Records: TypeAlias = Any
"""An array of records; numpy's type annotations do not cover the fields of a record."""

MOST_NODES_IN_ALL = 62
"""A set of nodes is the bits of a 64-bit number."""

CELL = np.dtype(
    [
        ("rate", "f8"),  # T, samples/s
        ("speed", "f8"),  # T over that of the kind's fastest cell
        ("gpus", "i8"),  # on each node
        ("nodes", "i8"),  # how many
        ("first", "i8"),  # its sets of nodes, in `sets`
        ("sets", "i8"),
    ]
)

KIND = np.dtype(
    [
        ("gpus", "i8"),  # g
        ("best", "f8"),  # the largest T of its cells
        ("first", "i8"),  # its cells, by ascending number of nodes
        ("cells", "i8"),
    ]
)


# -- speeds of jobs by number of nodes, and beside others --------------------------------------------------------------


class Profile(Protocol):
    """The speeds of jobs of one model; hashable, and equal for jobs that behave alike."""

    def node_counts(self, gpus: int, most: int) -> tuple[int, ...]:
        """The numbers of nodes, up to `most`, on which a job of so many GPUs may run, ascending."""
        ...

    def samples_per_s(self, gpus: int, nodes: int) -> float:
        """T, the isolated throughput."""
        ...

    def ratio(self, gpus: int, nodes: int, other: Profile, other_gpus: int, other_nodes: int) -> float:
        """The ratio of shared to isolated throughput beside a job of another profile, or of the same."""
        ...


class JobKind(NamedTuple):
    """The properties of all jobs of a model with a number of GPUs."""

    profile: Profile
    gpus: int


@dataclass(frozen=True)
class TableProfile:
    """The speeds of a model of a table.

    Attributes:
        model: the throughput model of the table.
        name: of the model in the table.
    """

    model: TableModel
    name: str

    def node_counts(self, gpus: int, most: int) -> tuple[int, ...]:
        """See `Profile`: those that have rows, which one node has not."""
        return tuple(each for each in self.model.table.nodes(self.name, gpus) if each <= most)

    def samples_per_s(self, gpus: int, nodes: int) -> float:
        """See `Profile`."""
        return self.model.table.throughput(Layout(self.name, gpus, nodes))

    def ratio(self, gpus: int, nodes: int, other: Profile, other_gpus: int, other_nodes: int) -> float:
        """See `Profile`; 1 beside a job of which the table knows nothing."""
        if not isinstance(other, TableProfile):
            return 1.0
        layouts = Layout(self.name, gpus, nodes), Layout(other.name, other_gpus, other_nodes)
        return self.model.table.ratio(*layouts)


@dataclass(frozen=True)
class PlainProfile:
    """The speeds of a job of which only iteration times are known: neighbours make no difference.

    Attributes:
        times: its iteration times.
    """

    times: IterationTimes

    def node_counts(self, gpus: int, most: int) -> tuple[int, ...]:
        """See `Profile`: all with the same number of GPUs on each node."""
        return tuple(each for each in range(1, most + 1) if gpus % each == 0)

    def samples_per_s(self, gpus: int, nodes: int) -> float:
        """See `Profile`; a sample is an iteration of one worker."""
        return float(gpus * NS_PER_S / self.times.iteration_ns(gpus, nodes == 1))

    def ratio(self, gpus: int, nodes: int, other: Profile, other_gpus: int, other_nodes: int) -> float:
        """See `Profile`."""
        return 1.0


@runtime_checkable
class TableTimed(Protocol):
    """Iteration times that come from a table."""

    @property
    def model(self) -> TableModel:
        """The throughput model of the table."""
        ...

    @property
    def model_name(self) -> str:
        """Of the model in the table."""
        ...


def kind_of(job: JobView) -> JobKind:
    """The kind of a job; it gets as many GPUs as it asks for, neither fewer nor more."""
    if isinstance(job.times, TableTimed):
        return JobKind(TableProfile(job.times.model, job.times.model_name), job.gpus_wanted)
    return JobKind(PlainProfile(job.times), job.gpus_wanted)


def name_of(kind: JobKind) -> str:
    """The name of a kind of a table, "MODEL GPUS"."""
    assert isinstance(kind.profile, TableProfile), "a kind of a table"
    return f"{kind.profile.name} {kind.gpus}"


def all_kinds(model: TableModel) -> tuple[JobKind, ...]:
    """All kinds of a table: by model in the order of the table, then by GPUs."""
    table = model.table
    return tuple(
        JobKind(TableProfile(model, name), gpus) for name in table.models for gpus in table.gpus(name)
    )


# -- the arrays --------------------------------------------------------------------------------------------------------


_MOST_SETS = 20_000


class RoundsTables(NamedTuple):
    """The arrays; see `RoundsWorld`."""

    kinds: np.ndarray
    cells: np.ndarray
    ratios: np.ndarray
    sets: np.ndarray


@lru_cache(maxsize=32)
def tables_of(kinds: tuple[JobKind, ...], sizes: tuple[int, ...], with_sets: bool) -> RoundsTables:
    """The tables of these kinds on a cluster.

    Args:
        kinds: of jobs, each once.
        sizes: the GPUs of each node.
        with_sets: whether the rule tries all sets of nodes; if not, the sets are left out.

    Raises:
        UsageError: a kind fits on no number of nodes, or the cluster is too large.
    """
    if len(sizes) > MOST_NODES_IN_ALL:
        raise UsageError(f"nodes: expected up to {MOST_NODES_IN_ALL} for rules in rounds, got {len(sizes)}")
    layouts = [(kind, _some_node_counts(kind, sizes)) for kind in kinds]
    places = _all_sets({nodes for _, counts in layouts for nodes in counts}, len(sizes), with_sets)
    starts = dict(zip(places, np.cumsum([0, *map(len, places.values())]).tolist(), strict=False))
    of_kinds = np.zeros(len(kinds), KIND)
    of_cells = np.zeros(sum(len(counts) for _, counts in layouts), CELL)
    row, names = 0, []
    for number, (kind, counts) in enumerate(layouts):
        rates = [kind.profile.samples_per_s(kind.gpus, nodes) for nodes in counts]
        of_kinds[number] = kind.gpus, max(rates), row, len(counts)
        for nodes, rate in zip(counts, rates, strict=True):
            cell = rate, rate / max(rates), kind.gpus // nodes, nodes, starts[nodes], len(places[nodes])
            of_cells[row] = cell
            names.append((kind, nodes))
            row += 1
    sets = np.array([each for found in places.values() for each in found], np.int64)
    return RoundsTables(of_kinds, of_cells, _ratios(names), sets)


def kinds_on(sizes: tuple[int, ...], found: Sequence[JobKind]) -> tuple[JobKind, ...]:
    """These kinds, each once; of a table all that fit on the nodes, so that every decision numbers them alike."""
    models = {kind.profile.model: None for kind in found if isinstance(kind.profile, TableProfile)}
    of_tables = [
        kind for model in models for kind in all_kinds(model) if kind in found or node_counts(kind, sizes)
    ]
    return tuple(dict.fromkeys([*of_tables, *found]))


def node_counts(kind: JobKind, sizes: Sequence[int]) -> tuple[int, ...]:
    """The numbers of nodes on which a kind may run on a cluster whose nodes have so many GPUs, ascending."""
    return tuple(
        nodes
        for nodes in kind.profile.node_counts(kind.gpus, len(sizes))
        if kind.gpus % nodes == 0 and sum(size >= kind.gpus // nodes for size in sizes) >= nodes
    )


def _some_node_counts(kind: JobKind, sizes: Sequence[int]) -> tuple[int, ...]:
    counts = node_counts(kind, sizes)
    if not counts:
        raise UsageError(
            f"job: gpus: expected a number that divides evenly among some of {len(sizes)} nodes of "
            f"up to {max(sizes)} GPUs, on as many as it may use, got {kind.gpus}"
        )
    return counts


def _all_sets(counts: set[int], nodes: int, with_sets: bool) -> dict[int, list[int]]:
    """All sets of so many nodes as bits, in lexicographic order, for each number that is used."""
    if not with_sets:
        return {count: [] for count in sorted(counts)}
    if sum(math.comb(nodes, count) for count in counts) > _MOST_SETS:
        raise UsageError(
            f"nodes: expected a cluster with up to {_MOST_SETS} sets of nodes to try for this rule, got {nodes} nodes"
        )
    return {
        count: [sum(1 << node for node in chosen) for chosen in combinations(range(nodes), count)]
        for count in sorted(counts)
    }


def _ratios(names: Sequence[tuple[JobKind, int]]) -> np.ndarray:
    if all(isinstance(kind.profile, PlainProfile) for kind, _ in names):
        return np.ones((len(names), len(names)))
    return np.array(
        [
            [
                kind.profile.ratio(kind.gpus, nodes, other.profile, other.gpus, other_nodes)
                for other, other_nodes in names
            ]
            for kind, nodes in names
        ]
    )
