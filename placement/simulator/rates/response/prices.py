"""Node-price compiled; see `placement.policies.schedulers.response.node_price`."""

from __future__ import annotations

import math

import numpy as np

from placement.model.compiled import compiled_with_arrays
from placement.policies.schedulers.response.node_price import HIGHEST_PRICE, LOWEST_PRICE, ROUNDS
from placement.simulator.rates.response.state import Present, Tables


@compiled_with_arrays
def priced_shares(tables: Tables, present: Present, count: int, nodes: int) -> None:
    """Find the price at which all nodes are wanted, and give what is left where it adds most."""
    expect(tables, present, count)
    low, high = LOWEST_PRICE, HIGHEST_PRICE
    for _ in range(ROUNDS):
        price = math.sqrt(low * high)
        if want(tables, present, count, price) > nodes:
            low = price
        else:
            high = price
    left = take_excess(present, count, nodes - want(tables, present, count, high))
    while left > 0:
        given = give_step(tables, present, count, left)
        if given == 0:
            return
        left -= given


@compiled_with_arrays
def expect(tables: Tables, present: Present, count: int) -> None:
    """The share of the present price with which each job reckons."""
    total = 0.0
    for position in range(count):
        present.expected[position] = present.left[position] / tables.speed[present.model[position], 1]
        total += present.expected[position]
    for position in range(count):
        mean = total / count
        present.expected[position] = mean / (mean + present.expected[position])


@compiled_with_arrays
def want(tables: Tables, present: Present, count: int, price: float) -> int:
    """Give all jobs the nodes that they want at this price, whether there are as many or not; returns how many."""
    total = 0
    for position in range(count):
        model = present.model[position]
        steps = tables.steps[model]
        reckoned = price * present.expected[position]
        vertex = leading(tables.bound[model], steps, reckoned)
        worth = (1.0 + reckoned * tables.vertex[model, vertex]) / tables.speedup[model, vertex]
        present.worth[position] = worth
        width = tables.vertex[model, leading(tables.slope[model], steps, price / worth)]
        present.nodes[position] = width
        total += width
    return total


@compiled_with_arrays
def take_excess(present: Present, count: int, left: int) -> int:
    """Take back what is wanted beyond all nodes, from the last jobs; returns how many nodes are left now."""
    position = count - 1
    while left < 0:
        left += present.nodes[position]
        present.nodes[position] = 0
        position -= 1
    return left


@compiled_with_arrays
def leading(values: np.ndarray, count: int, least: float) -> int:
    """How many of the first `count` values, which descend, are no less than `least`."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if values[middle] >= least:
            low = middle + 1
        else:
            high = middle
    return low


@compiled_with_arrays
def give_step(tables: Tables, present: Present, count: int, left: int) -> int:
    """The step, of any size that fits, that adds most per node; returns its size, 0 if there is none."""
    best, largest, found = -1, 0.0, 0
    for position in range(count):
        model, width = present.model[position], present.nodes[position]
        base = tables.speed[model, 1]
        for more in range(1, min(left, tables.speed.shape[1] - 1 - width) + 1):
            gained = tables.speed[model, width + more] - tables.speed[model, width]
            gain = present.worth[position] * gained / base / more
            if gain > largest:
                best, largest, found = position, gain, more
    if best >= 0:
        present.nodes[best] += found
    return found
