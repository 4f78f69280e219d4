"""heSRPT compiled; see `placement.policies.schedulers.response.he_srpt`."""

from __future__ import annotations

from placement.model.compiled import compiled_with_arrays
from placement.simulator.rates.response.state import Present, Tables


@compiled_with_arrays
def power_shares(tables: Tables, present: Present, count: int, nodes: int) -> None:
    """Shares by rank in descending order of the time left on one node; fractions to the largest ones."""
    power = 0.0
    for position in range(count):
        model = present.model[position]
        power += tables.power[model]
        present.expected[position] = present.left[position] / tables.speed[model, 1]
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
