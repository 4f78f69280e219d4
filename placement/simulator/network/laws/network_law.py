"""A congestion control in a network, and F on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from mltcp.control.aggressiveness import Aggressiveness, Shape


class Control(IntEnum):
    """A congestion control."""

    RENO = 0
    CUBIC = 1
    DCTCP = 2
    DCQCN = 3
    DELAY = 4
    CONSTANT = 5


@dataclass(frozen=True)
class NetworkLaw:
    """A congestion control, with F on its increase, its decrease or both.

    Attributes:
        control: the base.
        aggressiveness: F; its shape ONE is the base itself.
        increase: whether F scales the increase; `decrease`: whether it divides the decrease.
        constants: of the control, by name, where they differ from the published ones.
    """

    control: Control
    aggressiveness: Aggressiveness = field(default_factory=lambda: Aggressiveness(Shape.ONE))
    increase: bool = True
    decrease: bool = False
    constants: tuple[tuple[str, float], ...] = ()
