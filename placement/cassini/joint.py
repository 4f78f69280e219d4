"""Time shifts for jobs whose affinity graph has loops, where one link's rotations may contradict another's.

The thesis discards such placements (4.4.1). Here all links of a connected subgraph are solved together: each job has
one time shift from the start, and what is maximized is the mean of the links' scores (Table 4.1). No time shifts can
come to more than the mean of what the links reach one by one, which is the bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placement.cassini import joint_search
from placement.cassini.affinity import AffinityGraph
from placement.cassini.circle import Circles
from placement.cassini.compatibility import score_at


@dataclass(frozen=True)
class SharedLink:
    """A link that jobs share, with their unified circles on it.

    Attributes:
        name: of the link.
        jobs: in the order of the circles.
        circles: theirs.
        capacity_bps: of the link.
    """

    name: str
    jobs: tuple[str, ...]
    circles: Circles
    capacity_bps: int

    def score(self, shifts_ns: Mapping[str, int]) -> float:
        """The score of Table 4.1 when each job is delayed by its time shift."""
        return score_at(
            self.circles, self.capacity_bps, [self.rotation(job, shifts_ns[job]) for job in self.jobs]
        )

    def rotation(self, job: str, shift_ns: int) -> int:
        """The nearest rotation (in angles) to a time shift."""
        return round(shift_ns * self.circles.angles / self.circles.perimeter_ns) % self.circles.angles


def joint_shifts(
    links: Sequence[SharedLink], graph: AffinityGraph, jobs: Sequence[str], options: int
) -> dict[str, int]:
    """One time shift (ns) for each of the jobs, which are one connected subgraph of the graph.

    Descent, from what Algorithm 1 gives if a job's shift is that of the first way to it, and from pseudo-random starts:
    one job after the other is put where the links that it uses are best, until that changes nothing.

    Args:
        options: how many time shifts of each job are tried: so many parts of its iteration.
    """
    numbers = {job: number for number, job in enumerate(jobs)}
    steps_ns = [graph.iteration_ns[job] / options for job in jobs]
    start = _by_first_way(graph, jobs[0])
    chosen = np.array(
        [round(start[job] / steps_ns[number]) % options for job, number in numbers.items()], np.int64
    )
    edges = _edges(links, numbers, steps_ns, options)
    angles = np.array([link.circles.angles for link in links], np.int64)
    capacities = np.array([link.capacity_bps for link in links], np.int64)
    joint_search.descended(*edges, angles, capacities, options, chosen)
    return {job: round(int(chosen[number]) * steps_ns[number]) for job, number in numbers.items()}


def _by_first_way(graph: AffinityGraph, reference: str) -> dict[str, int]:
    """Algorithm 1 on a graph with loops: what it would give depends on the way, here the first."""
    shifts = {reference: 0}
    for step in graph.walk(reference):
        if step.before is not None and step.link is not None:
            weights = graph.links[step.link]
            total = shifts[step.before] - weights[step.before] + weights[step.job]
            shifts[step.job] = total % graph.iteration_ns[step.job]
    return shifts


def _edges(
    links: Sequence[SharedLink], numbers: Mapping[str, int], steps_ns: Sequence[float], options: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The edges sorted by job: where each job's begin, links, rotations by option, circles, and where these begin."""
    edges = sorted(
        (numbers[job], number, position)
        for number, link in enumerate(links)
        for position, job in enumerate(link.jobs)
    )
    circles = [np.tile(links[link].circles.demand[position], 2) for _, link, position in edges]
    rotations = np.array(
        [
            [
                links[link].rotation(links[link].jobs[position], round(option * steps_ns[job]))
                for option in range(options)
            ]
            for job, link, position in edges
        ],
        np.int64,
    )
    first = np.searchsorted([job for job, _, _ in edges], np.arange(len(numbers) + 1))
    starts = np.cumsum([0, *(len(circle) for circle in circles)])
    return (
        first.astype(np.int64),
        np.array([link for _, link, _ in edges], np.int64),
        rotations,
        np.concatenate(circles),
        starts.astype(np.int64),
    )
