"""Perturbation: jobs are delayed from time to time, so that they have to interleave anew."""

import math
import random
from dataclasses import dataclass

from mltcp.core.errors import UsageError, shown
from mltcp.core.quantities import parse_number


@dataclass(frozen=True)
class Perturbation:
    """Every `every` iterations one job, in turn, waits up to `up_to_s` before it starts its iteration.

    The wait is not part of the iteration. It depends only on the seed, the job and the iteration, so that all ranks of
    a job wait for the same time, and every policy is disturbed in the same way.
    """

    every: int
    up_to_s: float
    seed: int = 0

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UsageError(f"a perturbation every {self.every} iterations is not possible; at least 1")
        if not (math.isfinite(self.up_to_s) and self.up_to_s >= 0):
            raise UsageError(
                f"a perturbation of up to {self.up_to_s} s is not possible; a finite time from 0 on"
            )

    def hold_s(self, job: int, jobs: int, iteration: int) -> float:
        """The wait of job number `job` of `jobs` (from 0) before this iteration; 0 for most iterations."""
        turn, rest = divmod(iteration, self.every)
        if iteration == 0 or rest != 0 or (turn - 1) % jobs != job:
            return 0.0
        return random.Random(f"{self.seed}/{job}/{iteration}").uniform(0.0, self.up_to_s)


def parse_perturbation(text: str, seed: int = 0) -> Perturbation:
    """The perturbation written as N:S, such as 20:0.15. Raises UsageError for anything else."""
    every, _, up_to_s = text.partition(":")
    try:
        values = int(every), parse_number(up_to_s, field="perturbation")
    except (ValueError, UsageError):
        raise UsageError(
            "perturbation: expected N:S (every N iterations, up to S seconds), such as 20:0.15, "
            f"got {shown(text)}"
        ) from None
    return Perturbation(*values, seed)
