"""The pluggable module: of several candidate placements the one whose jobs fit together best, with their time shifts
(Algorithm 2)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeAlias

from placement.cassini.affinity import AffinityGraph, time_shifts
from placement.cassini.circle import ANGLES, TOLERANCE, Circles, unified
from placement.cassini.compatibility import Compatibility, compatibility
from placement.cassini.demand import Demand
from placement.cassini.joint import SharedLink, joint_shifts
from placement.errors import UsageError

Traffic: TypeAlias = Mapping[str, Sequence[str]]
"""Which jobs use which link under a candidate placement."""

Loops: TypeAlias = Literal["discard", "joint"]

RATING_EFFORT = 400_000
"""How many sums the search for the rotations of a link may look at while candidates are compared: some 0.3 ms."""


@dataclass(frozen=True)
class LinkScore:
    """How well the jobs of a link fit together.

    Attributes:
        link: its name.
        jobs: those that share it.
        score: of Table 4.1, at the time shifts that were chosen.
        bound: no time shifts have a higher score on this link.
        drift: the largest drift of a job an iteration, over its period: how fast the fit is lost if nobody corrects it.
    """

    link: str
    jobs: tuple[str, ...]
    score: float
    bound: float
    drift: float


@dataclass(frozen=True)
class Considered:
    """What became of a candidate.

    Attributes:
        candidate: its position.
        score: the mean of its links' scores; where it was not solved jointly, the mean of what they reach one by one.
        discarded: why it was not eligible; None if it was.
        loops: whether its affinity graph has any.
    """

    candidate: int
    score: float
    discarded: str | None
    loops: bool


@dataclass(frozen=True)
class Choice:
    """The top placement and its time shifts.

    Attributes:
        candidate: its position.
        score: the mean of its links' scores; 1 if no link is shared.
        shifts_ns: t_j of each job that shares a link.
        links: the links that are shared, by name.
        considered: all candidates, the best first.
    """

    candidate: int
    score: float
    shifts_ns: Mapping[str, int]
    links: tuple[LinkScore, ...]
    considered: tuple[Considered, ...]


def choose(
    candidates: Sequence[Traffic],
    demands: Mapping[str, Demand],
    capacities_bps: Mapping[str, int],
    *,
    loops: Loops = "joint",
    angles: int = ANGLES,
    tolerance: float = TOLERANCE,
) -> Choice:
    """Algorithm 2. Equal scores go to the earlier candidate; the order of jobs and links makes no difference.

    Args:
        candidates: the candidate placements.
        demands: of all jobs in them.
        capacities_bps: of all links in them.
        loops: ``discard`` candidates whose affinity graph has a loop, as the thesis does (line 15), or solve their
            links together. If all are discarded the first is taken, without time shifts.
        angles: |A|, of the unified circles.
        tolerance: of iteration times that have no small common multiple; see `circle.unified`.

    Raises:
        UsageError: no candidates, or a job without demand or a link without capacity.
    """
    if not candidates:
        raise UsageError("no candidates: one or more is allowed")
    _check(candidates, demands, capacities_bps)
    links = _Links(demands, capacities_bps, angles, tolerance)
    with ThreadPoolExecutor(os.cpu_count()) as threads:  # the search lets other threads run
        rated = list(threads.map(lambda at: _Rated(at, candidates[at], links), range(len(candidates))))
    ranked = sorted(rated, key=lambda each: (-each.score_bound, each.position))
    best: _Rated | None = None
    for each in ranked:
        if best is not None and best.score >= each.score_bound:
            break
        if loops == "discard" and each.loops:
            each.discarded = "its affinity graph has a loop"
            continue
        each.solve()
        if best is None or each.score > best.score:
            best = each
    if best is None:
        best = min(rated, key=lambda each: each.position)
    considered = sorted(rated, key=lambda each: (each is not best, each.discarded is not None, -each.score))
    return Choice(
        best.position,
        best.score,
        dict(sorted(best.shifts_ns.items())),
        best.links_scored(),
        tuple(Considered(each.position, each.score, each.discarded, each.loops) for each in considered),
    )


@dataclass(frozen=True)
class _Solved:
    circles: Circles
    compatibility: Compatibility


class _Links:
    """The links of all candidates; those that carry the same demands at the same capacity are solved once."""

    def __init__(
        self, demands: Mapping[str, Demand], capacities_bps: Mapping[str, int], angles: int, tolerance: float
    ) -> None:
        self.capacities_bps = capacities_bps
        self.angles = angles
        self._tolerance = tolerance
        self.iteration_ns = {job: demand.iteration_ns for job, demand in demands.items()}
        distinct: dict[Demand, int] = {}
        self._kind = {job: distinct.setdefault(demand, len(distinct)) for job, demand in demands.items()}
        self._demands = list(distinct)
        self._solved: dict[tuple[int, ...], _Solved] = {}

    def in_order(self, jobs: Sequence[str]) -> tuple[str, ...]:
        """The jobs in the order of their circles: alike ones by name."""
        return tuple(sorted(jobs, key=lambda job: (self._kind[job], job)))

    def solved(self, link: str, jobs: Sequence[str]) -> _Solved:
        """The circles and compatibility of the jobs, which are in order."""
        capacity = self.capacities_bps[link]
        key = (capacity, *(self._kind[job] for job in jobs))
        if key not in self._solved:
            demands = [self._demands[kind] for kind in key[1:]]
            circles = unified(demands, angles=self.angles, tolerance=self._tolerance)
            self._solved[key] = _Solved(circles, compatibility(circles, capacity, effort=RATING_EFFORT))
        return self._solved[key]

    def silent(self, job: str) -> bool:
        """Whether it sends nothing at all."""
        return not self._demands[self._kind[job]].bits


class _Rated:
    """A candidate placement with its affinity graph, what its links reach one by one, and, once solved, together."""

    def __init__(self, position: int, candidate: Traffic, links: _Links) -> None:
        self.position = position
        self.discarded: str | None = None
        self.shifts_ns: dict[str, int] = {}
        self._links = links
        self._shared = {
            link: links.in_order(senders)
            for link, jobs in sorted(candidate.items())
            if len(senders := [job for job in dict.fromkeys(jobs) if not links.silent(job)]) > 1
        }
        self._solved = {link: links.solved(link, jobs) for link, jobs in self._shared.items()}
        self.graph = AffinityGraph(
            {
                link: dict(zip(jobs, self._solved[link].compatibility.shifts_ns, strict=True))
                for link, jobs in self._shared.items()
            },
            links.iteration_ns,
        )
        self.loops = self.graph.has_loop
        self.score_bound = _mean([each.compatibility.score for each in self._solved.values()])
        self.score = self.score_bound

    def solve(self) -> None:
        """Find the time shifts, and what the links come to with them."""
        self.shifts_ns = self._joined() if self.loops else time_shifts(self.graph)
        if self.loops:
            self.score = _mean([each.score for each in self.links_scored()])

    def _joined(self) -> dict[str, int]:
        """Time shifts where links that carry the same jobs count once; together where loops are left."""
        merged = self._merged()
        shifts: dict[str, int] = {}
        for component in merged.components():
            links = sorted({link for job in component for link in merged.links_of[job]})
            part = AffinityGraph({link: merged.links[link] for link in links}, merged.iteration_ns)
            if part.has_loop:
                shared = [
                    self._shared_link(link) for link in self._shared if self._shared[link][0] in component
                ]
                shifts |= joint_shifts(shared, part, component, self._links.angles)
            else:
                shifts |= time_shifts(part)
        return shifts

    def _merged(self) -> AffinityGraph:
        """The affinity graph with one link for those of equal capacity and jobs: what is best for one is for all."""
        kept: dict[tuple[int, tuple[str, ...]], str] = {}
        for link, jobs in self._shared.items():
            kept.setdefault((self._links.capacities_bps[link], jobs), link)
        return AffinityGraph(
            {link: self.graph.links[link] for link in kept.values()}, self._links.iteration_ns
        )

    def _shared_link(self, link: str) -> SharedLink:
        return SharedLink(
            link, self._shared[link], self._solved[link].circles, self._links.capacities_bps[link]
        )

    def links_scored(self) -> tuple[LinkScore, ...]:
        """The links at the time shifts that were found; as they reach one by one while there are none."""
        return tuple(
            LinkScore(
                link,
                tuple(sorted(jobs)),
                self._score_of(link),
                self._solved[link].compatibility.bound,
                max(
                    drift / self._solved[link].circles.period_ns(job)
                    for job, drift in enumerate(self._solved[link].circles.drift_ns)
                ),
            )
            for link, jobs in self._shared.items()
        )

    def _score_of(self, link: str) -> float:
        if not self.loops or not self.shifts_ns:
            return self._solved[link].compatibility.score
        return self._shared_link(link).score(self.shifts_ns)


def _mean(scores: Sequence[float]) -> float:
    return sum(scores) / len(scores) if scores else 1.0


def _check(
    candidates: Sequence[Traffic], demands: Mapping[str, Demand], capacities_bps: Mapping[str, int]
) -> None:
    for position, candidate in enumerate(candidates):
        for link, jobs in candidate.items():
            if len(jobs) and capacities_bps.get(link, 0) <= 0:
                raise UsageError(f"candidate {position}: link {link!r} has no capacity_bps above 0")
            for job in jobs:
                if job not in demands:
                    raise UsageError(f"candidate {position}: job {job!r} on link {link!r} has no demand")
