"""Paired statistics: the same traces under two policies, compared trace by trace.

Traces differ from each other far more than policies do on one trace. So what is estimated is the mean, over traces,
of the relative difference on the same trace, in percent; its confidence interval is Student's (t with n-1 degrees of
freedom on those differences), which is exact for normal differences and close for the means of a few dozen others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist

from mltcp.core.errors import UsageError

CONFIDENCE = 0.95
_AS_GOOD_AS_NORMAL = 10_000


@dataclass(frozen=True)
class Paired:
    """The paired comparison of a policy with a baseline on the same traces.

    Attributes:
        traces: how many.
        difference_percent: mean over traces of 100 * (policy / baseline - 1).
        low_percent: where its 95 % confidence interval begins; None for a single trace.
        high_percent: where it ends.
        lower_on: on how many traces the policy has the lower value; equal values count for neither.
        higher_on: on how many the higher one.
    """

    traces: int
    difference_percent: float
    low_percent: float | None
    high_percent: float | None
    lower_on: int
    higher_on: int

    @property
    def half_percent(self) -> float | None:
        """Half the width of the interval."""
        return None if self.high_percent is None else self.high_percent - self.difference_percent

    def document(self) -> dict[str, float | int | None]:
        """The comparison as a JSON document."""
        return asdict(self)


def paired(values: Sequence[float], baseline: Sequence[float]) -> Paired:
    """Compare values with those of the baseline on the same traces, in the same order.

    Raises:
        UsageError: not one value each for one or more traces, or a baseline value that is not positive.
    """
    if len(values) != len(baseline) or not values:
        raise UsageError(
            f"values: expected as many as the {len(baseline)} of the baseline, 1 or more, got {len(values)}"
        )
    if min(baseline) <= 0:
        raise UsageError(f"baseline: expected more than 0, got {min(baseline)}")
    pairs = list(zip(values, baseline, strict=True))
    differences = [100 * (value - base) / base for value, base in pairs]
    mean, half = statistics.fmean(differences), half_interval(differences)
    return Paired(
        len(pairs),
        mean,
        None if half is None else mean - half,
        None if half is None else mean + half,
        sum(value < base for value, base in pairs),
        sum(value > base for value, base in pairs),
    )


def half_interval(values: Sequence[float]) -> float | None:
    """Half the width of the 95 % confidence interval of their mean, by Student's t; None for a single value."""
    if len(values) < 2:
        return None
    error = statistics.stdev(values) / math.sqrt(len(values))
    return two_sided(CONFIDENCE, len(values) - 1) * error


# -- quantiles of Student's t ------------------------------------------------------------------------------------------
# scipy has them, too, but nothing else that is needed here, at 35 MB and a slower import of numba, which looks for it.


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
