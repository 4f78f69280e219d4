"""Whether a job can be placed at all, and what is missing: which resource, and how much of it."""

from __future__ import annotations

from placement.service.protocol.request_error import Kind, Refused, invalid
from placement.service.state.job import Job
from placement.service.state.registry import Registry
from placement.service.state.slots import Pool, Wanted


def check_possible(registry: Registry, job: Job, field: str = "job") -> None:
    """Raises `Refused` for a job that no state of this cluster has room for."""
    pool, wanted = registry.pool(job), registry.wanted(job)
    capable = pool.capable(wanted)
    if capable >= wanted.count:
        return
    resource, noun = _named(job)
    where = "the servers it may use" if wanted.servers is not None else "the cluster"
    whole = pool.capable(Wanted(wanted.count, 0, servers=wanted.servers))
    if whole < wanted.count:
        raise invalid(
            f"{field}.{resource}",
            f"is {wanted.count}: {wanted.count - whole} more than the {whole} {noun} of {where}",
        )
    largest = pool.largest_mb(wanted)
    if largest < wanted.memory_mb:
        raise invalid(
            f"{field}.memory_mb",
            f"is {wanted.memory_mb}: {wanted.memory_mb - largest} more than the {largest} of the largest GPU of"
            f" {where}",
        )
    raise invalid(
        f"{field}.{resource}",
        f"is {wanted.count}: {wanted.count - capable} more than the {capable} {noun} of {where} with memory_mb"
        f" {wanted.memory_mb} or more",
    )


def no_room(registry: Registry, job: Job, field: str = "job") -> Refused:
    """That a job, which is possible, does not fit now."""
    return Refused(Kind.FULL, f"{field}.{_named(job)[0]}", shortage(registry, job))


def shortage(registry: Registry, job: Job) -> str:
    """What is missing for a job to fit now."""
    pool, wanted = registry.pool(job), registry.wanted(job)
    available = pool.available(wanted)
    return (
        f"is {wanted.count}: {wanted.count - available} more than the {available} {_free(job, pool, wanted)}"
    )


def _free(job: Job, pool: Pool, wanted: Wanted) -> str:
    noun = _named(job)[1]
    where = " of the servers it may use" if wanted.servers is not None else ""
    memory = f" with memory_mb {wanted.memory_mb} or more left" if wanted.memory_mb else ""
    return f"{noun}{where} that are free{memory}"


def _named(job: Job) -> tuple[str, str]:
    return ("gpus", "GPUs") if job.spec.gpus else ("cpu_slots", "CPU slots")
