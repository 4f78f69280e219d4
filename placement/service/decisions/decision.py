"""A placement decision: made by a policy and Cassini, then applied to the registry."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from mltcp.core.errors import UsageError
from placement.cassini.placement_selection import PlacementChoice
from placement.service.decisions.candidates import candidates
from placement.service.decisions.cassini_request import CassiniRequest, request_for_job
from placement.service.decisions.explanation import explain_placement
from placement.service.decisions.policy import ServicePolicy
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.request_error import invalid
from placement.service.state.job_record import JobRecord
from placement.service.state.registry import Registry

INLINE_JOBS = 16
"""Up to this number of connected jobs Cassini runs in the event loop, as handing it to a thread would take longer."""


@dataclass(frozen=True)
class PlacementDecision:
    """The placement chosen for a job.

    Attributes:
        job_id: the job's id.
        policy: name of the policy that decided.
        slots: numbers of the chosen slots in the job's pool.
        explanation: the explanation for clients.
        connected: the jobs whose time shifts were recomputed, itself included.
        choice: Cassini's choice; None without Cassini.
    """

    job_id: str
    policy: str
    slots: tuple[int, ...]
    explanation: pb.ExplainReply
    connected: tuple[str, ...] = ()
    choice: PlacementChoice | None = None


async def decide(
    registry: Registry, job: JobRecord, policy: ServicePolicy, now_ns: int
) -> PlacementDecision | None:
    """Decide on a placement without changing the registry; None if the job does not fit.

    Raises:
        RequestError: the policy cannot place this job.
    """
    began_ns = time.perf_counter_ns()
    try:
        found = candidates(registry, job, policy, now_ns)
    except UsageError as error:
        raise invalid(
            "policy", f"expected one that can place the job, got {policy.name!r}: {error}"
        ) from None
    if not found:
        return None
    choice: PlacementChoice | None = None
    connected: tuple[str, ...] = ()
    if policy.cassini and job.demand is not None:
        request = request_for_job(registry, job, found)
        choice, connected = await solve(request), tuple(request.demands)
    taken = found[choice.candidate if choice else 0]
    took_ns = time.perf_counter_ns() - began_ns
    explained = explain_placement(registry, job, policy, found, choice, took_ns, now_ns)
    return PlacementDecision(job.id, policy.name, taken.slots, explained, connected, choice)


def carry_out(registry: Registry, decision: PlacementDecision, now_ns: int) -> list[JobRecord]:
    """Place the job and set the time shifts; returns all jobs that changed, the placed one first."""
    job = replace(registry.jobs[decision.job_id], policy=decision.policy)
    placed = registry.place(job, decision.slots, registry.links_of(job, decision.slots), now_ns)
    changed = shift(registry, decision.connected, decision.choice, now_ns) if decision.choice else []
    return [registry.jobs[placed.id], *(each for each in changed if each.id != placed.id)]


def shift(
    registry: Registry, connected: Iterable[str], choice: PlacementChoice, now_ns: int
) -> list[JobRecord]:
    """Set or remove the time shifts of connected jobs; returns the jobs that changed.

    Jobs that are shifted against each other get a common `turn`, which no earlier decision has used.
    """
    tied = {job: f"{turn[0]}@{now_ns}" for turn in choice.tied for job in turn}
    changed = []
    for job_id in connected:
        job = registry.jobs[job_id]
        turn = tied.get(job_id, "")
        shift_ns = choice.shifts_ns.get(job_id) if turn else None
        if job.placed and (job.shift_ns, job.turn) != (shift_ns, turn):
            registry.update(replace(job, shift_ns=shift_ns, turn=turn))
            changed.append(registry.jobs[job_id])
    return changed


def unshift_alone(registry: Registry, links: tuple[str, ...]) -> list[JobRecord]:
    """Remove the time shifts of jobs that no longer share any link; returns the jobs that changed."""
    around = registry.traffic_around(links)
    sharing = {job for jobs in around.values() if len(jobs) > 1 for job in jobs}
    alone = {job for jobs in around.values() for job in jobs} - sharing
    changed = []
    for job_id in sorted(alone):
        if registry.jobs[job_id].shift_ns is not None:
            registry.update(replace(registry.jobs[job_id], shift_ns=None, turn=""))
            changed.append(registry.jobs[job_id])
    return changed


async def solve(request: CassiniRequest) -> PlacementChoice:
    """Solve a request, in another thread if it has many jobs."""
    if len(request.demands) <= INLINE_JOBS:
        return request.solve()
    return await asyncio.to_thread(request.solve)
