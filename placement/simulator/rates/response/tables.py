"""The tables of a compiled run: what a scheduler knows of the speeds of each model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from mltcp.core.errors import MltcpError
from mltcp.core.quantities import NS_PER_S
from placement.model.throughput import ThroughputModel, Workload
from placement.policies.schedulers.response.catalogue import ResponseScheduler
from placement.policies.schedulers.response.equal_shares import EqualShares
from placement.policies.schedulers.response.filling import Filling
from placement.policies.schedulers.response.he_srpt import HeSrpt, fitted_power
from placement.policies.schedulers.response.hull import hull_of
from placement.policies.schedulers.response.node_price import NodePrice
from placement.policies.schedulers.response.ordered_shares import OrderedShares
from placement.policies.schedulers.response.width_rules import WidthRule
from placement.policies.schedulers.response.widths import peak_width
from placement.simulator.rates.response.state import (
    EQUAL,
    FILL_MARGINAL,
    FILL_NONE,
    FILL_SHORTEST,
    ORDERED,
    POWER,
    PRICED,
    Rule,
    Tables,
)

_FILLINGS = {
    Filling.NONE: FILL_NONE,
    Filling.SHORTEST: FILL_SHORTEST,
    Filling.MARGINAL: FILL_MARGINAL,
}


@lru_cache(maxsize=256)
def speeds_of_model(model: ThroughputModel, workload: Workload, nodes: int) -> tuple[float, ...]:
    """X(w) in mini-batches a second on w = 0 to `nodes` nodes of one GPU."""
    rates = [
        model.samples_per_ns(workload, tuple((node, 1) for node in range(width)))
        for width in range(1, nodes + 1)
    ]
    return (0.0, *(float(rate / workload.batch) * NS_PER_S for rate in rates))


def rule_of(scheduler: ResponseScheduler) -> Rule:
    """The scheduler as the loop knows it.

    Raises:
        MltcpError: it has no compiled rule.
    """
    if isinstance(scheduler, OrderedShares):
        return Rule(ORDERED, _FILLINGS[scheduler.filling], float(scheduler.gamma))
    if isinstance(scheduler, EqualShares):
        return Rule(EQUAL, FILL_NONE, 0.0)
    if isinstance(scheduler, HeSrpt):
        return Rule(POWER, FILL_NONE, 0.0)
    if isinstance(scheduler, NodePrice):
        return Rule(PRICED, FILL_NONE, 0.0)
    raise MltcpError(
        f"{type(scheduler).__name__}: expected a scheduler with a compiled rule, see division.divide"
    )


@lru_cache(maxsize=256)
def tables_of(speeds: tuple[tuple[float, ...], ...], width_rule: WidthRule | None) -> Tables:
    """The tables for models of these speeds, under a rule of widths if the scheduler has one."""
    nodes = len(speeds[0]) - 1
    width = np.zeros((len(speeds), nodes + 1), np.int64)
    cost = np.zeros((len(speeds), nodes + 1))
    if width_rule is not None:
        for row, of_model in enumerate(speeds):
            for budget in range(1, nodes + 1):
                offer = width_rule.offer(of_model, budget)
                width[row, budget], cost[row, budget] = offer.width, offer.cost
    hulls = [hull_of(of_model) for of_model in speeds]
    return Tables(
        speed=np.array(speeds),
        width=width,
        cost=cost,
        peak=np.array([peak_width(of_model) for of_model in speeds], np.int64),
        power=np.array([fitted_power(of_model) for of_model in speeds]),
        steps=np.array([len(hull.slopes) for hull in hulls], np.int64),
        vertex=_padded([hull.widths for hull in hulls], nodes, np.int64),
        speedup=_padded([hull.speedups for hull in hulls], nodes, np.float64),
        slope=_padded([hull.slopes for hull in hulls], nodes, np.float64),
        bound=_padded([hull.bounds for hull in hulls], nodes, np.float64),
    )


def _padded(rows: Sequence[Sequence[float]], nodes: int, kind: type) -> np.ndarray:
    """The rows as an array of `nodes` + 1 columns, with zeros where a row is shorter."""
    table: np.ndarray = np.zeros((len(rows), nodes + 1), kind)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    return table
