"""Paired differences of guarantee rates: the same traces under two policies, compared trace by trace."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import fmean

from placement.experiments.jobs.results import PolicyResult
from placement.experiments.statistics import half_interval


@dataclass(frozen=True)
class RateDifference:
    """The difference of a policy's guarantee rate from a baseline's on the same traces.

    Attributes:
        baseline: the name of the other policy.
        points: the mean over traces of 100 * (rate - baseline's rate).
        low_points: where its 95 % confidence interval (Student's t) begins; None for a single trace.
        high_points: where it ends.
    """

    baseline: str
    points: float
    low_points: float | None
    high_points: float | None

    @property
    def half_points(self) -> float | None:
        """Half the width of the interval."""
        return None if self.high_points is None else self.high_points - self.points

    def document(self) -> dict[str, str | float | None]:
        """The difference in the JSON document."""
        return asdict(self)


def rate_difference(result: PolicyResult, baseline: PolicyResult) -> RateDifference:
    """Compare two policies on the same traces."""
    pairs = zip(result.traces, baseline.traces, strict=True)
    points = [100 * (one.guarantee_rate - other.guarantee_rate) for one, other in pairs]
    mean, half = fmean(points), half_interval(points)
    if half is None:
        return RateDifference(baseline.policy, mean, None, None)
    return RateDifference(baseline.policy, mean, mean - half, mean + half)
