"""The parameters of a training."""

from __future__ import annotations

from dataclasses import dataclass

from mltcp.core.errors import UsageError
from placement.learning.episodes import FIRST_SEED

BRANCHES = {"A": 0.3, "B": 0.4, "C": 0.5, "D": 0.6, "E": 0.7}
"""W1 of the branches of the paper; W2 is 1 - W1."""

_SEEDS_APART = 1_000_000
"""Traces of one training seed follow each other; those of another begin so much later."""


@dataclass(frozen=True)
class TrainingSettings:
    """The parameters of a training: of the imitation, and of proximal policy optimisation after it.

    Attributes:
        seed: of the network and of the traces.
        imitated: how many runs the look-ahead is imitated in; 0 for none.
        parts: of the imitation; in the first one the look-ahead plays, in the others the policy.
        passes: over all lessons after the last part; a third of them after each other one.
        steps: of the environment.
        runs: at once.
        horizon: steps of each run between two updates.
        batch: of an update.
        epochs: of an update.
        rate: the first learning rate, which falls to 0.
        clip: of the ratio.
        trace_decay: lambda.
        entropy: its weight.
        hidden: the widths of the layers.

    Raises:
        UsageError: a value is out of range.
    """

    seed: int = 0
    imitated: int = 1500
    parts: int = 4
    passes: int = 12
    steps: int = 0
    runs: int = 64
    horizon: int = 256
    batch: int = 2048
    epochs: int = 4
    rate: float = 3e-5
    clip: float = 0.2
    trace_decay: float = 0.99
    entropy: float = 0.003
    hidden: tuple[int, ...] = (256, 256)

    def __post_init__(self) -> None:
        for name in ("parts", "passes", "runs", "horizon", "batch", "epochs"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}: expected 1 or more, got {getattr(self, name)}")
        for name in ("seed", "imitated", "steps"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name}: expected 0 or more, got {getattr(self, name)}")
        if 0 < self.imitated < self.parts:
            raise UsageError(
                f"imitated: expected 0, or a run for each of {self.parts} parts, got {self.imitated}"
            )

    @property
    def first_seed(self) -> int:
        """Of the traces."""
        return FIRST_SEED + self.seed * _SEEDS_APART
