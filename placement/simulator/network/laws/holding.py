"""The holding range: which difference of two jobs' periods a law compensates in each iteration.

Two jobs with periods T and (1 + m) T send for `line_s` of line rate each. Held, both take the same period
P = (1 + m) T + E: the fast job begins to send while the slow one still sends, and they overlap for d. In it the
fast job gets the share s of the link, so that it loses (1 - s) d, and the slow one E = s d. After it the fast job
loses `recovery_s` (rho) until its window has grown. The fast job has to lose m T + E in every iteration:

    (1 - s) d + rho = m T + s d    so    d = (m T - rho) / (1 - 2 s),  E = s d

It exists for s < 1/2 only, and while d is not longer than what the slow job takes to send all:
m T <= (1 - 2 s) / (1 - s) line_s + rho. Here s is taken as constant, which holds while the fast job is a newcomer: for
overlaps up to about half of `line_s`. Where shares follow a linear F exactly, the range is `linear_range`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mltcp.core.errors import UsageError
from mltcp.core.quantities import check_number


def bound(mismatch: float) -> float:
    """The smallest mean slowdown of two jobs that are held, by any law: 1 + m / 2.

    Both take at least the longer period, which is a slowdown of 1 + m for the fast job and none for the slow one.
    """
    return 1 + check_number(mismatch, field="mismatch", lowest=0, highest=1) / 2


def newcomer_share(first_window: float, window: float) -> float:
    """The share of the link that a flow gets when it begins with `first_window` packets beside one of `window`.

    Raises UsageError unless both are above 0.
    """
    if not (first_window > 0 and window > 0):
        raise UsageError(f"windows: expected numbers above 0, got {first_window} and {window}")
    return first_window / (first_window + window)


def linear_range(line_s: float, period_s: float, slope: float, intercept: float) -> float:
    """The largest mismatch that is held where shares are in proportion to F = slope * bytes_ratio + intercept.

    It is the largest value over all offsets of `mltcp.control.fluid.closed_form_shift`, as a part of the period:
    line_s / period_s * (sqrt(slope + intercept) - sqrt(intercept))^2 / slope. Raises UsageError for values that are not
    above 0.
    """
    for name, value in (
        ("line_s", line_s),
        ("period_s", period_s),
        ("slope", slope),
        ("intercept", intercept),
    ):
        if not value > 0:
            raise UsageError(f"{name}: expected a number above 0, got {value}")
    return line_s / period_s * (math.sqrt(slope + intercept) - math.sqrt(intercept)) ** 2 / slope


@dataclass(frozen=True)
class HeldPair:
    """Two jobs that a law holds together; see the module for the symbols.

    Raises UsageError for values out of range.
    """

    period_s: float
    """T, of the fast job alone."""
    line_s: float
    mismatch: float
    """m"""
    share: float
    """s, of the fast job while they overlap."""
    recovery_s: float = 0.0

    def __post_init__(self) -> None:
        check_number(self.period_s, field="period_s", lowest=1e-6, highest=1e6)
        check_number(self.line_s, field="line_s", lowest=1e-6, highest=self.period_s)
        check_number(self.mismatch, field="mismatch", lowest=0, highest=1)
        check_number(self.share, field="share", lowest=0, highest=1)
        check_number(self.recovery_s, field="recovery_s", lowest=0, highest=1e6)

    @property
    def largest_mismatch(self) -> float:
        """The end of the holding range; 0 if there is none (a share of 1/2 or more)."""
        if self.share >= 0.5:
            return 0.0
        kept_s = (1 - 2 * self.share) / (1 - self.share) * self.line_s
        return (kept_s + self.recovery_s) / self.period_s

    @property
    def is_held(self) -> bool:
        """Whether the mismatch is within the range and both jobs fit into the longer period."""
        fits = 2 * self.line_s <= (1 + self.mismatch) * self.period_s
        return fits and self.mismatch <= self.largest_mismatch and self.share < 0.5

    @property
    def overlap_s(self) -> float:
        """d; 0 if the recovery alone compensates the mismatch. Raises UsageError if they are not held."""
        if not self.is_held:
            raise UsageError(
                f"mismatch: expected at most {self.largest_mismatch:.4g} for a pair that is held, got {self.mismatch:g}"
            )
        return max(0.0, self.mismatch * self.period_s - self.recovery_s) / (1 - 2 * self.share)

    @property
    def held_period_s(self) -> float:
        """P, the period of both. Raises UsageError if they are not held."""
        return (1 + self.mismatch) * self.period_s + self.share * self.overlap_s

    @property
    def mean_slowdown(self) -> float:
        """The mean of the two jobs' slowdowns. Raises UsageError if they are not held."""
        fast = self.held_period_s / self.period_s
        return (fast + fast / (1 + self.mismatch)) / 2
