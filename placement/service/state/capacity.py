"""Whether a job can be placed at all, and what is missing: which resource, and how much of it."""

from __future__ import annotations

from placement.service.protocol.request_error import ErrorCode, RequestError, invalid
from placement.service.state.job_record import JobRecord
from placement.service.state.registry import Registry
from placement.service.state.slot_pool import SlotPool, SlotRequest


def check_possible(registry: Registry, job: JobRecord, field: str = "job") -> None:
    """Raises `RequestError` for a job that no state of this cluster has room for."""
    pool, request = registry.pool(job), registry.slot_request(job)
    capable = pool.capable(request)
    if capable >= request.count:
        return
    resource, noun = _named(job)
    where = "the servers it may use" if request.servers is not None else "the cluster"
    whole = pool.capable(SlotRequest(request.count, 0, servers=request.servers))
    if whole < request.count:
        raise invalid(
            f"{field}.{resource}",
            f"is {request.count}: {request.count - whole} more than the {whole} {noun} of {where}",
        )
    largest = pool.largest_mb(request)
    if largest < request.memory_mb:
        raise invalid(
            f"{field}.memory_mb",
            f"is {request.memory_mb}: {request.memory_mb - largest} more than the {largest} of the largest GPU of"
            f" {where}",
        )
    raise invalid(
        f"{field}.{resource}",
        f"is {request.count}: {request.count - capable} more than the {capable} {noun} of {where} with memory_mb"
        f" {request.memory_mb} or more",
    )


def no_room(registry: Registry, job: JobRecord, field: str = "job") -> RequestError:
    """That a job, which is possible, does not fit now."""
    return RequestError(ErrorCode.FULL, f"{field}.{_named(job)[0]}", shortage(registry, job))


def shortage(registry: Registry, job: JobRecord) -> str:
    """What is missing for a job to fit now."""
    pool, request = registry.pool(job), registry.slot_request(job)
    available = pool.available(request)
    return f"is {request.count}: {request.count - available} more than the {available} {_free(job, pool, request)}"


def _free(job: JobRecord, pool: SlotPool, request: SlotRequest) -> str:
    noun = _named(job)[1]
    where = " of the servers it may use" if request.servers is not None else ""
    memory = f" with memory_mb {request.memory_mb} or more left" if request.memory_mb else ""
    return f"{noun}{where} that are free{memory}"


def _named(job: JobRecord) -> tuple[str, str]:
    return ("gpus", "GPUs") if job.spec.gpus else ("cpu_slots", "CPU slots")
