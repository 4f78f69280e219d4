"""Node-price: every node has a price at which exactly all are wanted; long jobs expect it to fall.

Suppose a node cost a price u per unit of time, and a job in the system 1. A job would choose the width with the least
cost (1 + u w) / s(w) of a unit of work; that cost is v, the worth of a unit of its work. A division of nodes is best if
it maximises the sum of v s(w) over all jobs, so that the last node of each adds the same, v s'(w) = u. At a price
that never changed, v would not depend on the work left. But a crowd passes: when short jobs have left, nodes are
cheaper. So a job with r work left, where the mean of those present is r', reckons with the price u r' / (r' + r). In a
crowd the work of long jobs is thus worth less, and short jobs come first; with few jobs, or jobs that are alike, shares
are proportionally fair or equal. There is no parameter to set, and the load need not be known.

This is the Lagrangian relaxation of a restless bandit (Whittle, 1988), with a price that relaxes to 0; it is not in the
HELL paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placement.model.cluster import Cluster
from placement.policies.schedulers.response.hull import Hull, hull_of
from placement.policies.schedulers.response.rates import RatedJob, assigned, rated
from placement.policies.schedulers.response.widths import fewest_width
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView, Untimed

LOWEST_PRICE, HIGHEST_PRICE = 1e-9, 1e6
ROUNDS = 60
"""Halvings of the price's interval, on a logarithmic scale: to the precision of a float."""


@dataclass(frozen=True)
class NodePrice(Untimed):
    """Divides nodes by their price."""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return "node-price"

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`. Jobs are in the order of their arrival, which decides between equals."""
        present = rated(cluster, jobs)
        shares = dict(
            zip((each.job.name for each in present), _divide(present, len(cluster.gpus)), strict=True)
        )
        return assigned(cluster, present, shares)


def expectations(work: Sequence[float]) -> list[float]:
    """The share of the present price with which each job reckons: r' / (r' + r)."""
    mean = sum(work) / len(work)
    return [mean / (mean + each) if each > 0 else 1.0 for each in work]


def _divide(jobs: Sequence[RatedJob], nodes: int) -> list[int]:
    if not jobs:
        return []
    hulls = [hull_of(tuple(each.speeds)) for each in jobs]
    expected = expectations([each.priority / each.speeds[fewest_width(each.speeds)] for each in jobs])
    low, high = LOWEST_PRICE, HIGHEST_PRICE
    for _ in range(ROUNDS):
        price = (low * high) ** 0.5
        if sum(_wanted(hulls, expected, price)) > nodes:
            low = price
        else:
            high = price
    shares = _wanted(hulls, expected, high)
    _take_excess(shares, nodes)
    worth = [hull.cost(high * each) for hull, each in zip(hulls, expected, strict=True)]
    _give_left_over(jobs, worth, shares, nodes - sum(shares))
    return shares


def _wanted(hulls: Sequence[Hull], expected: Sequence[float], price: float) -> list[int]:
    """The nodes that each job wants at a price."""
    return [
        hull.width_above(price / hull.cost(price * each)) for hull, each in zip(hulls, expected, strict=True)
    ]


def _take_excess(shares: list[int], nodes: int) -> None:
    """Take back what is wanted beyond all nodes, from the last jobs: jobs with hardly any work left pay any price."""
    for number in reversed(range(len(shares))):
        if sum(shares) <= nodes:
            return
        shares[number] = 0


def _give_left_over(jobs: Sequence[RatedJob], worth: Sequence[float], shares: list[int], left: int) -> None:
    """Steps of any size that fit, where they add most per node; the first job and the shortest step of equals."""
    while left > 0:
        best, largest, found = -1, 0.0, 0
        for number, each in enumerate(jobs):
            base, present = each.speeds[fewest_width(each.speeds)], shares[number]
            for more in range(1, min(left, len(each.speeds) - 1 - present) + 1):
                gain = worth[number] * (each.speeds[present + more] - each.speeds[present]) / base / more
                if gain > largest:
                    best, largest, found = number, gain, more
        if best < 0:
            return
        shares[best] += found
        left -= found
