"""Iterations by pattern: which collectives a job calls, how many bytes they have, and how long it computes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mltcp.core.errors import UsageError


class Pattern(Enum):
    """The collectives of an iteration."""

    ALL_REDUCE = "all-reduce"
    """Computing, then the gradients: DistributedDataParallel without overlap."""
    SHARDED = "sharded"
    """Parameters gathered for each layer, forwards and backwards, and its gradients scattered: fully sharded."""
    ALL_TO_ALL = "all-to-all"
    """Tokens to the experts of each layer and back, forwards and backwards: a mixture of experts."""


@dataclass(frozen=True)
class PatternWork:
    """An iteration of one rank.

    Attributes:
        pattern: of its collectives.
        compute_s: in an iteration.
        size_bytes: of the gradients (all-reduce), of the parameters (sharded), or of what a rank's all-to-alls move.
        layers: in which collectives are made one by one (sharded and all-to-all).

    Raises:
        UsageError: a value is out of range.
    """

    pattern: Pattern
    compute_s: float
    size_bytes: int
    layers: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.compute_s < 3600:
            raise UsageError(f"compute_s: expected 0 to 3600, got {self.compute_s}")
        if self.size_bytes < 4:
            raise UsageError(f"size_bytes: expected 4 or more, got {self.size_bytes}")
        if self.layers < 1:
            raise UsageError(f"layers: expected 1 or more, got {self.layers}")

    def sent_bytes(self, ranks: int) -> float:
        """The bytes that a rank sends in an iteration, without headers."""
        of_all = (ranks - 1) / ranks * self.size_bytes
        return {Pattern.ALL_REDUCE: 2, Pattern.SHARDED: 3, Pattern.ALL_TO_ALL: 1}[self.pattern] * of_all
