"""Strict priorities by what is left: of the job (`srpt`), or of its iteration at each message (`srpt-iteration`)."""

from __future__ import annotations

from collections.abc import Sequence

from mltcp.core.quantities import NS_PER_MS
from placement.simulator.network.network_cluster import NetworkCluster
from placement.simulator.network.topology import CLASSES
from placement.simulator.network.traffic import RemainingClass
from placement.simulator.rivals.crux import sharing
from placement.simulator.rivals.priority_levels import priority_levels
from placement.simulator.rivals.rival import Rival, SteeredJob, Steering


class ShortestRemainingJob(Rival):
    """The job with the least remaining service first: what it has left to do alone, times its GPUs."""

    name = "srpt"
    prioritises = True

    def steer(self, cluster: NetworkCluster, jobs: Sequence[SteeredJob]) -> Steering:
        """See `Rival.steer`."""
        ordered = sorted(
            jobs, key=lambda job: (job.iterations_left * job.iteration_ns * job.workers, job.name)
        )
        shares = sharing(cluster, [job.routes for job in ordered])
        levels = priority_levels(shares.astype(float), CLASSES)
        classes = {job.name: CLASSES - 1 - int(level) for job, level in zip(ordered, levels, strict=True)}
        return Steering(classes=classes)


class ShortestRemainingIteration(Rival):
    """The message first whose connection has the least of its iteration left, by bounds that are fourfold each time."""

    name = "srpt-iteration"
    prioritises = True
    remaining = RemainingClass(tuple(4**power * NS_PER_MS for power in range(CLASSES - 1)))
