"""Capacity checks: whether a job can ever be placed, and which resource it lacks by how much."""

from __future__ import annotations

from dataclasses import replace

from placement.service.protocol.request_error import ErrorCode, RequestError, invalid
from placement.service.state.job_record import JobRecord
from placement.service.state.registry import Registry


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
