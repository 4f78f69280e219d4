"""Time shifts for jobs whose affinity graph has loops, where one link's rotations may contradict another's.

The thesis discards such placements (4.4.1). Here all links of a connected subgraph are solved together: each job has
one time shift from the start, and the mean of the links' scores (Table 4.1) is maximized. It is bounded by the mean of
the links' own best scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placement.cassini import joint_search
from placement.cassini.affinity import AffinityGraph
from placement.cassini.link import CircleGroup


@dataclass(frozen=True)
class Circled:
    """A group of jobs on a link that share a circle.

    Attributes:
        names: the names of its jobs, in the order of their circles.
        group: their circles.
    """

    names: tuple[str, ...]
    group: CircleGroup


def joint_shifts(
    shared: Sequence[Circled], graph: AffinityGraph, jobs: Sequence[str], options: int
) -> dict[str, int]:
    """Find one time shift (ns) for each job of a connected subgraph that has loops.

    Coordinate descent from the result of Algorithm 1 along the first path to each job, and from pseudo-random starts:
    one job after the other gets the shift that is best for its links, until nothing changes.

    Args:
        shared: the groups of these jobs on all links.
        options: the number of time shifts that are tried for each job, evenly over its iteration.
    """
    numbers = {job: number for number, job in enumerate(jobs)}
    steps_ns = [graph.iteration_ns[job] / options for job in jobs]
    start = _by_first_way(graph, jobs[0])
    chosen = np.array(
        [round(start[job] / steps_ns[number]) % options for job, number in numbers.items()], np.int64
    )
    edges = _edges(shared, numbers, steps_ns, options)
    angles = np.array([each.group.circles.angles for each in shared], np.int64)
    capacities = np.array([each.group.capacity_bps for each in shared], np.int64)
    joint_search.descended(*edges, angles, capacities, options, chosen)
    return {job: round(int(chosen[number]) * steps_ns[number]) for job, number in numbers.items()}


def _by_first_way(graph: AffinityGraph, reference: str) -> dict[str, int]:
    """Algorithm 1 on a graph with loops, where the result depends on the path; this takes the first path."""
    shifts = {reference: 0}
    for step in graph.walk(reference):
        if step.before is not None and step.link is not None:
            weights = graph.links[step.link]
            total = shifts[step.before] - weights[step.before] + weights[step.job]
            shifts[step.job] = total % graph.iteration_ns[step.job]
    return shifts


def _edges(
    shared: Sequence[Circled], numbers: Mapping[str, int], steps_ns: Sequence[float], options: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The edges sorted by job: the first of each job, links, rotations by option, circles, and their starts."""
    edges = sorted(
        (numbers[name], number, at)
        for number, each in enumerate(shared)
        for at, name in enumerate(each.names)
    )
    circles = [np.tile(shared[number].group.circles.demand[at], 2) for _, number, at in edges]
    rotations = np.array(
        [
            [shared[number].group.rotation(option * steps_ns[job]) for option in range(options)]
            for job, number, _ in edges
        ],
        np.int64,
    )
    first = np.searchsorted([job for job, _, _ in edges], np.arange(len(numbers) + 1))
    starts = np.cumsum([0, *(len(circle) for circle in circles)])
    return (
        first.astype(np.int64),
        np.array([number for _, number, _ in edges], np.int64),
        rotations,
        np.concatenate(circles),
        starts.astype(np.int64),
    )
