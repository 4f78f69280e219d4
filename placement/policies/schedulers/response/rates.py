"""Jobs as schedulers of mean response time see them: speeds on every number of nodes, and the time left."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placement.model.cluster import Cluster
from placement.policies.schedulers.elastic import placed
from placement.policies.schedulers.free_gpus import largest_node
from placement.policies.schedulers.scheduler import Assignment, JobView
from placement.policies.schedulers.speeds import speeds_of


@dataclass(frozen=True)
class RatedJob:
    """A job with its speeds; a node is a GPU here.

    Attributes:
        job: its view.
        speeds: X(w) in iterations (of `gpus_wanted` workers) a nanosecond, for w from 0 to all GPUs of the cluster; 0
            on fewer than the job can run on, and no more beyond the most that it can use.
        priority: the work left, in iterations, as the scheduler counts it.
    """

    job: JobView
    speeds: Sequence[float]
    priority: float

    def time_left(self, nodes: int) -> float:
        """S(w) in ns, in terms of `priority`; infinite where the job does not run."""
        if nodes >= len(self.speeds) or self.speeds[nodes] <= 0:
            return math.inf
        return self.priority / self.speeds[nodes]


def rated(cluster: Cluster, jobs: Sequence[JobView], gamma: float = 0.0) -> list[RatedJob]:
    """The jobs in the order of their arrival.

    Args:
        cluster: whose GPUs they may get.
        jobs: that run or wait.
        gamma: of the early termination heuristic (Section VI-A): the work left counts (J / J_left)^gamma-fold, so that
            new jobs come before those of which much is done.
    """
    gpus, per_node = len(cluster.gpus), largest_node(cluster)
    found = []
    for job in jobs:
        left = float(job.iterations_left)
        if gamma and left > 0:
            left *= (float(job.iterations) / left) ** gamma
        speeds = speeds_of(job, gpus, per_node).rates(gpus)
        found.append(RatedJob(job, speeds, left))
    return found


def assigned(cluster: Cluster, jobs: Sequence[RatedJob], shares: Mapping[str, int]) -> tuple[Assignment, ...]:
    """The one candidate of a division of the GPUs."""
    return (placed(cluster, [each.job for each in jobs], shares),)
