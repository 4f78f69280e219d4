"""The schedulers of mean response time, compiled: how all nodes are divided among the jobs that are present.

Simulations call `divide` at every arrival and end of a job; on a live cluster `catalogue.ResponseScheduler` calls it
for the jobs that it is shown. Between equals the order of arrival decides. Source, where no other is named: Lin,
Paolieri, Chou and Golubchik (`widths`).
"""

from __future__ import annotations

import math

import numpy as np

from placement.model.compiled import compiled, compiled_with_arrays
from placement.policies.schedulers.response.tables import (
    EQUAL,
    FILL_MARGINAL,
    FILL_SHORTEST,
    ORDERED,
    POWER,
    PRICED,
    Present,
    ResponseRule,
    ResponseTables,
)

NEGLIGIBLE_GAIN = 1e-9
"""Marginal filling stops below this gain."""

LOWEST_PRICE, HIGHEST_PRICE = 1e-9, 1e6
ROUNDS = 60
"""Halvings of the price's interval, on a logarithmic scale: to the precision of a float."""

_INFINITE = float("inf")


@compiled_with_arrays
def divide(rule: ResponseRule, tables: ResponseTables, present: Present, count: int, nodes: int) -> None:
    """Divide all nodes among the first `count` jobs present: sets `present.nodes`.

    Raises:
        ValueError: there is no such kind of rule.
    """
    for position in range(count):
        present.nodes[position] = 0
        present.priority[position] = present.left[position]
    if rule.gamma != 0.0:
        for position in range(count):
            if present.left[position] > 0.0:
                share_left = present.left[position] / present.size[position]
                present.priority[position] = present.left[position] * (1.0 / share_left) ** rule.gamma
    if rule.kind == EQUAL:
        equal_shares(tables, present, count, nodes)
    elif rule.kind == ORDERED:
        left = in_order(tables, present, count, nodes)
        if rule.filling == FILL_SHORTEST:
            fill_shortest(tables, present, count, left)
        elif rule.filling == FILL_MARGINAL:
            fill_marginal(tables, present, count, left)
    elif rule.kind == POWER:
        power_shares(tables, present, count, nodes)
    elif rule.kind == PRICED:
        priced_shares(tables, present, count, nodes)
    else:
        raise ValueError(
            "kind of a response rule: expected one of placement.policies.schedulers.response.tables"
        )


@compiled
def shortest_queue(lengths: np.ndarray) -> int:
    """JSQ-Chunk: the chunk that a job joins, the one with the fewest jobs, the first of equals.

    Source: Berg, Dorsman and Harchol-Balter, "Towards optimality in parallel scheduling", 2017, as the HELL paper uses
    it. Each chunk serves its jobs in the order of their arrival, without preemption.
    """
    best = 0
    for chunk in range(1, len(lengths)):
        if lengths[chunk] < lengths[best]:
            best = chunk
    return best


# -- KNEE, HELL, SRPT and Waterfill: jobs in an order, each up to its width -------------------------------------------


@compiled_with_arrays
def in_order(tables: ResponseTables, present: Present, count: int, nodes: int) -> int:
    """Algorithms 1 and 2: again and again, the job of the least cost gets its width; returns the nodes left."""
    left, candidates = nodes, count
    for position in range(count):
        present.order[position] = position
    while left > 0 and candidates > 0:
        best, least = -1, _INFINITE
        kept = 0
        for place in range(candidates):
            position = present.order[place]
            model = present.model[position]
            if tables.width[model, left] == 0:  # it will fit no more: widths only shrink with what is left
                continue
            present.order[kept] = position
            cost = present.priority[position] * tables.cost[model, left]
            if best < 0 or cost < least:
                best, least = kept, cost
            kept += 1
        if best < 0:
            break
        chosen = present.order[best]
        width = tables.width[present.model[chosen], left]
        present.nodes[chosen] = width
        left -= width
        for place in range(best + 1, kept):
            present.order[place - 1] = present.order[place]
        candidates = kept - 1
    return left


@compiled_with_arrays
def fill_shortest(tables: ResponseTables, present: Present, count: int, nodes: int) -> None:
    """Equation 5: the fewest nodes with which some job is nearer its end than all are now, to that job."""
    left = nodes
    while left > 0:
        nearest = _INFINITE
        for position in range(count):
            nearest = min(nearest, time_left(tables, present, position, present.nodes[position]))
        found = -1
        for more in range(1, left + 1):
            for position in range(count):
                time = time_left(tables, present, position, present.nodes[position] + more)
                if time < nearest:
                    found, nearest = position, time
            if found >= 0:
                present.nodes[found] += more
                left -= more
                break
        if found < 0:
            return


@compiled_with_arrays
def time_left(tables: ResponseTables, present: Present, position: int, nodes: int) -> float:
    """S(w) of the job at a position; infinite without nodes."""
    if nodes >= tables.speed.shape[1]:
        return _INFINITE
    speed = tables.speed[present.model[position], nodes]
    return present.priority[position] / speed if speed > 0.0 else _INFINITE


@compiled_with_arrays
def fill_marginal(tables: ResponseTables, present: Present, count: int, nodes: int) -> None:
    """One node at a time to the running job whose time shrinks by the largest share."""
    for _ in range(nodes):
        best, largest = -1, NEGLIGIBLE_GAIN
        for position in range(count):
            width = present.nodes[position]
            if width == 0 or width + 1 >= tables.speed.shape[1]:
                continue
            model = present.model[position]
            gain = 1.0 - tables.speed[model, width] / tables.speed[model, width + 1]
            if gain > largest or (best < 0 and gain >= largest):
                best, largest = position, gain
        if best < 0:
            return
        present.nodes[best] += 1


# -- EQUI --------------------------------------------------------------------------------------------------------------


@compiled_with_arrays
def equal_shares(tables: ResponseTables, present: Present, count: int, nodes: int) -> None:
    """The fewest nodes that will do to each job, then one at a time to the job with the fewest that still gains."""
    left = nodes
    for position in range(count):
        fewest = tables.fewest[present.model[position]]
        if fewest <= left:
            present.nodes[position] = fewest
            left -= fewest
    for _ in range(left):
        best = -1
        for position in range(count):
            width = present.nodes[position]
            if 0 < width < tables.peak[present.model[position]] and (best < 0 or width < present.nodes[best]):
                best = position
        if best < 0:
            return
        present.nodes[best] += 1


# -- heSRPT ------------------------------------------------------------------------------------------------------------
# The optimal division among jobs of known sizes that are all sped up by w^p and present from the start. Source: Berg,
# Vesilo and Harchol-Balter, "heSRPT: Parallel scheduling to minimize mean slowdown", Performance Evaluation 144, 2020,
# for mean flow time. Of m jobs in descending order of their size, the k-th gets the share (k/m)^c - ((k-1)/m)^c with
# c = 1 / (1 - p). It is a yardstick here: speeds are no powers (p is the mean of those that fit), and jobs keep
# arriving.


@compiled_with_arrays
def power_shares(tables: ResponseTables, present: Present, count: int, nodes: int) -> None:
    """Shares by rank in descending order of the time left on the fewest nodes; fractions to the largest ones.

    A job that would get fewer nodes than it can run on waits.
    """
    power = 0.0
    for position in range(count):
        model = present.model[position]
        power += tables.power[model]
        present.expected[position] = present.left[position] / tables.speed[model, tables.fewest[model]]
        place = position
        while place > 0 and present.expected[present.order[place - 1]] < present.expected[position]:
            present.order[place] = present.order[place - 1]
            place -= 1
        present.order[place] = position
    exponent = 1.0 / (1.0 - power / count) if count > 0 else 1.0
    left = nodes
    for place in range(count):
        exact = nodes * (((place + 1) / count) ** exponent - (place / count) ** exponent)
        position = present.order[place]
        present.nodes[position] = int(exact)
        present.worth[position] = exact - int(exact)
        left -= int(exact)
    for _ in range(min(left, count)):
        best = -1
        for place in range(count):
            position = present.order[place]
            if best < 0 or present.worth[position] > present.worth[best]:
                best = position
        present.nodes[best] += 1
        present.worth[best] = -1.0
    for position in range(count):
        model = present.model[position]
        share = min(present.nodes[position], tables.most[model])
        present.nodes[position] = share if tables.speed[model, share] > 0.0 else 0


# -- node-price --------------------------------------------------------------------------------------------------------
# Every node has a price at which exactly all are wanted; long jobs expect it to fall.
#
# Suppose a node cost a price u per unit of time, and a job in the system 1. A job would choose the width with the least
# cost (1 + u w) / s(w) of a unit of work; that cost is v, the worth of a unit of its work. A division of nodes is best
# if it maximises the sum of v s(w) over all jobs, so that the last node of each adds the same, v s'(w) = u. At a price
# that never changed, v would not depend on the work left. But a crowd passes: when short jobs have left, nodes are
# cheaper. So a job with r work left, where the mean of those present is r', reckons with the price u r' / (r' + r). In
# a crowd the work of long jobs is thus worth less, and short jobs come first; with few jobs, or jobs that are alike,
# shares are proportionally fair or equal. There is no parameter to set, and the load need not be known.
#
# This is the Lagrangian relaxation of a restless bandit (Whittle, 1988), with a price that relaxes to 0; it is not in
# the HELL paper.


@compiled_with_arrays
def priced_shares(tables: ResponseTables, present: Present, count: int, nodes: int) -> None:
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
def expect(tables: ResponseTables, present: Present, count: int) -> None:
    """The share of the present price with which each job reckons."""
    total = 0.0
    for position in range(count):
        model = present.model[position]
        present.expected[position] = present.left[position] / tables.speed[model, tables.fewest[model]]
        total += present.expected[position]
    mean = total / max(count, 1)
    for position in range(count):
        work = present.expected[position]
        present.expected[position] = mean / (mean + work) if work > 0.0 else 1.0


@compiled_with_arrays
def want(tables: ResponseTables, present: Present, count: int, price: float) -> int:
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
def give_step(tables: ResponseTables, present: Present, count: int, left: int) -> int:
    """The step, of any size that fits, that adds most per node; returns its size, 0 if there is none."""
    best, largest, found = -1, 0.0, 0
    for position in range(count):
        model, width = present.model[position], present.nodes[position]
        base = tables.speed[model, tables.fewest[model]]
        for more in range(1, min(left, tables.speed.shape[1] - 1 - width) + 1):
            gained = tables.speed[model, width + more] - tables.speed[model, width]
            gain = present.worth[position] * gained / base / more
            if gain > largest:
                best, largest, found = position, gain, more
    if best >= 0:
        present.nodes[best] += found
    return found
