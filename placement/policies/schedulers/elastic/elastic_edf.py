"""Elastic earliest deadline first: the GPUs of all jobs are divided anew whenever one arrives or ends.

In the order of their deadlines, jobs get the fewest GPUs that meet these. What is left speeds jobs up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placement.model.cluster import Cluster
from placement.policies.schedulers.drs.scheme import deadline_of
from placement.policies.schedulers.elastic.shares import (
    fewest_in_time,
    give_left_over,
    largest_node,
    placed,
)
from placement.policies.schedulers.elastic.speeds import Speeds, speeds_of
from placement.policies.schedulers.scheduler import CANDIDATES, Assignment, JobView
from placement.policies.schedulers.untimed import Untimed


@dataclass(frozen=True)
class ElasticEdf(Untimed):
    """Elastic EDF, and the frame of elastic schedulers that go by deadline."""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return "elastic-edf"

    def candidates(
        self, cluster: Cluster, now_ns: int, jobs: Sequence[JobView], most: int = CANDIDATES
    ) -> tuple[Assignment, ...]:
        """See `Scheduler.candidates`. Jobs are in the order of their arrival, which decides between equals."""
        gpus, per_node = len(cluster.gpus), largest_node(cluster)
        ordered = [(job, speeds_of(job, gpus, per_node)) for job in sorted(jobs, key=deadline_of)]
        needs = {
            job.name: need
            for job, speeds in ordered
            if (need := fewest_in_time(job, speeds, now_ns, deadline_of(job))) is not None
        }
        shares = {job.name: 0 for job in jobs}
        left = gpus
        served = self.admitted(ordered, needs, now_ns, gpus)
        for job, _ in served:
            if needs[job.name] <= left:
                shares[job.name] = needs[job.name]
                left -= needs[job.name]
        for tier in self.tiers(ordered, served, needs):
            left = give_left_over(shares, tier, left)
        return (placed(cluster, jobs, shares),)

    def admitted(
        self, ordered: Sequence[tuple[JobView, Speeds]], needs: dict[str, int], now_ns: int, gpus: int
    ) -> list[tuple[JobView, Speeds]]:
        """The jobs that get what they need while it lasts, in this order: all that can meet their deadlines."""
        return [each for each in ordered if each[0].name in needs]

    def tiers(
        self,
        ordered: Sequence[tuple[JobView, Speeds]],
        served: Sequence[tuple[JobView, Speeds]],
        needs: dict[str, int],
    ) -> Sequence[Sequence[tuple[JobView, Speeds]]]:
        """Groups of jobs that get what is left over, one after the other: all jobs are alike."""
        return (ordered,)
