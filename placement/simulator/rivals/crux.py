"""Crux: paths and priorities by GPU intensity (Cao et al., SIGCOMM 2024).

The GPU intensity of a job is I = W / t: what its GPUs compute in an iteration over the longest time that its traffic of
an iteration takes on any link. Over a long time, the intensity that a network carries is the utilization of its GPUs
(Theorem 1). So jobs choose their paths by falling intensity, each flow the least congested one that there is (4.1), and
have priorities in the same order, compressed to the classes of the ports (4.3, `priority_levels`).

W is GPU time here, not FLOP: all GPUs are alike. The factor k of 4.2, by which iteration times and overlap correct the
intensity of a job, is 1: its formula was not to be had.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from placement.simulator.network.network_cluster import NetworkCluster
from placement.simulator.network.routing import Route
from placement.simulator.network.topology import CLASSES
from placement.simulator.rivals.priority_levels import priority_levels
from placement.simulator.rivals.rival import Rival, SteeredJob, Steering


class Crux(Rival):
    """See the module."""

    name = "crux"
    prioritises = True

    def steer(self, cluster: NetworkCluster, jobs: Sequence[SteeredJob]) -> Steering:
        """See `Rival.steer`."""
        sending = [job for job in jobs if any(job.routes)]
        sending.sort(key=lambda job: (-intensity(cluster, job, job.routes), job.name))
        load = [0.0] * len(cluster.network.links)
        routes = {job.name: least_congested(cluster, job, load) for job in sending}
        return Steering(routes, compressed(cluster, sending, routes))


def intensity(cluster: NetworkCluster, job: SteeredJob, routes: Sequence[Route]) -> float:
    """I = W / t; infinite for a job that uses no link."""
    sent = bytes_by_link(job, routes)
    links = cluster.network.links
    slowest_s = max((8 * size / links[link].rate_bps for link, size in sent.items()), default=0.0)
    return job.workers * job.compute_ns / 1e9 / slowest_s if slowest_s else math.inf


def bytes_by_link(job: SteeredJob, routes: Sequence[Route]) -> dict[int, float]:
    """What an iteration of a job sends over each link."""
    sent: dict[int, float] = defaultdict(float)
    for message, route in zip(job.placed.traffic.messages, routes, strict=True):
        for link in route:
            sent[link] += message.size_bytes
    return sent


def least_congested(cluster: NetworkCluster, job: SteeredJob, load: list[float]) -> tuple[Route, ...]:
    """For each flow the way whose fullest link carries the least of its rate, on average; adds the job to `load`."""
    links, messages = cluster.network.links, job.placed.traffic.messages
    sizes: dict[tuple[int, int, int], float] = defaultdict(float)
    for message in messages:
        sizes[message.source, message.target, message.connection] += message.size_bytes
    chosen: dict[tuple[int, int, int], Route] = {}
    for message, ways in zip(messages, cluster.ways_of(job.placed), strict=True):
        flow = message.source, message.target, message.connection
        if flow not in chosen:
            chosen[flow] = min(ways, key=lambda way: _congestion(way, load))
            bps = 8e9 * sizes[flow] / job.iteration_ns
            for link in chosen[flow]:
                load[link] += bps / links[link].rate_bps
    return tuple(chosen[each.source, each.target, each.connection] for each in messages)


def _congestion(way: Route, load: Sequence[float]) -> tuple[float, float]:
    # All ways of a flow have its NICs in common.
    between = [load[link] for link in way[1:-1]]
    return max(between, default=0.0), sum(between)


def compressed(
    cluster: NetworkCluster, jobs: Sequence[SteeredJob], routes: Mapping[str, Sequence[Route]]
) -> dict[str, int]:
    """The traffic class of each job, by falling intensity; two that share a link lose the higher one's in one class."""
    intensities = {job.name: intensity(cluster, job, routes[job.name]) for job in jobs}
    ordered = sorted(jobs, key=lambda job: (-intensities[job.name], job.name))
    values = np.array([intensities[job.name] for job in ordered])
    shares = sharing(cluster, [routes[job.name] for job in ordered])
    levels = priority_levels(np.maximum(values[:, None], values[None, :]) * shares, CLASSES)
    return {job.name: CLASSES - 1 - int(level) for job, level in zip(ordered, levels, strict=True)}


def sharing(cluster: NetworkCluster, routes: Sequence[Sequence[Route]]) -> NDArray[np.bool_]:
    """Which jobs share links, by their routes; none does with itself."""
    uses = np.zeros((len(routes), len(cluster.network.links)), np.float32)
    for number, of_job in enumerate(routes):
        uses[number, [link for route in of_job for link in route]] = 1
    shares = uses @ uses.T > 0
    np.fill_diagonal(shares, False)
    return shares
