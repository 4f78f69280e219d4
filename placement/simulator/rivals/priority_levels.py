"""Compression of an order of jobs to the few priorities of a switch, as in Crux (Cao et al., SIGCOMM 2024, 4.3).

Jobs that share a link are joined by an edge, which costs its weight if both get the same priority. An assignment keeps
the order if no job has a higher priority than one before it with which it shares a link. Given a topological order of
the jobs, the levels are consecutive parts of it, and the best parts are found by dynamic programming; the best of
several topological orders is taken, the given one first, the others drawn.
"""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

ORDERS = 10
"""Topological orders that are tried."""


def priority_levels(weights: NDArray[np.float64], levels: int, seed: int = 0) -> NDArray[np.int64]:
    """The level of each job, from 0, the highest, to `levels` - 1.

    Args:
        weights: symmetric, for jobs in falling priority: what is lost if two of them have one level; 0 if they share
            no link.
        levels: 1 or more.
        seed: of the orders that are drawn.
    """
    draw = random.Random(seed)
    best, least = np.zeros(len(weights), np.int64), np.inf
    for number in range(ORDERS if len(weights) > 1 else 0):
        order = _topological(weights > 0, draw) if number else np.arange(len(weights))
        lost, parts = _cut(weights[np.ix_(order, order)], levels)
        if lost < least * (1 - 1e-12):
            least = lost
            best[order] = parts
    return best


def _topological(shares: NDArray[np.bool_], draw: random.Random) -> NDArray[np.int64]:
    """A drawn order in which each job comes after those before it with which it shares a link."""
    before = np.triu(shares, 1)
    waits = before.sum(axis=0)
    ready = np.flatnonzero(waits == 0).tolist()
    order = []
    while ready:
        job = ready.pop(draw.randrange(len(ready)))
        order.append(job)
        waits[before[job]] -= 1
        ready += np.flatnonzero(before[job] & (waits == 0)).tolist()
    return np.array(order, np.int64)


def _cut(weights: NDArray[np.float64], levels: int) -> tuple[float, list[int]]:
    """The least weight within consecutive parts, and the part of each job."""
    count = len(weights)
    sums = np.zeros((count + 1, count + 1))
    sums[1:, 1:] = weights.cumsum(axis=0).cumsum(axis=1)
    ends = np.diag(sums)
    within = (
        ends[None, :] - 2 * sums + ends[:, None]
    ) / 2  # of the jobs from the row's to before the column's
    within[np.tril_indices(count + 1, -1)] = np.inf
    least = np.full(count + 1, np.inf)
    least[0] = 0.0
    begins = []
    for _ in range(levels):
        total = least[:, None] + within
        begins.append(count - total[::-1].argmin(axis=0))  # of equal ones the latest: low levels stay empty
        least = total.min(axis=0)
    parts, end = [0] * count, count
    for level in range(levels - 1, -1, -1):
        begin = int(begins[level][end])
        parts[begin:end] = [level] * (end - begin)
        end = begin
    return float(least[count]), parts
