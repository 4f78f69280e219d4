"""The state of a compiled run: the jobs of the trace, those that are present, and the tables of a policy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

ORDERED, EQUAL, POWER, PRICED = range(4)
"""How nodes are divided: to jobs in order of a cost, equally, by heSRPT, or by the price of a node."""

FILL_NONE, FILL_SHORTEST, FILL_MARGINAL = range(3)
"""Who gets nodes that are left: nobody, by Equation 5 the job nearest its end, or the job that gains most."""

NEGLIGIBLE_GAIN = 1e-9
"""Marginal filling stops below this gain."""

DONE = 1e-9
"""A job with at most this share of its size left is done."""


class Rule(NamedTuple):
    """A policy.

    Attributes:
        kind: `ORDERED`, `EQUAL`, `POWER` or `PRICED`.
        filling: of ordered policies.
        gamma: the exponent of early termination of ordered policies; 0 for none.
    """

    kind: int
    filling: int
    gamma: float


class Tables(NamedTuple):
    """The models as a policy knows them; rows are models.

    Attributes:
        speed: X(w), in units of work a second; columns are numbers of nodes from 0.
        width: of `ORDERED`: the nodes that a job gets when so many are left; 0: none.
        cost: of `ORDERED`: times its work, that by which jobs are ordered, when so many nodes are left.
        peak: the fewest nodes with the highest speed.
        power: the exponent that fits X(w) / X(1).
        steps: the number of steps of the concave hull of X(w) / X(1); see `response.hull`.
        vertex: the nodes at each vertex of the hull, from 0.
        speedup: X(w) / X(1) there.
        slope: of each step.
        bound: of each step.
    """

    speed: np.ndarray
    width: np.ndarray
    cost: np.ndarray
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
        model: its model.
        size: its work.
        left: what is left of it.
        nodes: that it has.
        priority: its work left as the policy sees it (early termination).
        expected: of `PRICED`, the share of the present price with which it reckons; scratch space.
        worth: of `PRICED`, the worth of a unit of its work; scratch space.
        order: positions; scratch space.
    """

    number: np.ndarray
    model: np.ndarray
    size: np.ndarray
    left: np.ndarray
    nodes: np.ndarray
    priority: np.ndarray
    expected: np.ndarray
    worth: np.ndarray
    order: np.ndarray


class Jobs(NamedTuple):
    """The jobs of a trace, and what became of them.

    Attributes:
        arrival: in seconds.
        model: row of the tables.
        size: in units of work.
        end: in seconds; written by the run.
        part: when `share` of the job was done, in seconds; written by the run.
        share: q, from 0 to 1.
    """

    arrival: np.ndarray
    model: np.ndarray
    size: np.ndarray
    end: np.ndarray
    part: np.ndarray
    share: float
