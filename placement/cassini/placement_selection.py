"""Cassini's pluggable module: selects the candidate placement whose jobs are most compatible, and their time shifts
(Algorithm 2)."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

from mltcp.core.demand import Demand
from mltcp.core.errors import UsageError
from placement.cassini.affinity import AffinityGraph, Circled, joint_shifts, time_shifts
from placement.cassini.circle import ANGLES, TOLERANCE
from placement.cassini.compatibility import LinkFit, fit_link

Traffic: TypeAlias = Mapping[str, Sequence[str]]
"""The jobs on each link under a candidate placement."""

Loops: TypeAlias = Literal["discard", "joint"]
Metric: TypeAlias = Literal["mean", "tail", "first"]
Shifts: TypeAlias = Literal["graph", "joint", "link", "none"]

WORTHWHILE = 0.02
"""The least gain of a link's score over its mean at random time shifts for which its jobs are held to time shifts."""

_KEPT_FITS = 16_384

RATING_EFFORT = 400_000
"""The number of sums that the search may evaluate for a link while candidates are compared: about 0.3 ms."""


@dataclass(frozen=True)
class LinkScore:
    """The compatibility of the jobs of a link.

    Attributes:
        link: its name.
        jobs: the jobs that share it.
        score: of Table 4.1, at the time shifts that were chosen.
        bound: an upper bound of the score over all time shifts.
        drift: the largest drift of a job in an iteration, as a fraction of its period.
        at_random: the mean score at random time shifts.
        tied: the groups of jobs that are held to time shifts against each other. Between groups these make no
            difference, since the iteration times have no common multiple; or they are not worth it.
    """

    link: str
    jobs: tuple[str, ...]
    score: float
    bound: float
    drift: float
    at_random: float
    tied: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Considered:
    """The rating of a candidate.

    Attributes:
        candidate: its position.
        score: the mean of its links' scores; if it was not solved jointly, the mean of the links' own best scores.
        discarded: the reason why it was not eligible; None if it was.
        loops: whether its affinity graph has loops.
    """

    candidate: int
    score: float
    discarded: str | None
    loops: bool


@dataclass(frozen=True)
class PlacementChoice:
    """The selected placement and its time shifts.

    Attributes:
        candidate: its position.
        score: the mean of its links' scores; 1 if no link is shared.
        shifts_ns: t_j of each job that can be shifted against another.
        tied: the groups of jobs, by name, that are tied to each other over any number of links: their time shifts are
            relative to each other, and drift is corrected within a group.
        links: the shared links, ordered by name.
        considered: the ratings of all candidates, the best first.
    """

    candidate: int
    score: float
    shifts_ns: Mapping[str, int]
    tied: tuple[tuple[str, ...], ...]
    links: tuple[LinkScore, ...]
    considered: tuple[Considered, ...]


def choose_placement(
    candidates: Sequence[Traffic],
    demands: Mapping[str, Demand],
    capacities_bps: Mapping[str, int],
    *,
    loops: Loops = "joint",
    angles: int = ANGLES,
    tolerance: float = TOLERANCE,
    worthwhile: float = WORTHWHILE,
    timed: bool = False,
    metric: Metric = "mean",
    shifts: Shifts = "graph",
) -> PlacementChoice:
    """Select a candidate by Algorithm 2; of equal scores the earlier, whatever the order of jobs and links.

    Args:
        candidates: the candidate placements.
        demands: of all jobs in them.
        capacities_bps: of all links in them.
        loops: ``discard`` candidates whose affinity graph has a loop, as the thesis does (line 15), or solve their
            links together. If all are discarded the first is taken, without time shifts.
        angles: |A|, of the unified circles.
        tolerance: of iteration times that have no small common multiple; see `circle.unified`.
        worthwhile: by how much time shifts have to better the score of a link over what it is at random, for its jobs
            to be held to them; with 0 all are, as in the thesis. See `link.fit_link`.
        timed: whether jobs keep to timetables, so that drift costs less. See `link.fit_link`.
        metric: of a candidate, over the scores of its links: their mean, or the least (tail; Algorithm 2, footnote);
            with ``first`` the first candidate is taken whatever its scores.
        shifts: by the affinity graph; ``joint``, of all links together even where there is no loop (the complex
            approach of 4.4.1); ``link``, that of one of a job's links (the simple approach); or none.

    Raises:
        UsageError: no candidates, or a job without demand or a link without capacity.
    """
    if not candidates:
        raise UsageError("candidates: expected one or more, got none")
    _check(candidates, demands, capacities_bps)
    if metric == "first":
        candidates = candidates[:1]
    links = _Links(demands, capacities_bps, angles, tolerance, worthwhile, timed, metric, shifts)
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
    return PlacementChoice(
        best.position,
        best.score,
        dict(sorted(best.shifts_ns.items())),
        tuple(best.graph.components()) if best.shifts_ns else (),
        best.links_scored(),
        tuple(Considered(each.position, each.score, each.discarded, each.loops) for each in considered),
    )


class _Links:
    """The demands and capacities that all candidates share."""

    def __init__(
        self,
        demands: Mapping[str, Demand],
        capacities_bps: Mapping[str, int],
        angles: int,
        tolerance: float,
        worthwhile: float,
        timed: bool,
        metric: Metric,
        shifts: Shifts,
    ) -> None:
        self.capacities_bps = capacities_bps
        self.angles = angles
        self.shifts = shifts
        self.rated = _least if metric == "tail" else _mean
        self._tolerance = tolerance
        self._worthwhile = worthwhile
        self._timed = timed
        self.iteration_ns = {job: demand.iteration_ns for job, demand in demands.items()}
        # Ordered by content, so that no sum depends on the order in which jobs are given.
        self._demands = sorted(set(demands.values()), key=_content)
        numbers = {demand: number for number, demand in enumerate(self._demands)}
        self._kind = {job: numbers[demand] for job, demand in demands.items()}

    def in_order(self, jobs: Sequence[str]) -> tuple[str, ...]:
        """The jobs ordered by their demands, and by name where these are equal."""
        return tuple(sorted(jobs, key=lambda job: (self._kind[job], job)))

    def fit(self, link: str, jobs: Sequence[str]) -> LinkFit:
        """The fit of the jobs, which `in_order` has ordered."""
        demands = tuple(self._demands[self._kind[job]] for job in jobs)
        capacity_bps = self.capacities_bps[link]
        return _fit(demands, capacity_bps, self.angles, self._tolerance, self._worthwhile, self._timed)

    def silent(self, job: str) -> bool:
        """Whether the job sends nothing."""
        return not self._demands[self._kind[job]].bits


@lru_cache(maxsize=_KEPT_FITS)
def _fit(
    demands: tuple[Demand, ...],
    capacity_bps: int,
    angles: int,
    tolerance: float,
    worthwhile: float,
    timed: bool,
) -> LinkFit:
    """Fit a link; the result is cached for all links with the same demands and capacity."""
    return fit_link(
        demands,
        capacity_bps,
        angles=angles,
        tolerance=tolerance,
        effort=RATING_EFFORT,
        worthwhile=worthwhile,
        timed=timed,
    )


class _Rated:
    """A candidate placement with its affinity graph, its links' own best scores and, once solved, the joint scores.

    Only jobs that are tied to a common circle depend on each other: a link is in the graph once for each group of two
    or more.
    """

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
        self._fits = {link: links.fit(link, jobs) for link, jobs in self._shared.items()}
        self._circled = {
            f"{link} ({number})" if number else link: Circled(tuple(jobs[each] for each in group.jobs), group)
            for link, jobs in self._shared.items()
            for number, group in enumerate(self._fits[link].groups)
            if group.tied and len(group.jobs) > 1
        }
        self.graph = AffinityGraph(
            {
                name: dict(zip(each.names, each.group.compatibility.shifts_ns, strict=True))
                for name, each in self._circled.items()
            },
            links.iteration_ns,
        )
        self.loops = self.graph.has_loop
        self._jointly = self.loops or links.shifts == "joint"
        self.score_bound = links.rated([each.score for each in self._fits.values()])
        self.score = self.score_bound

    def solve(self) -> None:
        """Find the time shifts, and the score of the links at them."""
        how, graph = self._links.shifts, self.graph
        if how == "none":
            return
        if how == "link":
            self.shifts_ns = {
                job: graph.links[_one_of(links, job)][job] for job, links in graph.links_of.items()
            }
            return
        self.shifts_ns = self._joined() if self._jointly else time_shifts(graph)
        if self._jointly:
            self.score = self._links.rated([each.score for each in self.links_scored()])

    def _joined(self) -> dict[str, int]:
        """Time shifts in which links with the same jobs count once; joint ones where loops remain."""
        merged = self._merged()
        shifts: dict[str, int] = {}
        for component in merged.components():
            names = sorted({name for job in component for name in merged.links_of[job]})
            part = AffinityGraph({name: merged.links[name] for name in names}, merged.iteration_ns)
            if part.has_loop or self._links.shifts == "joint":
                within = set(component)
                shared = [each for each in self._circled.values() if each.names[0] in within]
                shifts |= joint_shifts(shared, part, component, self._links.angles)
            else:
                shifts |= time_shifts(part)
        return shifts

    def _merged(self) -> AffinityGraph:
        """The affinity graph with one link in place of all with equal capacity and jobs: they have the same optimum."""
        kept: dict[tuple[int, tuple[str, ...]], str] = {}
        for name, each in self._circled.items():
            kept.setdefault((each.group.capacity_bps, each.names), name)
        return AffinityGraph(
            {name: self.graph.links[name] for name in kept.values()}, self._links.iteration_ns
        )

    def links_scored(self) -> tuple[LinkScore, ...]:
        """The scores of the links at the time shifts that were found, or their own best scores before."""
        return tuple(
            LinkScore(
                link,
                tuple(sorted(jobs)),
                self._score_of(link),
                self._fits[link].bound,
                self._fits[link].drift,
                self._fits[link].at_random,
                tuple(
                    sorted(
                        tuple(sorted(jobs[each] for each in group.jobs))
                        for group in self._fits[link].groups
                        if group.tied and len(group.jobs) > 1
                    )
                ),
            )
            for link, jobs in self._shared.items()
        )

    def _score_of(self, link: str) -> float:
        fit = self._fits[link]
        if not self._jointly or not self.shifts_ns:
            return fit.score
        return fit.score_at([self.shifts_ns.get(job, 0) for job in self._shared[link]])


def _content(demand: Demand) -> tuple[tuple[int, int], ...]:
    return tuple((phase.duration_ns, phase.bandwidth_bps) for phase in demand.phases)


def _mean(scores: Sequence[float]) -> float:
    return sum(scores) / len(scores) if scores else 1.0


def _least(scores: Sequence[float]) -> float:
    return min(scores, default=1.0)


def _one_of(links: Sequence[str], job: str) -> str:
    """As if drawn, but the same for the same job and links."""
    return links[zlib.crc32(job.encode()) % len(links)]


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
