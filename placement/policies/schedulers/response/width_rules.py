"""The rules by which schedulers that serve jobs in order choose how many nodes a job gets, and who is served first.

A rule gives, for the speeds of a job and the nodes that are left, a width and a cost per unit of work; the job with the
least cost times work left is served first. `widths` defines speeds and has the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mltcp.core.errors import UsageError
from placement.policies.schedulers.response.widths import (
    ALPHA,
    fewest_width,
    hell_cost,
    hell_width,
    knee_width,
)

ALPHA_LOW, ALPHA_HIGH = 0.01, 0.05
"""The range of alpha of moldable KNEE, which the paper does not give; these reproduce its Figure 13."""

DEFAULT_LOAD = 0.5
"""The load that moldable KNEE assumes where none is known."""


@dataclass(frozen=True)
class Offer:
    """The width that a job would get.

    Attributes:
        width: the number of nodes; 0: none now, because the job waits for more.
        cost: its place in the order, times the work left.
    """

    width: int
    cost: float


NOTHING = Offer(0, 0.0)


class WidthRule(Protocol):
    """Chooses a job's number of nodes."""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        ...

    def offer(self, speeds: Sequence[float], budget: int) -> Offer:
        """The offer to a job when `budget` nodes are left, of the `len(speeds) - 1` of the cluster."""
        ...


@dataclass(frozen=True)
class Knee:
    """KNEE (Algorithm 1): up to the knee of the speeds; least S(w) first.

    Attributes:
        alpha: the least share of the time left that a node has to save.

    Raises:
        UsageError: alpha is out of range.
    """

    alpha: float = ALPHA

    def __post_init__(self) -> None:
        check_alpha(self.alpha)

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return "knee"

    def offer(self, speeds: Sequence[float], budget: int) -> Offer:
        """See `WidthRule`."""
        return _timed(speeds, knee_width(speeds, budget, self.alpha))


@dataclass(frozen=True)
class Hell:
    """HELL (Algorithm 2): the best product of time and inefficiency; least S(w) / E(w) first."""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return "hell"

    def offer(self, speeds: Sequence[float], budget: int) -> Offer:
        """See `WidthRule`."""
        width = hell_width(speeds, budget)
        return Offer(width, hell_cost(speeds, width)) if width else NOTHING


@dataclass(frozen=True)
class MoldableKnee:
    """Moldable KNEE: the knee of the whole cluster or nothing, with an alpha that follows the load.

    The width depends on the speeds alone, so that it never changes.

    Attributes:
        load: x, lambda E[S(1)] / W.
        low: alpha_L.
        high: alpha_H; alpha(x) = alpha_L + x (alpha_H - alpha_L).

    Raises:
        UsageError: a value is out of range.
    """

    load: float = DEFAULT_LOAD
    low: float = ALPHA_LOW
    high: float = ALPHA_HIGH

    def __post_init__(self) -> None:
        check_alpha(self.low)
        check_alpha(self.high)
        check_alpha(self.alpha)

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return "moldable-knee"

    @property
    def alpha(self) -> float:
        """alpha(x)."""
        return self.low + self.load * (self.high - self.low)

    def offer(self, speeds: Sequence[float], budget: int) -> Offer:
        """See `WidthRule`."""
        width = knee_width(speeds, len(speeds) - 1, self.alpha)
        return _timed(speeds, width) if width <= budget else NOTHING


@dataclass(frozen=True)
class MoldableHell:
    """Moldable HELL: HELL's width of the whole cluster or nothing; it never changes."""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return "moldable-hell"

    def offer(self, speeds: Sequence[float], budget: int) -> Offer:
        """See `WidthRule`."""
        width = hell_width(speeds, len(speeds) - 1)
        return Offer(width, hell_cost(speeds, width)) if 0 < width <= budget else NOTHING


@dataclass(frozen=True)
class AllNodes:
    """SRPT: all nodes to the job with the least S(W)."""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return "srpt"

    def offer(self, speeds: Sequence[float], budget: int) -> Offer:
        """See `WidthRule`."""
        return _timed(speeds, budget)


@dataclass(frozen=True)
class OneNode:
    """Waterfill without its filling: one node, or the fewest that will do, to each job in the order of arrival."""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return "waterfill"

    def offer(self, speeds: Sequence[float], budget: int) -> Offer:
        """See `WidthRule`."""
        width = fewest_width(speeds)
        return Offer(width, 0.0) if width <= budget else NOTHING


def check_alpha(alpha: float) -> None:
    """Refuse a threshold that is no share.

    Raises:
        UsageError: it is not from 0 to 1.
    """
    if not 0 <= alpha <= 1:
        raise UsageError(f"alpha: expected 0 to 1, got {alpha:g}")


def _timed(speeds: Sequence[float], width: int) -> Offer:
    """The offer whose cost is the time of a unit of work."""
    return Offer(width, 1 / speeds[width]) if width and speeds[width] > 0 else NOTHING
