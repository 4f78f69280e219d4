"""The names of the rules in rounds, and what each stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType

from mltcp.core.errors import UsageError
from mltcp.core.policy_names import Vocabulary

ORDERED, RANDOM, GREEDY, REOPT, GREEDY_LOOK, REOPT_LOOK = range(6)
"""The families of rules."""

FIFO, LAS, TIRESIAS, SRTF, SRSF = range(5)
"""The orders of the ordered rules."""

FIRST, PACKED, TABLE, MOST_NODES = range(4)
"""The placements of the ordered rules."""

NO_STOPS, STOPS_BY_RATIO, ALL_COMPETE = range(3)
"""Which running jobs are stopped before a decision: none, those with a small ratio, or all."""

STOP_RATIO = 0.6
"""The largest ratio at which the stop rule stops a job, unless its name says another: that of the public code."""

_ORDERS = {"fifo": FIFO, "las": LAS, "tiresias": TIRESIAS, "srtf": SRTF, "srsf": SRSF}
_PLACEMENTS = {"first": FIRST, "packed": PACKED, "table": TABLE, "most-nodes": MOST_NODES}
_STOPS = {"none": NO_STOPS, "ratio": STOPS_BY_RATIO, "full": ALL_COMPETE}


@dataclass(frozen=True)
class RoundsRule:
    """A rule.

    Attributes:
        family: one of `ORDERED`, `RANDOM`, `GREEDY`, `REOPT`, `GREEDY_LOOK`, `REOPT_LOOK`.
        order: of an ordered rule.
        placement: of an ordered rule.
        stops: which running jobs compete anew.
        head: whether a job that does not fit blocks those behind it.
        fallback: whether random actions that fit nobody are followed by the public greedy step.
        stop_ratio: the largest ratio at which a job is stopped by its ratio.
        hysteresis: h, the share of U by which a change has to raise it.
        choices: the most placements that a look-ahead tries.
        seed: of random actions.
    """

    family: int
    order: int = FIFO
    placement: int = FIRST
    stops: int = NO_STOPS
    head: bool = False
    fallback: bool = False
    stop_ratio: float = STOP_RATIO
    hysteresis: float = 0.0
    choices: int = 1
    seed: int = 0

    @property
    def tries_sets(self) -> bool:
        """Whether it tries all sets of nodes."""
        return self.family != ORDERED or self.placement == TABLE


def _ordered() -> dict[str, RoundsRule]:
    """All ordered rules: ORDER[-head]-PLACEMENT-STOPS."""
    return {
        f"{order}{head}-{placement}-{stops}": RoundsRule(
            ORDERED, _ORDERS[order], _PLACEMENTS[placement], _STOPS[stops], bool(head)
        )
        for order, head, placement, stops in product(_ORDERS, ("", "-head"), _PLACEMENTS, _STOPS)
    }


ORDERED_RULES: Mapping[str, RoundsRule] = MappingProxyType(_ordered())
"""The ordered rules by name."""

RULES: Mapping[str, RoundsRule] = MappingProxyType(
    {
        "random-none": RoundsRule(RANDOM),
        "random-ratio": RoundsRule(RANDOM, stops=STOPS_BY_RATIO),
        "random-fallback-none": RoundsRule(RANDOM, fallback=True),
        "random-fallback-ratio": RoundsRule(RANDOM, stops=STOPS_BY_RATIO, fallback=True),
        "greedy": RoundsRule(GREEDY),
        "greedy-ratio": RoundsRule(GREEDY, stops=STOPS_BY_RATIO),
        "reopt": RoundsRule(REOPT),
        "greedy-look": RoundsRule(GREEDY_LOOK, choices=8),
        "reopt-look": RoundsRule(REOPT_LOOK, choices=6),
    }
)
"""The others. A number after `random-...` is the seed, after `...-look` the choices, after `reopt` 100 h.

After any other `...-ratio` it is the largest ratio at which a job is stopped, in percent.
"""

_NUMBERED = {
    "random-none": "[-S]",
    "random-ratio": "[-S]",
    "random-fallback-none": "[-S]",
    "random-fallback-ratio": "[-S]",
    **{
        name: "[-R]"
        for name, rule in {**ORDERED_RULES, "greedy-ratio": RULES["greedy-ratio"]}.items()
        if rule.stops == STOPS_BY_RATIO
    },
    "reopt": "[-H]",
    "greedy-look": "[-C]",
    "reopt-look": "[-C]",
}

SHOWN = (
    f"ORDER[-head]-PLACEMENT-STOPS ({', '.join(_ORDERS)}; {', '.join(_PLACEMENTS)}; none, ratio[-R], full)",
    *(name + _NUMBERED.get(name, "") for name in RULES),
)
"""The names as help texts show them."""

NAMES = Vocabulary("scheduler", tuple(name + _NUMBERED.get(name, "") for name in (*ORDERED_RULES, *RULES)))
"""All names."""


def find_rule(name: str, seed: int = 0) -> RoundsRule | None:
    """The rule of this name; None if there is none.

    Args:
        name: on the command line.
        seed: of random actions, unless the name has one.

    Raises:
        UsageError: its number is out of range.
    """
    part = NAMES.find(name)
    if part is None:
        return None
    rule, number = {**ORDERED_RULES, **RULES}[part.base], part.number
    if rule.family == RANDOM:
        return replace(rule, seed=number or seed)
    if number is None:
        return rule
    if rule.stops == STOPS_BY_RATIO:
        if number > 100:
            raise UsageError(f"{name}: expected a ratio of 1 to 100 percent, got {number}")
        return replace(rule, stop_ratio=number / 100)
    if rule.family == REOPT:
        return RoundsRule(REOPT, hysteresis=number / 100)
    return RoundsRule(rule.family, choices=number)
