"""heSRPT: the optimal division among jobs of known sizes that are all sped up by w^p and present from the start.

Source: Berg, Vesilo and Harchol-Balter, "heSRPT: Parallel scheduling to minimize mean slowdown", Performance Evaluation
144, 2020, for mean flow time. Of m jobs in descending order of their size, the k-th gets the share
(k/m)^c - ((k-1)/m)^c with c = 1 / (1 - p). It is a yardstick here: speeds are no powers, and jobs keep arriving.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from placement.model.cluster import Cluster
from placement.policies.schedulers.response.rates import RatedJob, assigned, rated
from placement.policies.schedulers.response.widths import fewest_width
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView, Untimed

_LOWEST, _HIGHEST = 0.01, 0.99


@dataclass(frozen=True)
class HeSrpt(Untimed):
    """heSRPT in whole GPUs, with the mean of the exponents that fit the jobs' speeds.

    Fractions of a GPU go to the jobs with the largest ones; a job that would get fewer GPUs than it can run on waits.
    """

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return "hesrpt"

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`."""
        present = rated(cluster, jobs)
        ordered = sorted(present, key=_size, reverse=True)
        exponent = fmean(fitted_power(each.speeds) for each in present) if present else 0.5
        shares = {
            each.job.name: min(share, each.job.gpus_max) if each.speeds[share] > 0 else 0
            for each, share in zip(
                ordered, power_shares(len(ordered), exponent, len(cluster.gpus)), strict=True
            )
        }
        return assigned(cluster, present, shares)


def fitted_power(speeds: Sequence[float]) -> float:
    """The p of the least-squares fit of ln(X(w) / X(1)) = p ln w, over all w; within 0.01 to 0.99."""
    first = fewest_width(speeds)
    points = [
        (math.log(width / first), math.log(speeds[width] / speeds[first]))
        for width in range(first + 1, len(speeds))
    ]
    if not points:
        return 0.5
    slope = sum(x * y for x, y in points) / sum(x * x for x, _ in points)
    return min(max(slope, _LOWEST), _HIGHEST)


def power_shares(jobs: int, power: float, nodes: int) -> list[int]:
    """The nodes of each job, in descending order of their sizes."""
    exponent = 1 / (1 - power)
    exact = [
        nodes * ((rank / jobs) ** exponent - ((rank - 1) / jobs) ** exponent) for rank in range(1, jobs + 1)
    ]
    whole = [math.floor(share) for share in exact]
    by_fraction = sorted(range(jobs), key=lambda rank: whole[rank] - exact[rank])
    for rank in by_fraction[: nodes - sum(whole)]:
        whole[rank] += 1
    return whole


def _size(job: RatedJob) -> float:
    return job.priority / job.speeds[fewest_width(job.speeds)]
