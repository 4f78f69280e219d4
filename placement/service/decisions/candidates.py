"""Candidate placements of a job that its policy considers equally good, and Cassini's choice among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from placement.policies.catalogue import SEE_NEIGHBOURS, PlacementPolicy
from placement.policies.schedulers.scheduler import CANDIDATES, JobView, Scheduler
from placement.policies.slot_pool import Holder
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
    neighbours = pool.neighbours(_holders(registry, job)) if policy.rule in SEE_NEIGHBOURS else None
    for first in _beginnings(registry, job, most):
        slots = pool.choose(policy.rule, policy.kappa, request, first, job.work_ns, neighbours)
        if slots is None:
            return
        yield slots


def _holders(registry: Registry, job: JobRecord) -> list[Holder]:
    """Who holds slots of the pool from which the job will have its own."""
    return [
        Holder(each.slots, each.work_ns)
        for each in registry.unended.values()
        if each.placed and _same_kind(each, job)
    ]


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
        for each in registry.unended.values()
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
        job.speed or JobProfileTimes(job.iteration_ns),
        view.gpus_of(job),
        FOREVER_NS if job.placed else 0,
        deadline_ns=job.deadline_ns,
    )
