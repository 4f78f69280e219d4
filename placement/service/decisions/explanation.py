"""Explanations for clients: why a job was placed where it is, and which resource it lacks by how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mltcp.core.policy_names import split_cassini
from placement.cassini.placement_selection import LinkScore, PlacementChoice
from placement.service.decisions.candidates import Candidate
from placement.service.decisions.policy import ServicePolicy
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import ErrorCode, RequestError, invalid, time_text
from placement.service.state.job_record import JobRecord
from placement.service.state.registry import Registry


def explain_placement(
    registry: Registry,
    job: JobRecord,
    policy: ServicePolicy,
    candidates: Sequence[Candidate],
    choice: PlacementChoice | None,
    took_ns: int,
    now_ns: int,
) -> pb.ExplainReply:
    """Explain a new placement: Cassini's choice, or without Cassini the first candidate."""
    listed = [pb.Candidate(places=registry.places(job, each.slots)) for each in candidates]
    chosen = choice.candidate if choice else 0
    if choice is not None:
        for each in choice.considered:
            listed[each.candidate].score = each.score
            listed[each.candidate].reason = each.discarded or ""
        listed[chosen].links.extend(_link_score(link) for link in choice.links)
    listed[chosen].chosen = True
    return pb.ExplainReply(
        job_id=job.id,
        policy=policy.name,
        summary=_summary(job, policy, candidates, choice)
        + (f"; restart {job.restarts}: {job.reason}" if job.restarts else "")
        + deadline_text(job, now_ns + job.run_ns, "expected to end"),
        candidates=listed,
        decision_ns=took_ns,
    )


def explain_unplaced(
    registry: Registry, job: JobRecord, now_ns: int, first: JobRecord | None = None
) -> pb.ExplainReply:
    """Explain why a job has not been placed as of now; `first` is one that must be placed before it."""
    if job.state == pb.QUEUED:
        summary = f"waits: job.{'gpus' if job.spec.gpus else 'cpu_slots'}: {shortage(registry, job)}"
        if registry.pool(job).available(registry.slot_request(job)) >= job.count:
            summary = "waits: its turn has not come yet"
        if first is not None:
            waited_s = (now_ns - first.submitted_ns) / 1e9
            summary += f"; job {first.id} has waited for {waited_s:.0f} s and is placed first"
        if job.reason:
            summary += f"; it was stopped before: {job.reason}"
        summary += deadline_text(job, now_ns + job.run_ns, "placed now it would end")
    elif job.state == pb.REGISTERED:
        summary = "registered, not queued for placement"
    else:
        summary = f"over before it was placed: {job.reason}"
    return pb.ExplainReply(job_id=job.id, policy=job.policy, summary=summary)


def explain_stopping(registry: Registry, job: JobRecord) -> pb.ExplainReply:
    """Explain why a job is being stopped, to go on elsewhere."""
    present = pb.Candidate(places=registry.places(job))
    return pb.ExplainReply(
        job_id=job.id, policy=job.policy, summary=f"is being stopped: {job.reason}", candidates=[present]
    )


def _summary(
    job: JobRecord, policy: ServicePolicy, candidates: Sequence[Candidate], choice: PlacementChoice | None
) -> str:
    if choice is None and policy.cassini:
        return f"{policy.name}: the policy's first choice: the job has no profile that Cassini could fit to others"
    if choice is None:
        return f"{policy.name}: the policy's choice"
    shared = f"{len(choice.links)} shared links" if len(choice.links) != 1 else "1 shared link"
    base = split_cassini(policy.name)[0]
    return (
        f"{policy.name}: score {choice.score:.4f} over {shared}, the best of {len(candidates)} placements that"
        f" {base} considers equally good"
    )


def deadline_text(job: JobRecord, end_ns: int, expectation: str) -> str:
    """How much before or after its deadline a job ends that ends at `end_ns`, as the end of a sentence."""
    if job.deadline_ns is None:
        return ""
    slack_ns = job.deadline_ns - end_ns
    side = "before" if slack_ns >= 0 else "after"
    return f"; {expectation} {abs(slack_ns) / 1e9:.1f} s {side} its deadline, {time_text(job.deadline_ns)}"


def _link_score(link: LinkScore) -> pb.LinkScore:
    return pb.LinkScore(link=link.link, jobs=link.jobs, score=link.score, bound=link.bound)


# ---------------------------------------------------------------------------------------------------------- capacity


def check_possible(registry: Registry, job: JobRecord, field: str = "job") -> None:
    """Raise `RequestError` for a job that would not fit in the cluster if it were empty."""
    pool, request = registry.pool(job), registry.slot_request(job)
    capable = pool.capable(request)
    if capable >= request.count:
        return
    resource, noun = _named(job)
    where = "the servers it may use" if request.servers is not None else "the cluster"
    whole = pool.capable(replace(request, memory_mb=0))
    noun += f", {request.per_server} of each server," if request.per_server else ""
    if whole < request.count:
        raise invalid(
            f"{field}.{resource}",
            f"expected at most {whole}, the {noun} of {where}, got {request.count}",
        )
    largest = pool.largest_mb(request)
    if largest < request.memory_mb:
        raise invalid(
            f"{field}.memory_mb",
            f"expected at most {largest}, the memory of the largest GPU of {where}, got {request.memory_mb}",
        )
    raise invalid(
        f"{field}.{resource}",
        f"expected at most {capable}, the {noun} of {where} with {request.memory_mb} MB or more, got {request.count}",
    )


def does_not_fit(registry: Registry, job: JobRecord, field: str = "job") -> RequestError:
    """The error for a job that could fit, but does not at present."""
    return RequestError(ErrorCode.FULL, f"{field}.{_named(job)[0]}", shortage(registry, job))


def shortage(registry: Registry, job: JobRecord) -> str:
    """The slots that a job needs and those that are free at present, as text."""
    request = registry.slot_request(job)
    available = registry.pool(job).available(request)
    closed = registry.pool(job).out_of_use(request)
    where = f", {request.per_server} of each server," if request.per_server else ""
    where += " on the servers it may use" if request.servers is not None else ""
    memory = f" with {request.memory_mb} MB or more left" if request.memory_mb else ""
    unused = f", {closed} on servers that are not in use" if closed else ""
    outside = registry.pool(job).used_outside(request)
    unused += f", {outside} used by others" if outside else ""
    return f"{request.count} {_named(job)[1]}{where}{memory} needed, {available} free{unused}"


def _named(job: JobRecord) -> tuple[str, str]:
    return ("gpus", "GPUs") if job.spec.gpus else ("cpu_slots", "CPU slots")
