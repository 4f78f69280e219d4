"""The width of a job, its number of nodes, by KNEE and by HELL, from its speeds alone.

`speeds[w]` is the throughput X(w) on w nodes, with X(0) = 0. The time left S(w) is the work left over X(w), so that a
width depends neither on the size of a job nor on its progress. Source: Lin, Paolieri, Chou and Golubchik, "A
model-based approach to streamlining distributed training for asynchronous SGD", MASCOTS 2018, Algorithms 1 and 2.
"""

from __future__ import annotations

from collections.abc import Sequence

ALPHA = 0.01
"""KNEE's threshold in the malleable experiments of the paper."""


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
