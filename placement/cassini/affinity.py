"""The affinity graph of jobs and the links that they share, and one time shift for each job (4.4.1, Algorithm 1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mltcp.core.errors import UsageError
from placement.cassini.compatibility import CircleGroup
from placement.model.compiled import compiled, compiled_with_arrays


@dataclass(frozen=True)
class AffinityGraph:
    """The bipartite graph of the links that several jobs share, and these jobs.

    Attributes:
        links: the jobs of each link, each with t_j^l, the weight of the edge: its time shift on this link, ns.
        iteration_ns: the iteration time of each job.

    Raises:
        UsageError: a link with fewer than two jobs, or a job without an iteration time.
    """

    links: Mapping[str, Mapping[str, int]]
    iteration_ns: Mapping[str, int]

    def __post_init__(self) -> None:
        for link, jobs in self.links.items():
            if len(jobs) < 2:
                raise UsageError(f"link {link!r}: expected 2 or more jobs, got {len(jobs)}")
            for job in jobs:
                if self.iteration_ns.get(job, 0) <= 0:
                    raise UsageError(f"job {job!r} on link {link!r} has no iteration_ns above 0")

    @cached_property
    def links_of(self) -> Mapping[str, tuple[str, ...]]:
        """The links of each job that shares one, both ordered by name."""
        found: dict[str, list[str]] = {}
        for link in sorted(self.links):
            for job in self.links[link]:
                found.setdefault(job, []).append(link)
        return {job: tuple(found[job]) for job in sorted(found)}

    def components(self) -> Iterator[tuple[str, ...]]:
        """The jobs of each connected subgraph, ordered by name."""
        seen: set[str] = set()
        for job in self.links_of:
            if job not in seen:
                component = sorted(step.job for step in self.walk(job))
                seen.update(component)
                yield tuple(component)

    @cached_property
    def has_loop(self) -> bool:
        """Whether the graph has a loop: a connected graph without loops has one edge less than nodes."""
        edges = sum(len(jobs) for jobs in self.links.values())
        nodes = len(self.links) + len(self.links_of)
        return edges != nodes - sum(1 for _ in self.components())

    def walk(self, reference: str) -> Iterator[Step]:
        """Walk breadth first from a job to all connected jobs (lines 5 to 14), each once, with the step to it."""
        yield Step(reference, None, None)
        queue, seen, crossed = deque([reference]), {reference}, set[str]()
        while queue:
            here = queue.popleft()
            for link in self.links_of[here]:
                if link in crossed:
                    continue
                crossed.add(link)
                for job in sorted(self.links[link]):
                    if job not in seen:
                        seen.add(job)
                        queue.append(job)
                        yield Step(job, here, link)


@dataclass(frozen=True)
class Step:
    """One step of a walk: a job, reached from another job over a link that both share; None at the start."""

    job: str
    before: str | None
    link: str | None


def time_shifts(graph: AffinityGraph, references: Mapping[str, int] | None = None) -> dict[str, int]:
    """Algorithm 1: a unique time shift (ns, less than its iteration) for every job of a graph without loops.

    It preserves the relative time shifts of the jobs of each link (Theorem 1): on every link all circles are rotated
    by their weights plus a rotation that all of them have in common. That is Eq. 4.6 up to whole iterations of the
    jobs: literally it holds for the sums before the modulo of line 17, and a shift by an iteration rotates a circle
    onto itself.

    Args:
        references: jobs whose time shifts are given, at most one in each connected subgraph. Where there is none it is
            the first by name (the paper takes one at random), with 0.

    Raises:
        UsageError: the graph has a loop, or two references are connected.
    """
    if graph.has_loop:
        raise UsageError("the affinity graph has a loop: no time shift of a job may depend on the way to it")
    given = references or {}
    shifts: dict[str, int] = {}
    for component in graph.components():
        chosen = [job for job in component if job in given]
        if len(chosen) > 1:
            raise UsageError(f"references: expected one a connected subgraph, got {', '.join(chosen)}")
        reference = chosen[0] if chosen else component[0]
        shifts.update(_walked(graph, reference, given.get(reference, 0) % graph.iteration_ns[reference]))
    return shifts


def _walked(graph: AffinityGraph, reference: str, shift_ns: int) -> dict[str, int]:
    """The time shifts of the jobs connected to one with this shift, along the first path to each."""
    shifts = {reference: shift_ns}
    for step in graph.walk(reference):
        if step.before is not None and step.link is not None:
            weights = graph.links[step.link]
            # The weight is subtracted from the job to the link, and added from the link to the job.
            total = shifts[step.before] - weights[step.before] + weights[step.job]
            shifts[step.job] = total % graph.iteration_ns[step.job]
    return shifts


# -- graphs with loops -------------------------------------------------------------------------------------------------
# The thesis discards such placements (4.4.1). Here all links of a connected subgraph are solved together: each job
# has one time shift from the start, and the mean of the links' scores (Table 4.1) is maximized. It is bounded by the
# mean of the links' own best scores.


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
    start = _walked(graph, jobs[0], 0)
    chosen = np.array(
        [round(start[job] / steps_ns[number]) % options for job, number in numbers.items()], np.int64
    )
    edges = _edges(shared, numbers, steps_ns, options)
    angles = np.array([each.group.circles.angles for each in shared], np.int64)
    capacities = np.array([each.group.capacity_bps for each in shared], np.int64)
    descended(*edges, angles, capacities, options, chosen)
    return {job: round(int(chosen[number]) * steps_ns[number]) for job, number in numbers.items()}


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


# -- the search for time shifts on several links at once ---------------------------------------------------------------

_STARTS = 4
_SMALLEST_GAIN = 1e-12


@compiled
def _shift(sums: np.ndarray, circles: np.ndarray, start: int, angles: int, rotation: int, sign: int) -> None:
    begin = start + angles - rotation
    for angle in range(angles):
        sums[angle] += sign * circles[begin + angle]


@compiled
def _cost(
    sums: np.ndarray, circles: np.ndarray, start: int, angles: int, rotation: int, capacity: int
) -> float:
    """The average excess over the capacity, which is 1 minus the link's score."""
    total = np.int64(0)
    begin = start + angles - rotation
    for angle in range(angles):
        over = sums[angle] + circles[begin + angle] - capacity
        total += over if over > 0 else np.int64(0)
    return total / (angles * float(capacity))


@compiled_with_arrays
def descended(
    first: np.ndarray, link: np.ndarray, rotations: np.ndarray, circles: np.ndarray, starts: np.ndarray,
    angles: np.ndarray, capacities: np.ndarray, options: int, best: np.ndarray,
) -> float:  # fmt: skip
    """Improve the options in `best`; returns the sum over the links of 1 minus the score.

    Args:
        first: the first edge of each job; and the number of edges.
        link: the link of each edge.
        rotations: [edge, option].
        circles: the doubled circles of all edges, one after the other, beginning at `starts`.
        angles: the number of angles of each link.
        capacities: the capacity of each link, bit/s.
        options: the number of options.
        best: the initial option of each job, replaced by the best found.
    """
    jobs = best.shape[0]
    links = angles.shape[0]
    sums = np.zeros((links, angles.max()), np.int64)
    chosen = best.copy()
    state = np.uint64(1)
    least = np.inf
    for start in range(_STARTS):
        if start > 0:
            for job in range(1, jobs):
                state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
                chosen[job] = np.int64((state >> np.uint64(33)) % np.uint64(options))
        sums[:, :] = 0
        for job in range(jobs):
            for edge in range(first[job], first[job + 1]):
                _shift(
                    sums[link[edge]],
                    circles,
                    starts[edge],
                    angles[link[edge]],
                    rotations[edge, chosen[job]],
                    1,
                )
        improved = True
        while improved:
            improved = False
            # The first job is the reference of the others' rotations.
            for job in range(1, jobs):
                for edge in range(first[job], first[job + 1]):
                    here = link[edge]
                    _shift(sums[here], circles, starts[edge], angles[here], rotations[edge, chosen[job]], -1)
                before = chosen[job]
                cost_before = np.inf
                cost_least = np.inf
                for option in range(options):
                    cost = 0.0
                    for edge in range(first[job], first[job + 1]):
                        here = link[edge]
                        cost += _cost(
                            sums[here],
                            circles,
                            starts[edge],
                            angles[here],
                            rotations[edge, option],
                            capacities[here],
                        )
                    if option == before:
                        cost_before = cost
                    if cost < cost_least:
                        cost_least = cost
                        chosen[job] = option
                if cost_least < cost_before - _SMALLEST_GAIN:
                    improved = True
                else:
                    chosen[job] = before
                for edge in range(first[job], first[job + 1]):
                    here = link[edge]
                    _shift(sums[here], circles, starts[edge], angles[here], rotations[edge, chosen[job]], 1)
        cost = 0.0
        for number in range(links):
            total = np.int64(0)
            for angle in range(angles[number]):
                over = sums[number, angle] - capacities[number]
                total += over if over > 0 else np.int64(0)
            cost += total / (angles[number] * float(capacities[number]))
        if cost < least - _SMALLEST_GAIN:
            least = cost
            best[:] = chosen
        if least <= 0:
            break
    return least
