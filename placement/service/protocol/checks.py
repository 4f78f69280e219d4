"""What may stand in a request: every message is checked here before anything is changed."""

from __future__ import annotations

import re

from mltcp.core.demand import Demand, Phase
from mltcp.core.errors import UsageError
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.request_error import invalid

_NAME = re.compile(r"[\w.:/@+-]{1,200}")
_MOST_SLOTS = 1_000_000
_MOST = 1 << 53


def check_name(name: str, field: str) -> None:
    """A name of a job, server or switch.

    Raises:
        RequestError: it is empty, too long, or has other characters.
    """
    if not _NAME.fullmatch(name):
        raise invalid(field, f"is {name[:40]!r}: 1 to 200 letters, digits and . : / @ + - _ are allowed")


def check_server(server: pb.Server, field: str) -> None:
    """Raises `RequestError` for a server that cannot be."""
    check_name(server.name, f"{field}.name")
    check_name(server.switch, f"{field}.switch")
    _check_range(server.gpus, f"{field}.gpus", 0, _MOST_SLOTS)
    _check_range(server.cpu_slots, f"{field}.cpu_slots", 0, _MOST_SLOTS)
    _check_range(server.gpu_memory_mb, f"{field}.gpu_memory_mb", 0, _MOST)
    _check_range(server.nic_bps, f"{field}.nic_bps", 1, _MOST)
    if server.gpus + server.cpu_slots == 0:
        raise invalid(f"{field}.gpus", "is 0, and cpu_slots too: one or more of either is allowed")


def check_link(link: pb.Link, field: str) -> None:
    """Raises `RequestError` for a link that cannot be."""
    check_name(link.switch, f"{field}.switch")
    check_name(link.above, f"{field}.above")
    _check_range(link.capacity_bps, f"{field}.capacity_bps", 1, _MOST)


def check_job(job: pb.Job, field: str = "job") -> None:
    """Raises `RequestError` for a job that no cluster could have; policy, profile and servers are checked elsewhere."""
    check_name(job.id, f"{field}.id")
    _check_range(job.gpus, f"{field}.gpus", 0, _MOST_SLOTS)
    _check_range(job.cpu_slots, f"{field}.cpu_slots", 0, _MOST_SLOTS)
    if (job.gpus > 0) == (job.cpu_slots > 0):
        raise invalid(
            f"{field}.gpus",
            f"is {job.gpus} and cpu_slots {job.cpu_slots}: 1 or more of one of them is allowed",
        )
    _check_range(job.memory_mb, f"{field}.memory_mb", 0, _MOST)
    _check_range(job.iterations, f"{field}.iterations", 1, 10**12)
    if job.shares_gpus and not (job.gpus and job.memory_mb):
        raise invalid(
            f"{field}.memory_mb", "is 0: a job that shares GPUs must say how much it occupies of each"
        )
    if job.command and not job.command[0]:
        raise invalid(f"{field}.command", "has an empty program")


def demand_of(profile: pb.Profile, field: str) -> Demand:
    """The demand that a profile describes.

    Raises:
        RequestError: there are no phases, or one of them is empty, negative or overlaps the one before.
    """
    if not profile.phases:
        raise invalid(f"{field}.phases", "is empty: one or more are allowed")
    phases: list[Phase] = []
    at_ns = 0
    for number, each in enumerate(profile.phases):
        where = f"{field}.phases[{number}]"
        if each.HasField("begins_ns"):
            if each.begins_ns < at_ns:
                raise invalid(
                    f"{where}.begins_ns",
                    f"is {each.begins_ns}: it overlaps the phase before, which ends at {at_ns} ns",
                )
            if each.begins_ns > at_ns:
                phases.append(_phase(each.begins_ns - at_ns, 0, where))
        phases.append(_phase(each.duration_ns, each.bandwidth_bps, where))
        at_ns = max(at_ns, each.begins_ns) + each.duration_ns
    try:
        return Demand(tuple(phases))
    except UsageError as error:
        raise invalid(f"{field}.phases", f": {error}") from None


def profile_message(demand: Demand) -> pb.Profile:
    """The demand as a message that `demand_of` reads."""
    phases = [
        pb.Phase(duration_ns=phase.duration_ns, bandwidth_bps=phase.bandwidth_bps) for phase in demand.phases
    ]
    return pb.Profile(phases=phases)


def _phase(duration_ns: int, bandwidth_bps: int, where: str) -> Phase:
    try:
        return Phase(duration_ns, bandwidth_bps)
    except UsageError as error:
        name, _, text = str(error).partition(" ")
        raise invalid(f"{where}.{name}", text) from None


def _check_range(value: int, field: str, least: int, most: int) -> None:
    if not least <= value <= most:
        raise invalid(field, f"is {value}: {least} to {most} is allowed")
