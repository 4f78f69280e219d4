"""Kinds, cells, ratios and sets of nodes as the arrays that a `World` holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np

from mltcp.core.errors import UsageError
from placement.policies.schedulers.contention.profiles import Kind, PlainProfile, TableProfile, all_kinds
from placement.policies.schedulers.contention.world import CELL, KIND, MOST_NODES_IN_ALL

_MOST_SETS = 20_000


class Tables(NamedTuple):
    """The arrays; see `World`."""

    kinds: np.ndarray
    cells: np.ndarray
    ratios: np.ndarray
    sets: np.ndarray


@lru_cache(maxsize=32)
def tables_of(kinds: tuple[Kind, ...], sizes: tuple[int, ...], with_sets: bool) -> Tables:
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
    return Tables(of_kinds, of_cells, _ratios(names), sets)


def kinds_on(sizes: tuple[int, ...], found: Sequence[Kind]) -> tuple[Kind, ...]:
    """These kinds, each once; of a table all that fit on the nodes, so that every decision numbers them alike."""
    models = {kind.profile.model: None for kind in found if isinstance(kind.profile, TableProfile)}
    of_tables = [
        kind for model in models for kind in all_kinds(model) if kind in found or node_counts(kind, sizes)
    ]
    return tuple(dict.fromkeys([*of_tables, *found]))


def node_counts(kind: Kind, sizes: Sequence[int]) -> tuple[int, ...]:
    """The numbers of nodes on which a kind may run on a cluster whose nodes have so many GPUs, ascending."""
    return tuple(
        nodes
        for nodes in kind.profile.node_counts(kind.gpus, len(sizes))
        if kind.gpus % nodes == 0 and sum(size >= kind.gpus // nodes for size in sizes) >= nodes
    )


def _some_node_counts(kind: Kind, sizes: Sequence[int]) -> tuple[int, ...]:
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


def _ratios(names: Sequence[tuple[Kind, int]]) -> np.ndarray:
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
