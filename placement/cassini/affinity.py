"""The affinity graph of jobs and the links that they share, and one time shift for each job (4.4.1, Algorithm 1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from mltcp.core.errors import UsageError


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
        shifts[reference] = given.get(reference, 0) % graph.iteration_ns[reference]
        for step in graph.walk(reference):
            if step.before is not None and step.link is not None:
                weights = graph.links[step.link]
                # The weight is subtracted from the job to the link, and added from the link to the job.
                total = shifts[step.before] - weights[step.before] + weights[step.job]
                shifts[step.job] = total % graph.iteration_ns[step.job]
    return shifts
