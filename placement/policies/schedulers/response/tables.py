"""What the compiled rules of mean response time read: their settings, tables of the speeds, and the jobs present.

Nodes are what is divided: of one GPU in the paper and here, so that a job's GPUs on a real cluster count as nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from placement.policies.schedulers.response.widths import WidthRule, fewest_width, peak_width

ORDERED, EQUAL, POWER, PRICED = range(4)
"""How nodes are divided: to jobs in order of a cost, equally, by heSRPT, or by the price of a node."""

FILL_NONE, FILL_SHORTEST, FILL_MARGINAL = range(3)
"""Who gets nodes that are left: nobody, by Equation 5 the job nearest its end, or the job that gains the largest share
of its time left (not in the paper)."""

_LOWEST_POWER, _HIGHEST_POWER = 0.01, 0.99


class ResponseRule(NamedTuple):
    """A rule of division.

    Attributes:
        kind: `ORDERED`, `EQUAL`, `POWER` or `PRICED`.
        filling: of ordered rules.
        gamma: the exponent of early termination of ordered rules (Section VI-A): the work left counts
            (J / J_left)^gamma-fold, so that new jobs come before those of which much is done; 0 for none.
    """

    kind: int
    filling: int = FILL_NONE
    gamma: float = 0.0


class ResponseTables(NamedTuple):
    """The models of jobs as a rule knows them; rows are models.

    Attributes:
        speed: X(w), in units of work a second; columns are numbers of nodes from 0. It is 0 on fewer nodes than a job
            can run on, and no higher beyond the most that it can use.
        width: of `ORDERED`: the nodes that a job gets when so many are left; 0: none.
        cost: of `ORDERED`: times its work, that by which jobs are ordered, when so many nodes are left.
        fewest: the fewest nodes on which a job runs.
        most: the most nodes that it can use.
        peak: the fewest nodes with the highest speed.
        power: the exponent that fits X(w) / X(fewest).
        steps: the number of steps of the concave hull of X(w) / X(fewest); see `Hull`.
        vertex: the nodes at each vertex of the hull, from 0.
        speedup: X(w) / X(fewest) there.
        slope: of each step.
        bound: of each step.
    """

    speed: np.ndarray
    width: np.ndarray
    cost: np.ndarray
    fewest: np.ndarray
    most: np.ndarray
    peak: np.ndarray
    power: np.ndarray
    steps: np.ndarray
    vertex: np.ndarray
    speedup: np.ndarray
    slope: np.ndarray
    bound: np.ndarray


class Present(NamedTuple):
    """The jobs that are present, in the order of their arrival; only the first `count` entries count.

    Attributes:
        number: of the job in the trace.
        model: its model, a row of the tables.
        nodes: that it has.
        order: positions; scratch space.
        size: its work.
        left: what is left of it.
        priority: its work left as the rule sees it (early termination).
        expected: of `PRICED`, the share of the present price with which it reckons; scratch space.
        worth: of `PRICED`, the worth of a unit of its work; scratch space.
    """

    number: np.ndarray
    model: np.ndarray
    nodes: np.ndarray
    order: np.ndarray
    size: np.ndarray
    left: np.ndarray
    priority: np.ndarray
    expected: np.ndarray
    worth: np.ndarray

    @classmethod
    def of(cls, most: int) -> Present:
        """Room for so many jobs at a time, all zero."""
        return cls(*np.zeros((4, most), np.int64), *np.zeros((5, most)))


class JobSpeeds(NamedTuple):
    """The speeds of the jobs of one model.

    Attributes:
        speeds: X(w) from w = 0 to all nodes; see `ResponseTables.speed`.
        most: the most nodes that a job can use.
    """

    speeds: tuple[float, ...]
    most: int


@lru_cache(maxsize=256)
def tables_of(models: tuple[JobSpeeds, ...], width_rule: WidthRule | None) -> ResponseTables:
    """The tables for models of these speeds, under a rule of widths if the scheduler has one."""
    rows = [_row_of(model, width_rule) for model in models]
    return ResponseTables(*(np.array(column) for column in zip(*rows, strict=True)))


@lru_cache(maxsize=4096)
def _row_of(model: JobSpeeds, width_rule: WidthRule | None) -> ResponseTables:
    """The row of each table for a model, with zeros behind the hull's last vertex."""
    speeds, columns = model.speeds, len(model.speeds)
    width, cost = np.zeros(columns, np.int64), np.zeros(columns)
    if width_rule is not None:
        for budget in range(1, columns):
            width[budget], cost[budget] = width_rule.offer(speeds, budget)
    hull = hull_of(speeds)
    return ResponseTables(
        speed=np.array(speeds),
        width=np.minimum(width, model.most),
        cost=cost,
        fewest=np.array(fewest_width(speeds), np.int64),
        most=np.array(model.most, np.int64),
        peak=np.array(peak_width(speeds), np.int64),
        power=np.array(fitted_power(speeds)),
        steps=np.array(len(hull.slopes), np.int64),
        vertex=np.array([*hull.widths, *[0] * (columns - len(hull.widths))], np.int64),
        speedup=_padded(hull.speedups, columns),
        slope=_padded(hull.slopes, columns),
        bound=_padded(hull.bounds, columns),
    )


def _padded(values: Sequence[float], columns: int) -> np.ndarray:
    return np.array([*values, *[0.0] * (columns - len(values))])


# -- heSRPT ------------------------------------------------------------------------------------------------------------


def fitted_power(speeds: Sequence[float]) -> float:
    """The p of the least-squares fit of ln(X(w) / X(1)) = p ln w, over all w; within 0.01 to 0.99."""
    first = fewest_width(speeds)
    points = [
        (math.log(width / first), math.log(speeds[width] / speeds[first]))
        for width in range(first + 1, len(speeds))
    ]
    if not points:
        return 0.5
    slope = sum(x * y for x, y in points) / sum(x * x for x, _ in points)
    return min(max(slope, _LOWEST_POWER), _HIGHEST_POWER)


# -- the concave hull, of node-price -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hull:
    """The concave hull of the speed-up s(w) = X(w) / X(fewest nodes).

    Attributes:
        widths: the vertices, numbers of nodes in ascending order; the first is 0.
        speedups: s at the vertices; 0 at the first.
        slopes: the speed-up gained per node from each vertex to the next, descending; one fewer than vertices.
        bounds: the price of a node up to which the next vertex is cheaper than this one, descending; infinite from 0.
            At a price u per node and time, a unit of work costs (1 + u w) / s(w).
    """

    widths: tuple[int, ...]
    speedups: tuple[float, ...]
    slopes: tuple[float, ...]
    bounds: tuple[float, ...]


def hull_of(speeds: tuple[float, ...]) -> Hull:
    """The hull of these speeds, which begin with that on no nodes, 0."""
    first = speeds[fewest_width(speeds)]
    s = [speed / first for speed in speeds]
    widths = [0]
    while (found := _next(s, widths[-1])) is not None:
        widths.append(found)
    pairs = list(pairwise(widths))
    return Hull(
        tuple(widths),
        tuple(s[width] for width in widths),
        tuple((s[b] - s[a]) / (b - a) for a, b in pairs),
        tuple(_bound(a, s[a], b, s[b]) for a, b in pairs),
    )


def _next(s: Sequence[float], width: int) -> int | None:
    """The vertex after this one: where the gain per node is largest, the fewest nodes of equals; None at the top."""
    wider = range(width + 1, len(s))
    best = max(wider, key=lambda other: ((s[other] - s[width]) / (other - width), -other), default=width)
    return best if s[best] > s[width] else None


def _bound(a: int, s_a: float, b: int, s_b: float) -> float:
    saved = b * s_a - a * s_b
    return (s_b - s_a) / saved if saved > 0 else float("inf")
