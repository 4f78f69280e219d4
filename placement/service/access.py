"""The rights of callers: which calls they may make, and what they see of the jobs of others."""

from __future__ import annotations

from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.request_error import ErrorCode, RequestError
from placement.service.protocol.tokens import Caller, Role
from placement.service.state.job_record import JobRecord


def may_change(caller: Caller, job: JobRecord) -> bool:
    """Whether the caller may change a job, and see all of it."""
    if caller.role is Role.AGENT:
        return caller.job == job.number
    return caller.is_operator or (bool(job.owner) and job.owner == caller.name)


def check_operator(caller: Caller, method: str) -> None:
    """Raise `RequestError` unless the caller is an operator."""
    if not caller.is_operator:
        raise _denied("authorization", f"expected an operator for {method}, got {caller}")


def check_job(caller: Caller, job: JobRecord, field: str) -> None:
    """Raise `RequestError` unless the caller may change the job."""
    if not may_change(caller, job):
        owner = "another user" if job.owner else "nobody in particular"
        raise _denied(field, f"expected a job of {caller}, got {job.id!r}, which belongs to {owner}")


def check_submission(caller: Caller, spec: pb.Job, known: JobRecord | None) -> None:
    """Check that a caller may register a job, which is `known` if its id is registered already.

    Raises:
        RequestError: the caller is an agent, or the job of this id belongs to somebody else.
    """
    if caller.role is Role.AGENT:
        raise _denied("authorization", f"expected an operator or a user for new jobs, got {caller}")
    if known is not None and not may_change(caller, known):
        raise _denied("job.id", f"expected a new id, or that of a job of {caller}, got {spec.id!r}")


def visible_status(caller: Caller, job: JobRecord, status: pb.JobStatus) -> pb.JobStatus:
    """The part of a job's status that the caller may see: of others' jobs, what shows which slots are taken."""
    if may_change(caller, job):
        return status
    return pb.JobStatus(
        id=status.id, state=status.state, places=status.places, links=status.links, owner=status.owner
    )


def _denied(field: str, text: str) -> RequestError:
    return RequestError(ErrorCode.DENIED, field, text)
