"""The division of nodes among the jobs that are present, compiled; see `placement.policies.schedulers.response`."""

from __future__ import annotations

from placement.model.compiled import compiled_with_arrays
from placement.simulator.rates.response.powers import power_shares
from placement.simulator.rates.response.prices import priced_shares
from placement.simulator.rates.response.state import (
    EQUAL,
    FILL_MARGINAL,
    FILL_SHORTEST,
    NEGLIGIBLE_GAIN,
    ORDERED,
    POWER,
    PRICED,
    Present,
    Rule,
    Tables,
)

_INFINITE = float("inf")


@compiled_with_arrays
def divide(rule: Rule, tables: Tables, present: Present, count: int, nodes: int) -> None:
    """Divide all nodes among the first `count` jobs present.

    Raises:
        ValueError: there is no such kind of rule.
    """
    for position in range(count):
        present.nodes[position] = 0
        present.priority[position] = present.left[position]
    if rule.gamma != 0.0:
        for position in range(count):
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
        raise ValueError("kind of a response rule: expected one of placement.simulator.rates.response.state")


@compiled_with_arrays
def in_order(tables: Tables, present: Present, count: int, nodes: int) -> int:
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
def fill_shortest(tables: Tables, present: Present, count: int, nodes: int) -> None:
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
def time_left(tables: Tables, present: Present, position: int, nodes: int) -> float:
    """S(w) of the job at a position; infinite without nodes."""
    if nodes >= tables.speed.shape[1]:
        return _INFINITE
    speed = tables.speed[present.model[position], nodes]
    return present.priority[position] / speed if speed > 0.0 else _INFINITE


@compiled_with_arrays
def fill_marginal(tables: Tables, present: Present, count: int, nodes: int) -> None:
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


@compiled_with_arrays
def equal_shares(tables: Tables, present: Present, count: int, nodes: int) -> None:
    """EQUI: one node at a time to the job with the fewest that can still gain from more."""
    if count >= nodes:
        for position in range(nodes):
            present.nodes[position] = 1
        return
    for _ in range(nodes):
        best = -1
        for position in range(count):
            width = present.nodes[position]
            if width < tables.peak[present.model[position]] and (best < 0 or width < present.nodes[best]):
                best = position
        if best < 0:
            return
        present.nodes[best] += 1
