"""Request errors, and the checks of messages from clients."""

from __future__ import annotations

import re
from collections.abc import Sized
from datetime import UTC, datetime
from enum import Enum

from mltcp.core.demand import Demand, Phase
from mltcp.core.errors import MltcpError, UsageError
from placement.service.protocol import placement_pb2 as pb


class ErrorCode(Enum):
    """The reason of a request error; `servicer.CODES` has the gRPC status code of each."""

    INVALID = "invalid"
    UNKNOWN = "unknown"
    EXISTS = "exists"
    FULL = "full"
    STATE = "state"
    DENIED = "denied"


class RequestError(MltcpError):
    """A request was refused; no state has changed.

    Attributes:
        code: the reason.
        field: the offending field, such as ``job.gpus`` or ``servers[3].nic_bps``; the message begins with it.
    """

    def __init__(self, code: ErrorCode, field: str, text: str) -> None:
        super().__init__(f"{field}: {text}")
        self.code = code
        self.field = field


def invalid(field: str, text: str) -> RequestError:
    """The error for a value that is invalid in any state of the service."""
    return RequestError(ErrorCode.INVALID, field, text)


# ------------------------------------------------------------------------------------------------------------ checks


_NAME = re.compile(r"[\w.:/@+-]{1,200}")
_MOST_SLOTS = 1_000_000
_MOST = 1 << 53
_LATEST_NS = 1 << 62
_MOST_PRIORITY = 1e6
_VARIABLE = re.compile(r"[^\s=\x00-\x1f\x7f]{1,200}")

MOST_PROGRAM_BYTES = 64 << 10
"""The most that the command and the environment of a job may have together."""

MOST_JOB_BYTES = 256 << 10
"""The most that all that a job is submitted with may have, as a message."""

MOST_PHASES = 10_000
"""The phases of a profile."""

MOST_IDS = 10_000
"""The jobs that one call may name."""

MOST_TEXT = 1000
"""The characters of a reason, and of other text that is shown."""


def check_name(name: str, field: str) -> None:
    """Check the name of a job, server or switch.

    Raises:
        RequestError: the name is empty or too long, or has a character that names cannot have.
    """
    if not _NAME.fullmatch(name):
        raise invalid(field, f"expected 1 to 200 letters, digits and . : / @ + - _, got {name[:40]!r}")


def check_server(server: pb.Server, field: str) -> None:
    """Raise `RequestError` if a field of the server is out of range."""
    check_name(server.name, f"{field}.name")
    check_name(server.switch, f"{field}.switch")
    _check_range(server.gpus, f"{field}.gpus", 0, _MOST_SLOTS)
    _check_range(server.cpu_slots, f"{field}.cpu_slots", 0, _MOST_SLOTS)
    _check_range(server.gpu_memory_mb, f"{field}.gpu_memory_mb", 0, _MOST)
    _check_range(server.nic_bps, f"{field}.nic_bps", 1, _MOST)
    if server.gpus + server.cpu_slots == 0:
        raise invalid(f"{field}.gpus", "expected gpus + cpu_slots >= 1, got 0 of both")


def check_link(link: pb.Link, field: str) -> None:
    """Raise `RequestError` if a field of the link is out of range."""
    check_name(link.switch, f"{field}.switch")
    check_name(link.above, f"{field}.above")
    _check_range(link.capacity_bps, f"{field}.capacity_bps", 1, _MOST)


def check_job(job: pb.Job, field: str = "job") -> None:
    """Raise `RequestError` if a field of the job is invalid; policy, profile and servers are checked elsewhere."""
    check_name(job.id, f"{field}.id")
    _check_range(job.gpus, f"{field}.gpus", 0, _MOST_SLOTS)
    _check_range(job.cpu_slots, f"{field}.cpu_slots", 0, _MOST_SLOTS)
    if (job.gpus > 0) == (job.cpu_slots > 0):
        raise invalid(
            f"{field}.gpus",
            f"expected 1 or more of either gpus or cpu_slots, got {job.gpus} and {job.cpu_slots}",
        )
    _check_range(job.memory_mb, f"{field}.memory_mb", 0, _MOST)
    _check_range(job.iterations, f"{field}.iterations", 1, 10**12)
    if job.shares_gpus and not (job.gpus and job.memory_mb):
        raise invalid(f"{field}.memory_mb", "expected the memory per GPU of a job that shares GPUs, got 0")
    _check_range(job.slots_per_server, f"{field}.slots_per_server", 0, _MOST_SLOTS)
    if job.slots_per_server and (job.gpus or job.cpu_slots) % job.slots_per_server:
        raise invalid(
            f"{field}.slots_per_server",
            f"expected a divisor of {job.gpus or job.cpu_slots}, the number of its slots, got {job.slots_per_server}",
        )
    check_text(job.policy, f"{field}.policy")
    check_text(job.model, f"{field}.model")
    check_text(job.checkpoints, f"{field}.checkpoints")
    if job.checkpoints and not (job.elastic and job.checkpoints[0] == "/" and "\0" not in job.checkpoints):
        raise invalid(
            f"{field}.checkpoints",
            f"expected an absolute path, of an elastic job, got {job.checkpoints[:40]!r}",
        )
    check_profile(job.profile, f"{field}.profile")
    _check_program(job, field)
    if job.ByteSize() > MOST_JOB_BYTES:
        raise invalid(field, f"expected at most {MOST_JOB_BYTES} bytes in all, got {job.ByteSize()}")


def _check_program(job: pb.Job, field: str) -> None:
    if job.command and not job.command[0]:
        raise invalid(f"{field}.command", "expected a program, got ''")
    for name in job.environment:
        if not _VARIABLE.fullmatch(name):
            raise invalid(
                f"{field}.environment",
                f"expected names of 1 to 200 characters without blanks and =, got {name[:40]!r}",
            )
    texts = (*job.command, *job.environment.values())
    if any("\0" in text for text in texts):
        raise invalid(f"{field}.command", "expected a command and an environment without NUL, got one")
    size = sum(len(text.encode()) + 1 for text in (*texts, *job.environment))
    if size > MOST_PROGRAM_BYTES:
        raise invalid(
            f"{field}.command",
            f"expected at most {MOST_PROGRAM_BYTES} bytes of command and environment together, got {size}: "
            "put more into a file",
        )


def check_text(text: str, field: str) -> None:
    """Raise `RequestError` for a text that is too long to be shown."""
    if len(text) > MOST_TEXT:
        raise invalid(field, f"expected at most {MOST_TEXT} characters, got {len(text)}")


def check_count(values: Sized, most: int, field: str) -> None:
    """Raise `RequestError` if a request names more than `most`."""
    if len(values) > most:
        raise invalid(field, f"expected at most {most}, got {len(values)}")


def check_profile(profile: pb.Profile, field: str) -> None:
    """Raise `RequestError` for a profile with too many phases; see `demand_of` for all else."""
    check_count(profile.phases, MOST_PHASES, f"{field}.phases")


def check_deadline(job: pb.Job, now_ns: int, field: str = "job") -> None:
    """Raise `RequestError` if a new job's deadline has passed, or its priority is out of range or without meaning."""
    if job.HasField("deadline_ns") and job.HasField("priority"):
        raise invalid(
            f"{field}.priority", f"expected either deadline_ns or priority, got both, {job.priority:g}"
        )
    if job.HasField("deadline_ns") and not now_ns < job.deadline_ns <= _LATEST_NS:
        raise invalid(
            f"{field}.deadline_ns",
            f"expected a time after {time_text(now_ns)} in nanoseconds since the epoch, "
            f"got {job.deadline_ns} ({time_text(job.deadline_ns)})",
        )
    if job.HasField("priority"):
        if not 0 < job.priority <= _MOST_PRIORITY:
            raise invalid(
                f"{field}.priority",
                f"expected more than 0 and at most {_MOST_PRIORITY:g}, got {job.priority:g}",
            )
        if not (job.HasField("profile") or job.HasField("speed")):
            raise invalid(
                f"{field}.priority",
                f"expected a job with a profile or a speed, which tells its run time, got {job.priority:g}",
            )


def check_due(job: pb.Job, deadline_ns: int | None, field: str = "job") -> None:
    """Raise `RequestError` if the deadline that follows from a job's priority is later than messages can have."""
    if deadline_ns is not None and deadline_ns > _LATEST_NS:
        raise invalid(
            f"{field}.priority",
            f"expected a deadline no later than {time_text(_LATEST_NS)} for the job's run time, got {job.priority:g}",
        )


def time_text(time_ns: int) -> str:
    """A time since the epoch as ISO 8601 in UTC, to the second; the number itself if it is out of range."""
    try:
        return datetime.fromtimestamp(time_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(time_ns)


def demand_of(profile: pb.Profile, field: str) -> Demand:
    """The demand of a profile message.

    Raises:
        RequestError: the profile has no phase, or a phase that is empty, negative or overlaps the previous one.
    """
    if not profile.phases:
        raise invalid(f"{field}.phases", "expected one or more phases, got none")
    phases: list[Phase] = []
    at_ns = 0
    for number, each in enumerate(profile.phases):
        where = f"{field}.phases[{number}]"
        if each.HasField("begins_ns"):
            if each.begins_ns < at_ns:
                raise invalid(
                    f"{where}.begins_ns",
                    f"expected at least {at_ns}, where the previous phase ends, got {each.begins_ns}",
                )
            if each.begins_ns > at_ns:
                phases.append(_phase(each.begins_ns - at_ns, 0, where))
        phases.append(_phase(each.duration_ns, each.bandwidth_bps, where))
        at_ns = max(at_ns, each.begins_ns) + each.duration_ns
    try:
        return Demand(tuple(phases))
    except UsageError as error:
        raise invalid(f"{field}.phases", str(error)) from None


def profile_message(demand: Demand) -> pb.Profile:
    """The profile message of a demand, the inverse of `demand_of`."""
    phases = [
        pb.Phase(duration_ns=phase.duration_ns, bandwidth_bps=phase.bandwidth_bps) for phase in demand.phases
    ]
    return pb.Profile(phases=phases)


def _phase(duration_ns: int, bandwidth_bps: int, where: str) -> Phase:
    try:
        return Phase(duration_ns, bandwidth_bps)
    except UsageError as error:
        name, _, text = str(error).partition(" ")
        raise invalid(f"{where}.{name.rstrip(':')}", text) from None


def _check_range(value: int, field: str, least: int, most: int) -> None:
    if not least <= value <= most:
        raise invalid(field, f"expected {least} to {most}, got {value}")
