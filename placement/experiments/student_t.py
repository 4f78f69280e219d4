"""Quantiles of Student's t distribution, for confidence intervals.

scipy has them, too, but nothing else that is needed here, at 35 MB and a slower import of numba, which looks for it."""

from __future__ import annotations

import math
from statistics import NormalDist

_AS_GOOD_AS_NORMAL = 10_000


def two_sided(confidence: float, degrees: int) -> float:
    """The t for which |T| <= t with probability `confidence` (0 to 1), T having `degrees` (1 or more) of freedom.

    From the closed form for whole degrees (Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and
    26.7.4); beyond 10,000 degrees it is the normal distribution's, which differs by less than a thousandth.
    """
    if degrees > _AS_GOOD_AS_NORMAL:
        return NormalDist().inv_cdf((1 + confidence) / 2)
    low, high = 0.0, math.pi / 2
    # Halving the angle's interval until floats have no number in between.
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _within(middle, degrees) < confidence else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def _within(angle: float, degrees: int) -> float:
    """The probability that |T| <= sqrt(degrees) * tan(angle)."""
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = degrees % 2
    term = total = (cosine if odd else 1.0) if degrees > 1 else 0.0
    for power in range(2 + odd, degrees, 2):
        term *= cosine * cosine * (power - 1) / power
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
