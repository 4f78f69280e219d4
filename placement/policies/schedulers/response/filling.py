"""Filling: GPUs that a scheduler leaves idle are given to jobs all the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

from placement.policies.schedulers.response.rates import RatedJob
from placement.policies.schedulers.response.widths import gain

NEGLIGIBLE_GAIN = 1e-9
"""Marginal filling stops below this gain."""


class Filling(StrEnum):
    """Who gets GPUs that are left over."""

    NONE = ""
    SHORTEST = "fill"
    """Equation 5: the job that gets nearest to its end."""
    MARGINAL = "marginal"
    """The job that gains the largest share of its time left; not in the paper."""


def fill(filling: Filling, jobs: Sequence[RatedJob], shares: dict[str, int], left: int) -> None:
    """Give so many GPUs that are left; changes the shares, and never takes any away."""
    if filling is Filling.SHORTEST:
        fill_shortest(jobs, shares, left)
    elif filling is Filling.MARGINAL:
        fill_marginal(jobs, shares, left)


def fill_shortest(jobs: Sequence[RatedJob], shares: dict[str, int], left: int) -> None:
    """Equation 5, again and again: the fewest GPUs with which some job is nearer its end than all are, to that job."""
    while left > 0:
        nearest = min((each.time_left(shares[each.job.name]) for each in jobs), default=math.inf)
        for more in range(1, left + 1):
            time, number = min(
                ((each.time_left(shares[each.job.name] + more), number) for number, each in enumerate(jobs)),
                default=(math.inf, 0),
            )
            if time < nearest:
                shares[jobs[number].job.name] += more
                left -= more
                break
        else:
            return


def fill_marginal(jobs: Sequence[RatedJob], shares: dict[str, int], left: int) -> None:
    """One GPU at a time to the running job of whose time it saves the largest share; the first of equals."""
    for _ in range(left):
        running = [each for each in jobs if 0 < shares[each.job.name] < len(each.speeds) - 1]
        best = max(running, key=lambda each: gain(each.speeds, shares[each.job.name] + 1), default=None)
        if best is None or gain(best.speeds, shares[best.job.name] + 1) < NEGLIGIBLE_GAIN:
            return
        shares[best.job.name] += 1
