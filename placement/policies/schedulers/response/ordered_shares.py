"""Schedulers that serve jobs in an order, each up to a width of its own: KNEE, HELL, SRPT and Waterfill.

All GPUs are divided anew whenever a job arrives or ends; preemption and changes of width are taken to be free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster
from placement.policies.schedulers.response.filling import Filling, fill
from placement.policies.schedulers.response.rates import RatedJob, assigned, rated
from placement.policies.schedulers.response.width_rules import WidthRule
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView, Untimed

MOST_GAMMA = 100.0


@dataclass(frozen=True)
class OrderedShares(Untimed):
    """The frame of Algorithms 1 and 2 and of the moldable schedulers.

    Attributes:
        rule: the width and the order.
        filling: who gets GPUs that are left over.
        gamma: of the early termination heuristic; 0: none.
        filled: whether the filling is part of the name (Waterfill always fills).

    Raises:
        UsageError: gamma is out of range.
    """

    rule: WidthRule
    filling: Filling = Filling.NONE
    gamma: float = 0.0
    filled: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= MOST_GAMMA:
            raise UsageError(f"gamma: expected 0 to {MOST_GAMMA:g}, got {self.gamma:g}")

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return self.rule.name + (f"+{self.filling}" if self.filling and self.filled else "")

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`. Jobs are in the order of their arrival, which decides between equals."""
        present = rated(cluster, jobs, self.gamma)
        shares = {each.job.name: 0 for each in present}
        left = self._serve(present, shares, len(cluster.gpus))
        fill(self.filling, present, shares, left)
        return assigned(cluster, present, shares)

    def _serve(self, present: Sequence[RatedJob], shares: dict[str, int], left: int) -> int:
        """Give jobs their widths while GPUs last; returns how many are left."""
        waiting = list(present)
        while left > 0 and waiting:
            offers = [(each, self.rule.offer(each.speeds, left)) for each in waiting]
            offers = [(each, offer) for each, offer in offers if offer.width]
            if not offers:
                break
            chosen, offer = min(offers, key=lambda pair: pair[0].priority * pair[1].cost)
            shares[chosen.job.name] = min(offer.width, chosen.job.gpus_max)
            left -= shares[chosen.job.name]
            waiting = [each for each, _ in offers if each is not chosen]
        return left
