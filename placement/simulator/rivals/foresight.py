"""Foresight: when iterations send, and over which paths, planned together until nothing contends (IFIP).

Of the paper only the abstract was to be had: schedules in time are refined by what routing finds until they are free of
contention. What stands here in its place: jobs choose their paths by rising attained service, each flow the least
congested one (`crux.least_congested`). Then the next iteration of the job that has attained the least sends at the
first time at which all of its links have room for all it sends, and counts as attained. As long as jobs wait in this
plan, the one that waits longest chooses its paths again, after all others; the better plan stays.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from placement.simulator.network.network_cluster import NetworkCluster
from placement.simulator.network.routing import Route
from placement.simulator.rivals.crux import bytes_by_link, least_congested
from placement.simulator.rivals.rival import Rival, SteeredJob, Steering

ITERATIONS = 64
"""A plan has so many of the shortest iteration."""

ATTEMPTS = 16
"""At better paths, for each plan."""

_ROUNDING, _ROUNDING_NS = 1e-9, 1.0


class Foresight(Rival):
    """See the module."""

    name = "foresight"

    def steer(self, cluster: NetworkCluster, jobs: Sequence[SteeredJob]) -> Steering:
        """See `Rival.steer`."""
        sending = sorted(
            (job for job in jobs if any(job.routes)), key=lambda job: (job.done * job.iteration_ns, job.name)
        )
        if not sending:
            return Steering()
        routes = _routed(cluster, sending)
        plan = planned(cluster, sending, routes)
        settled: set[str] = set()
        for _ in range(ATTEMPTS):
            waiting = [job for job in sending if plan.waits_ns[job.name] > 0 and job.name not in settled]
            if not waiting:
                break
            last = max(waiting, key=lambda job: (plan.waits_ns[job.name], job.name))
            others = _routed(cluster, [*(job for job in sending if job is not last), last])
            other = planned(cluster, sending, others)
            if sum(other.waits_ns.values()) < sum(plan.waits_ns.values()):
                routes, plan = others, other
                settled.clear()
            else:
                settled.add(last.name)
        return Steering(routes, sends_ns=plan.sends_ns, holds_ns=plan.holds_ns)


@dataclass(frozen=True)
class SendingPlan:
    """When jobs send; all times are from now.

    Attributes:
        sends_ns: when each iteration of a job begins to send.
        bursts_ns: how long each of them sends.
        waits_ns: the time that a job waits for others, in all of them.
        holds_ns: until when all jobs have planned iterations.
    """

    sends_ns: Mapping[str, tuple[float, ...]]
    bursts_ns: Mapping[str, float]
    waits_ns: Mapping[str, float]
    holds_ns: float


def _routed(cluster: NetworkCluster, jobs: Sequence[SteeredJob]) -> dict[str, tuple[Route, ...]]:
    load = [0.0] * len(cluster.network.links)
    return {job.name: least_congested(cluster, job, load) for job in jobs}


def planned(
    cluster: NetworkCluster, jobs: Sequence[SteeredJob], routes: Mapping[str, Sequence[Route]]
) -> SendingPlan:
    """The plan for jobs in the order of their attained service, with given routes."""
    bursts = _Bursts(cluster, jobs, routes)
    until_ns = ITERATIONS * min(job.iteration_ns for job in jobs)
    queue: list[tuple[float, int]] = [
        (job.done * job.iteration_ns, number) for number, job in enumerate(jobs)
    ]
    ready_ns = [job.ready_ns for job in jobs]
    waits_ns = [0.0] * len(jobs)
    heapify(queue)
    while queue:
        attained_ns, number = heappop(queue)
        job = jobs[number]
        begins_ns = bursts.first_free_ns(number, ready_ns[number])
        bursts.begins_ns[number].append(begins_ns)
        waits_ns[number] += begins_ns - ready_ns[number]
        ready_ns[number] = begins_ns + bursts.lengths_ns[number] + job.silence_ns
        if begins_ns <= until_ns and len(bursts.begins_ns[number]) < job.iterations_left:
            heappush(queue, (attained_ns + job.iteration_ns, number))
    names = [job.name for job in jobs]
    firsts = [int(job.sending_ns > 0) for job in jobs]
    sends = [tuple(begins[first:]) for begins, first in zip(bursts.begins_ns, firsts, strict=True)]
    return SendingPlan(
        dict(zip(names, sends, strict=True)),
        dict(zip(names, bursts.lengths_ns, strict=True)),
        dict(zip(names, waits_ns, strict=True)),
        until_ns,
    )


def bursts_by_link(
    cluster: NetworkCluster, jobs: Sequence[SteeredJob], routes: Mapping[str, Sequence[Route]]
) -> tuple[list[float], NDArray[np.float64]]:
    """How long a burst of each job takes (ns), and the share of each link that it has then: [job, link]."""
    links = cluster.network.links
    lengths_ns, loads = [], np.zeros((len(jobs), len(links)))
    for number, job in enumerate(jobs):
        sent = bytes_by_link(job, routes[job.name])
        slowest_ns = max(8e9 * size / links[link].rate_bps for link, size in sent.items())
        lengths_ns.append(max(job.iteration_ns - job.silence_ns, slowest_ns))
        for link, size in sent.items():
            loads[number, link] = 8e9 * size / links[link].rate_bps / lengths_ns[-1]
    return lengths_ns, loads


class _Bursts:
    """What jobs send in their iterations, and when: each burst uses the links of its job at a rate of its own.

    Attributes:
        lengths_ns: of a burst of each job.
        begins_ns: of the bursts that have been planned, of each job, rising.
    """

    def __init__(
        self, cluster: NetworkCluster, jobs: Sequence[SteeredJob], routes: Mapping[str, Sequence[Route]]
    ) -> None:
        self.lengths_ns, self._loads = bursts_by_link(cluster, jobs, routes)
        self._links = [np.flatnonzero(row) for row in self._loads]
        meets = (self._loads > 0).astype(np.float32)
        together = meets @ meets.T > 0
        np.fill_diagonal(together, False)
        self._neighbours: list[list[int]] = [np.flatnonzero(row).tolist() for row in together]
        self.begins_ns: list[list[float]] = [[] for _ in jobs]
        for number, job in enumerate(jobs):
            if job.sending_ns > 0:
                self.begins_ns[number].append(job.sending_ns - self.lengths_ns[number])

    def first_free_ns(self, number: int, earliest_ns: float) -> float:
        """The first time at which all links of a job have room for the whole of a burst."""
        begins_ns = earliest_ns
        while True:
            meeting = self._meeting(number, begins_ns)
            if not meeting:
                return begins_ns
            links = self._links[number]
            rows = np.array([number, *(other for other, _ in meeting)])
            if self._loads[np.ix_(rows, links)].sum(0).max() <= 1 + _ROUNDING:
                return begins_ns
            begins_ns = min(ends_ns for _, ends_ns in meeting)

    def _meeting(self, number: int, begins_ns: float) -> list[tuple[int, float]]:
        """The neighbours that send during a burst, and until when its first such burst lasts."""
        found, ends_ns = [], begins_ns + self.lengths_ns[number]
        for other in self._neighbours[number]:
            begins = self.begins_ns[other]
            place = bisect_right(begins, begins_ns - self.lengths_ns[other] + _ROUNDING_NS)
            if place < len(begins) and begins[place] < ends_ns - _ROUNDING_NS:
                found.append((other, begins[place] + self.lengths_ns[other]))
        return found
