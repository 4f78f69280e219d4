"""Candidate placements of a job that its policy considers equally good, and Cassini's choice among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mltcp.core.demand import Demand
from placement.cassini.circle import KEPT_TOLERANCE
from placement.cassini.placement_selection import PlacementChoice, Traffic, choose_placement
from placement.policies.catalogue import PlacementPolicy
from placement.policies.schedulers.scheduler import CANDIDATES, JobView, Scheduler
from placement.service.decisions.policy import ServicePolicy
from placement.service.decisions.views import FOREVER_NS, ClusterView, JobProfileTimes, cluster_view
from placement.service.state.job_record import JobRecord
from placement.service.state.registry import Registry


@dataclass(frozen=True)
class Candidate:
    """A placement of one job.

    Attributes:
        slots: numbers of its slots in the pool, ascending.
        links: names of the links that its traffic would use.
    """

    slots: tuple[int, ...]
    links: tuple[str, ...]


def candidates(registry: Registry, job: JobRecord, policy: ServicePolicy, now_ns: int) -> list[Candidate]:
    """The candidates, the policy's own choice first; empty if the job does not fit.

    A compiled policy is deterministic and takes the first of equally good placements. With Cassini it therefore runs
    again on rotated orders of the servers, each beginning with another rack, to yield the other equally good ones.
    """
    most = CANDIDATES if policy.cassini and job.demand is not None else 1
    found: dict[tuple[int, ...], None] = {}
    chooser = policy.chooser
    draws: Iterator[tuple[int, ...]] = iter(())
    if isinstance(chooser, PlacementPolicy):
        draws = _by_compiled(registry, job, chooser, most)
    elif chooser is not None:
        draws = _by_scheduler(registry, job, chooser, now_ns, most)
    for slots in draws:
        found[slots] = None
        if len(found) == most:
            break
    return [Candidate(slots, registry.links_of(job, slots)) for slots in found]


def _by_compiled(
    registry: Registry, job: JobRecord, policy: PlacementPolicy, most: int
) -> Iterator[tuple[int, ...]]:
    pool, request = registry.pool(job), registry.slot_request(job)
    for first in _beginnings(registry, job, most):
        slots = pool.choose(policy.rule, policy.kappa, request, first)
        if slots is None:
            return
        yield slots


def _beginnings(registry: Registry, job: JobRecord, most: int) -> list[int]:
    """Servers for rotated orders to begin with: server 0, the first ones of other racks, then others, evenly spread."""
    servers = registry.servers
    if most == 1 or not servers:
        return [0]
    racks = [
        number for number in range(1, len(servers)) if servers[number].switch != servers[number - 1].switch
    ]
    others = _spread(racks, most - 1) + _spread(list(range(1, len(servers))), most - 1)
    return list(dict.fromkeys([0, *others]))


def _spread(numbers: list[int], most: int) -> list[int]:
    if len(numbers) <= most:
        return numbers
    return [numbers[position * len(numbers) // most] for position in range(most)]


def _by_scheduler(
    registry: Registry, job: JobRecord, scheduler: Scheduler, now_ns: int, most: int
) -> Iterator[tuple[int, ...]]:
    """Placements by a scheduler, which sees the whole cluster; slots of running jobs are never reassigned."""
    if registry.pool(job).available(registry.slot_request(job)) < job.count:
        return
    view = cluster_view(registry, job)
    if view is None:
        return
    held = [
        _view(each, view)
        for each in registry.jobs.values()
        if each.placed and _same_kind(each, job) and view.shows(each)
    ]
    for assignment in scheduler.candidates(view.cluster, now_ns, [*held, _view(job, view)], most):
        slots = view.slots_of(assignment.get(job.id, ()))
        if len(slots) == job.count and registry.pool(job).suits(slots, registry.slot_request(job)):
            yield slots


def _same_kind(one: JobRecord, other: JobRecord) -> bool:
    return bool(one.spec.gpus) == bool(other.spec.gpus)


def _view(job: JobRecord, view: ClusterView) -> JobView:
    return JobView(
        job.id,
        job.submitted_ns,
        job.count,
        job.count,
        job.count,
        job.spec.iterations,
        max(1, job.spec.iterations - job.done),
        JobProfileTimes(job.iteration_ns),
        view.gpus_of(job),
        FOREVER_NS if job.placed else 0,
        deadline_ns=job.deadline_ns,
    )


# ----------------------------------------------------------------------------------------------- requests to Cassini


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
