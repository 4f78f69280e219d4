"""Every job alone on the network: the bound by which the rivals are divided."""

from __future__ import annotations

from collections.abc import Sequence

from placement.simulator.network.network_cluster import NetworkCluster
from placement.simulator.rivals.rival import Rival, SteeredJob, Steering


class Ideal(Rival):
    """No message uses a link; all are sent as fast as their job makes them."""

    name = "ideal"

    def steer(self, cluster: NetworkCluster, jobs: Sequence[SteeredJob]) -> Steering:
        """See `Rival.steer`."""
        return Steering({job.name: ((),) * len(job.routes) for job in jobs})
