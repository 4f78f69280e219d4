"""Which of the candidate placements of a job is taken, and by how much which jobs are shifted in time for it."""

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
"""With more connected jobs than this, candidates are compared by the links that they touch alone."""


@dataclass(frozen=True)
class CassiniRequest:
    """What Cassini is asked: copies of what the registry had, so that it can be answered beside the event loop.

    Attributes:
        traffic: of each candidate, the coordinated jobs of each link that it touches, and of those connected with them.
        touched: the links that a candidate uses itself, under any of them.
        demands: of all these jobs.
        capacities_bps: of all these links.
    """

    traffic: Sequence[Mapping[str, Sequence[str]]]
    touched: frozenset[str]
    demands: Mapping[str, Demand]
    capacities_bps: Mapping[str, int]

    def solve(self) -> PlacementChoice:
        """Algorithm 2.

        Without loops the scores of links that no candidate touches are the same for all candidates. So where many jobs
        are connected, the candidates are compared by the others, and time shifts worked out for the one that is taken.
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
    """What to ask for a job that has a profile and is to be placed with Cassini.

    All candidates are judged by the same links and jobs, so that their mean scores can be compared: by those that are
    connected with any link that the job would use under any of them.
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
    """What to ask to work the time shifts out anew around these links; None if no jobs share any."""
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
