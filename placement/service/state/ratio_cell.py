"""A measured contention ratio, and how it changes with each observation."""

from __future__ import annotations

from dataclasses import dataclass

WEIGHT = 0.2
"""The least weight of a new observation in the exponential mean."""

PRIOR = 3
"""The number of observations that the ratio of the given table counts for."""


@dataclass(frozen=True)
class RatioCell:
    """A ratio of shared to isolated throughput.

    Attributes:
        ratio: the mean, more than 0 and at most 1.
        observations: that it contains, beside the one of the given table.
    """

    ratio: float
    observations: int = 0

    def with_observation(self, ratio: float) -> RatioCell:
        """The cell after one more observation."""
        weight = max(WEIGHT, 1 / (PRIOR + self.observations + 1))
        return RatioCell(self.ratio + weight * (ratio - self.ratio), self.observations + 1)
