"""The concave hull of a job's speeds: the numbers of nodes that are worth having, and what each step adds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from placement.policies.schedulers.response.widths import fewest_width


@dataclass(frozen=True)
class Hull:
    """The concave hull of the speed-up s(w) = X(w) / X(fewest nodes).

    Attributes:
        widths: the vertices, numbers of nodes in ascending order; the first is 0.
        speedups: s at the vertices; 0 at the first.
        slopes: the speed-up gained per node from each vertex to the next, descending; one fewer than vertices.
        bounds: the price of a node up to which the next vertex is cheaper than this one, descending; infinite from 0.
            At a price u per node and time, a unit of work costs (1 + u w) / s(w).
    """

    widths: tuple[int, ...]
    speedups: tuple[float, ...]
    slopes: tuple[float, ...]
    bounds: tuple[float, ...]

    def width_above(self, slope: float) -> int:
        """The nodes of which each adds at least so much."""
        return self.widths[bisect_left(self.slopes, True, key=lambda each: each < slope)]

    def cost(self, price: float) -> float:
        """The least cost of a unit of work, min over w of (1 + u w) / s(w)."""
        vertex = bisect_left(self.bounds, True, key=lambda bound: bound < price)
        return (1 + price * self.widths[vertex]) / self.speedups[vertex]


@lru_cache(maxsize=4096)
def hull_of(speeds: tuple[float, ...]) -> Hull:
    """The hull of these speeds, which begin with that on no nodes, 0."""
    first = speeds[fewest_width(speeds)]
    s = [speed / first for speed in speeds]
    widths = [0]
    while (found := _next(s, widths[-1])) is not None:
        widths.append(found)
    pairs = list(pairwise(widths))
    return Hull(
        tuple(widths),
        tuple(s[width] for width in widths),
        tuple((s[b] - s[a]) / (b - a) for a, b in pairs),
        tuple(_bound(a, s[a], b, s[b]) for a, b in pairs),
    )


def _next(s: Sequence[float], width: int) -> int | None:
    """The vertex after this one: where the gain per node is largest, the fewest nodes of equals; None at the top."""
    wider = range(width + 1, len(s))
    best = max(wider, key=lambda other: ((s[other] - s[width]) / (other - width), -other), default=width)
    return best if s[best] > s[width] else None


def _bound(a: int, s_a: float, b: int, s_b: float) -> float:
    saved = b * s_a - a * s_b
    return (s_b - s_a) / saved if saved > 0 else float("inf")
