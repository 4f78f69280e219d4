"""The learning rate as a function of the samples in a step, N * batch, which changes with the world size N."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mltcp.core.errors import UsageError, shown


@dataclass(frozen=True)
class BatchScaling:
    """The factor (N * batch / reference) ** exponent on the learning rate of every parameter group.

    The optimizer and its schedule keep the rate for the reference batch; the factor is applied during the optimizer's
    step only. So a checkpoint has no trace of N in it, and any schedule works, also one with a lowest rate of its own.
    The short last step of an epoch has the factor of a full step.

    Attributes:
        reference: samples in a step for which the script's learning rate is meant.
        exponent: 1 linear, 0.5 square root, 0 none.

    Raises:
        UsageError: the reference is less than 1, or the exponent is not a number from 0 to 1.
    """

    reference: int
    exponent: float

    def __post_init__(self) -> None:
        if type(self.reference) is not int or self.reference < 1:
            raise UsageError(f"reference: expected 1 or more samples, got {shown(self.reference)}")
        if not (math.isfinite(self.exponent) and 0 <= self.exponent <= 1):
            raise UsageError(f"exponent: expected 0 to 1, got {shown(self.exponent)}")

    def factor(self, step_samples: int) -> float:
        """The factor for steps of so many samples."""
        return float((step_samples / self.reference) ** self.exponent)


def linear_in_batch(reference: int) -> BatchScaling:
    """Learning rate proportional to N * batch (Goyal et al., 2017), for SGD."""
    return BatchScaling(reference, 1.0)


def root_of_batch(reference: int) -> BatchScaling:
    """Learning rate proportional to the square root of N * batch, for Adam and its kin."""
    return BatchScaling(reference, 0.5)


SAME_FOR_ANY_BATCH = BatchScaling(1, 0.0)
"""The learning rate does not depend on N * batch."""
