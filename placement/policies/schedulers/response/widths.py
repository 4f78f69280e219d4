"""The width of a job, its number of nodes, by KNEE, HELL, SRPT and Waterfill, from its speeds alone.

`speeds[w]` is the throughput X(w) on w nodes, with X(0) = 0. The time left S(w) is the work left over X(w), so that a
width depends neither on the size of a job nor on its progress. Source: Lin, Paolieri, Chou and Golubchik, "A
model-based approach to streamlining distributed training for asynchronous SGD", MASCOTS 2018, Algorithms 1 and 2.

A rule of widths gives, for the speeds of a job and the nodes that are left, a width and a cost per unit of work; the
job with the least cost times work left is served first. `tables` tabulates it once for each model of jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mltcp.core.errors import UsageError

ALPHA = 0.01
"""KNEE's threshold in the malleable experiments of the paper."""

ALPHA_LOW, ALPHA_HIGH = 0.01, 0.05
"""The range of alpha of moldable KNEE, which the paper does not give; these reproduce its Figure 13."""

NOTHING = 0, 0.0
"""The answer of a rule of widths to a job that waits for more nodes."""


class WidthRule(Protocol):
    """Chooses a job's number of nodes; a value, equal to others that choose alike."""

    def __hash__(self) -> int: ...

    def offer(self, speeds: Sequence[float], budget: int) -> tuple[int, float]:
        """The width, and the place in the order per unit of work, when `budget` nodes are left.

        The cluster has `len(speeds) - 1` nodes. A width of 0, `NOTHING`, means that the job waits for more.
        """
        ...


@dataclass(frozen=True)
class Knee:
    """KNEE (Algorithm 1): up to the knee of the speeds; least S(w) first.

    Attributes:
        alpha: the least share of the time left that a node has to save.
        moldable: whether a job gets the knee of the whole cluster or nothing, so that its width never changes.

    Raises:
        UsageError: alpha is out of range.
    """

    alpha: float = ALPHA
    moldable: bool = False

    def __post_init__(self) -> None:
        check_alpha(self.alpha)

    def offer(self, speeds: Sequence[float], budget: int) -> tuple[int, float]:
        """See `WidthRule`."""
        width = knee_width(speeds, len(speeds) - 1 if self.moldable else budget, self.alpha)
        return _timed(speeds, width) if width <= budget else NOTHING


@dataclass(frozen=True)
class Hell:
    """HELL (Algorithm 2): the best product of time and inefficiency; least S(w) / E(w) first.

    Attributes:
        moldable: whether a job gets HELL's width of the whole cluster or nothing, so that its width never changes.
    """

    moldable: bool = False

    def offer(self, speeds: Sequence[float], budget: int) -> tuple[int, float]:
        """See `WidthRule`."""
        width = hell_width(speeds, len(speeds) - 1 if self.moldable else budget)
        return (width, hell_cost(speeds, width)) if 0 < width <= budget else NOTHING


@dataclass(frozen=True)
class AllNodes:
    """SRPT: all nodes to the job with the least S(W)."""

    def offer(self, speeds: Sequence[float], budget: int) -> tuple[int, float]:
        """See `WidthRule`."""
        return _timed(speeds, budget)


@dataclass(frozen=True)
class OneNode:
    """Waterfill without its filling: one node, or the fewest that will do, to each job in the order of arrival."""

    def offer(self, speeds: Sequence[float], budget: int) -> tuple[int, float]:
        """See `WidthRule`."""
        width = fewest_width(speeds)
        return (width, 0.0) if width <= budget else NOTHING


def moldable_knee(load: float, low: float, high: float) -> Knee:
    """Moldable KNEE, with an alpha that follows the load.

    Args:
        load: x, lambda E[S(1)] / W.
        low: alpha_L.
        high: alpha_H; alpha(x) = alpha_L + x (alpha_H - alpha_L).

    Raises:
        UsageError: a value is out of range.
    """
    check_alpha(low)
    check_alpha(high)
    return Knee(low + load * (high - low), moldable=True)


def check_alpha(alpha: float) -> None:
    """Refuse a threshold that is no share.

    Raises:
        UsageError: it is not from 0 to 1.
    """
    if not 0 <= alpha <= 1:
        raise UsageError(f"alpha: expected 0 to 1, got {alpha:g}")


def gain(speeds: Sequence[float], width: int) -> float:
    """The share of the time left that the last of so many nodes saves: (S(w-1) - S(w)) / S(w-1) = 1 - X(w-1) / X(w)."""
    return 1.0 - speeds[width - 1] / speeds[width] if speeds[width] > 0 else 0.0


def knee_width(speeds: Sequence[float], budget: int, alpha: float) -> int:
    """KNEE: the fewest nodes, up to the budget, of which the last saves alpha or more and one more would save less.

    A job always gains by its first node, unless the second gains nothing: the knee is then sought beyond, because the
    second node of a job may be its parameter server. One node if there is no knee, or it is no faster than one node.
    """
    first = fewest_width(speeds)
    if first > budget:
        return 0
    if first + 1 < len(speeds) and speeds[first + 1] == speeds[first] and alpha > 0:
        candidates = range(first + 1, budget + 1)
    else:
        candidates = range(first, budget + 1)
    for width in candidates:
        enough = gain(speeds, width) >= alpha
        if enough and (width == budget or gain(speeds, width + 1) < alpha):
            return width if speeds[width] > speeds[first] else first
    return first


def hell_width(speeds: Sequence[float], budget: int) -> int:
    """HELL: the nodes, up to the budget, with the least S(w) / E(w), or the largest X(w)^2 / w; the fewest of equals.

    E(w) = S(1) / (w S(w)) is the efficiency.
    """
    usable = range(fewest_width(speeds), budget + 1)
    return max(usable, key=lambda width: (speeds[width] ** 2 / width, -width), default=0)


def hell_cost(speeds: Sequence[float], width: int) -> float:
    """S(w) / E(w) of a job with one unit of work left."""
    return width * speeds[fewest_width(speeds)] / speeds[width] ** 2


def peak_width(speeds: Sequence[float]) -> int:
    """The fewest nodes with the highest speed."""
    return max(range(1, len(speeds)), key=lambda width: (speeds[width], -width))


def fewest_width(speeds: Sequence[float]) -> int:
    """The fewest nodes on which the job runs; one more than there are if it never does."""
    return next((width for width in range(1, len(speeds)) if speeds[width] > 0), len(speeds))


def _timed(speeds: Sequence[float], width: int) -> tuple[int, float]:
    """The width with the time of a unit of work as its cost."""
    return (width, 1 / speeds[width]) if width and speeds[width] > 0 else NOTHING
