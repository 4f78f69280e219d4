"""Traffic classes as the placement service gives them: by GPU intensity when a job starts, and never changed."""

from __future__ import annotations

from collections.abc import Sequence

from placement.policies.traffic_classes import SettledClass, class_beside
from placement.simulator.network.network_cluster import NetworkCluster
from placement.simulator.network.topology import CLASSES
from placement.simulator.rivals.crux import intensity, sharing
from placement.simulator.rivals.rival import Rival, SteeredJob, Steering


class LaunchClasses(Rival):
    """The rule of `placement.policies.traffic_classes`; routes are those of ECMP."""

    name = "launch"
    prioritises = True

    def steer(self, cluster: NetworkCluster, jobs: Sequence[SteeredJob]) -> Steering:
        """See `Rival.steer`."""
        worths = [intensity(cluster, job, job.routes) for job in jobs]
        shares = sharing(cluster, [job.routes for job in jobs])
        classes = {
            number: job.traffic_class for number, job in enumerate(jobs) if job.traffic_class is not None
        }
        for number, job in enumerate(jobs):
            if number not in classes and any(job.routes):
                settled = [
                    SettledClass(worths[other], traffic_class)
                    for other, traffic_class in classes.items()
                    if shares[number, other]
                ]
                classes[number] = class_beside(worths[number], settled, CLASSES)
        return Steering(classes={jobs[number].name: each for number, each in classes.items()})
