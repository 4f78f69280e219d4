"""Requests to Cassini: the choice among candidate placements, and the time shifts of jobs that share links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mltcp.core.demand import Demand
from placement.cassini.circle import KEPT_TOLERANCE
from placement.cassini.placement_selection import PlacementChoice, Traffic, choose_placement
from placement.service.decisions.candidates import Candidate
from placement.service.state.job_record import JobRecord
from placement.service.state.registry import Registry

WHOLE_JOBS = 16
"""With more connected jobs than this, candidates are compared by the links that they use themselves only."""


@dataclass(frozen=True)
class CassiniRequest:
    """The input of Cassini's search, copied from the registry so that another thread can solve it.

    Attributes:
        traffic: for each candidate, the coordinated jobs of each link that the candidate uses or that is connected.
        touched: the links that any candidate uses itself.
        demands: the demand of each of these jobs.
        capacities_bps: the capacity of each of these links.
    """

    traffic: Sequence[Mapping[str, Sequence[str]]]
    touched: frozenset[str]
    demands: Mapping[str, Demand]
    capacities_bps: Mapping[str, int]

    def solve(self) -> PlacementChoice:
        """Choose a candidate and the time shifts by Algorithm 2 of Cassini.

        Without loops in the affinity graph, links that no candidate touches have the same score under all candidates.
        With many connected jobs, the candidates are therefore compared by the touched links only, and time shifts are
        computed for the chosen candidate.
        """
        if len(self.traffic) == 1 or len(self.demands) <= WHOLE_JOBS:
            return self._choose(self.traffic)
        near = [{link: jobs for link, jobs in each.items() if link in self.touched} for each in self.traffic]
        compared = self._choose(near)
        whole = self._choose([self.traffic[compared.candidate]])
        links = tuple(each for each in whole.links if each.link in self.touched)
        return replace(compared, shifts_ns=whole.shifts_ns, tied=whole.tied, links=links)

    def _choose(self, traffic: Sequence[Traffic]) -> PlacementChoice:
        return choose_placement(
            traffic, self.demands, self.capacities_bps, tolerance=KEPT_TOLERANCE, timed=True
        )


def request_for_job(registry: Registry, job: JobRecord, candidates: Sequence[Candidate]) -> CassiniRequest:
    """The request for placing a job that has a profile.

    All candidates are scored on the same links, so that their mean scores are comparable: on those that are connected
    with any link that the job would use under any candidate.
    """
    touched = frozenset(link for each in candidates for link in each.links)
    around = registry.traffic_around(touched)
    return CassiniRequest(
        [_with(around, job.id, candidate.links) for candidate in candidates],
        touched,
        {**_demands(registry, around), **_demand(job)},
        registry.capacities_bps(around),
    )


def request_for_links(registry: Registry, links: Sequence[str]) -> CassiniRequest | None:
    """The request for recomputing the time shifts around these links; None if no jobs share any."""
    around = registry.traffic_around(links)
    if not any(len(jobs) > 1 for jobs in around.values()):
        return None
    return CassiniRequest(
        [around], frozenset(around), _demands(registry, around), registry.capacities_bps(around)
    )


def _with(around: Mapping[str, list[str]], job_id: str, links: Sequence[str]) -> dict[str, list[str]]:
    return {link: [*jobs, job_id] if link in links else jobs for link, jobs in around.items()}


def _demands(registry: Registry, around: Mapping[str, list[str]]) -> dict[str, Demand]:
    found: dict[str, Demand] = {}
    for jobs in around.values():
        for each in jobs:
            found |= _demand(registry.jobs[each])
    return found


def _demand(job: JobRecord) -> dict[str, Demand]:
    return {job.id: job.demand} if job.demand is not None else {}
