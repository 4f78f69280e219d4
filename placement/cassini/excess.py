"""The mean excess over a capacity of demands that are independent of each other, compiled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placement.model.compiled import compiled_with_arrays

_LEVELS = 4096


def expected_excess(demands: Sequence[np.ndarray], capacity_bps: int) -> float:
    """The mean excess of the sum of demands over the capacity, bit/s, with each at an independent random angle.

    Args:
        demands: each in bit/s at all of its angles.
    """
    if not demands:
        return 0.0
    ends = np.cumsum([len(each) for each in demands])
    return float(_mean_excess(np.concatenate(demands).astype(np.float64), ends, float(capacity_bps), _LEVELS))


@compiled_with_arrays
def _mean_excess(demands: np.ndarray, ends: np.ndarray, capacity: float, most: int) -> float:
    values, shares = np.zeros(1), np.ones(1)
    begin = 0
    for end in ends:
        own, weights = _levels(demands[begin:end])
        begin = end
        values, shares = _added(values, shares, own, weights)
        if len(values) > most:
            values, shares = _binned(values, shares, most)
    mean = 0.0
    for at in range(len(values)):
        mean += max(0.0, values[at] - capacity) * shares[at]
    return mean


@compiled_with_arrays
def _levels(demand: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The values of a demand, ascending, each with its share of the angles."""
    ordered = np.sort(demand)
    values, shares = np.empty(len(ordered)), np.zeros(len(ordered))
    found = 0
    for at in range(len(ordered)):
        if at == 0 or ordered[at] != ordered[at - 1]:
            values[found] = ordered[at]
            found += 1
        shares[found - 1] += 1 / len(ordered)
    return values[:found], shares[:found]


@compiled_with_arrays
def _added(
    values: np.ndarray, shares: np.ndarray, own: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The distribution of the sum of two demands, both ascending: one shifted copy for each level, merged."""
    sums, products = np.empty(len(values) * len(own)), np.empty(len(values) * len(own))
    next_of = np.zeros(len(own), np.int64)
    found = 0
    while True:
        least = np.inf
        for level in range(len(own)):
            if next_of[level] < len(values):
                least = min(least, values[next_of[level]] + own[level])
        if least == np.inf:
            break
        share = 0.0
        for level in range(len(own)):
            at = next_of[level]
            if at < len(values) and values[at] + own[level] == least:
                share += shares[at] * weights[level]
                next_of[level] = at + 1
        sums[found], products[found] = least, share
        found += 1
    return sums[:found], products[:found]


@compiled_with_arrays
def _binned(values: np.ndarray, shares: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Reduce to at most `most` values: neighbours are replaced by their mean."""
    width = (values[-1] - values[0]) / bins
    means, weights = np.zeros(bins), np.zeros(bins)
    for at in range(len(values)):
        to = min(int((values[at] - values[0]) / width), bins - 1)
        means[to] += values[at] * shares[at]
        weights[to] += shares[at]
    kept = weights > 0
    return means[kept] / weights[kept], weights[kept]
