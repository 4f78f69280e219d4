"""What a job that Slurm holds asks for: how many GPUs of which hosts Slurm would let it have, or why it is Slurm's."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mltcp.core.errors import MltcpError, UsageError, shown
from placement.engines.engine import HeldJob
from placement.slurm.gpu_requests import ANY_TYPE, all_gpus, gpus_in
from placement.slurm.host_lists import expand
from placement.slurm.jobs import HeldSlurmJob
from placement.slurm.reports import SlurmNode

_NAME = re.compile(r"[^&|()\[\]*,!\s]+")
_TIME = "%Y-%m-%dT%H:%M:%S"


class LeftToSlurmError(MltcpError):
    """A held job cannot be placed as its user asks for it: Slurm is to run it as it likes."""


class NotYetError(MltcpError):
    """A held job may not run for now, and takes no GPUs until it may.

    Attributes:
        dependency: whether that depends on other jobs.
    """

    def __init__(self, text: str, *, dependency: bool = False) -> None:
        super().__init__(text)
        self.dependency = dependency


@dataclass(frozen=True)
class _Shape:
    """As many GPUs, of one type or any, of each of some hosts."""

    hosts: int
    per_host: int


def held_request(job: HeldSlurmJob, nodes: Mapping[str, SlurmNode], now_s: float) -> HeldJob:
    """The GPUs that a job asks for, and the hosts that Slurm would give it.

    One that asks for a total gets all of them on a host, or else whole hosts: Slurm would otherwise choose how many of
    each host it gives to such a job, and nobody would know before.

    Args:
        job: as its user asks for it now.
        nodes: Slurm's nodes by name.
        now_s: seconds since the epoch.

    Raises:
        LeftToSlurmError: that cannot be placed.
        NotYetError: it may not run yet.
    """
    _check_kind(job)
    try:
        kind, gpus_of_hosts = _hosts(job, nodes)
        shape = _shape(job, max(gpus_of_hosts.values(), default=0))
    except UsageError as error:
        raise LeftToSlurmError(str(error)) from None
    hosts = tuple(name for name, gpus in gpus_of_hosts.items() if gpus >= shape.per_host)
    if len(hosts) < shape.hosts:
        of_kind = f" of type {kind}" if kind else ""
        raise LeftToSlurmError(
            f"expected {shape.hosts} nodes with {shape.per_host} GPUs{of_kind} among those that it may use, "
            f"got {len(hosts)}"
        )
    _check_time(job, now_s)
    return HeldJob(
        str(job.number),
        job.owner,
        shape.hosts * shape.per_host,
        shape.per_host,
        hosts if len(hosts) < len(nodes) else (),
    )


def _check_kind(job: HeldSlurmJob) -> None:
    for what, says in (
        ("it is an array", job.array),
        ("it is a heterogeneous job", job.component),
        (f"its nodes are named: {shown(job.required)}", job.required),
        (f"it is for the reservation {shown(job.reservation)}", job.reservation),
        ("its dependency can never be met", "(failed)" in job.dependency),
    ):
        if says:
            raise LeftToSlurmError(what)


def _check_time(job: HeldSlurmJob, now_s: float) -> None:
    if job.dependency:
        raise NotYetError(f"it waits for its dependency {shown(job.dependency)}", dependency=True)
    try:
        begins_s = time.mktime(time.strptime(job.begins, _TIME))
    except ValueError:
        return
    if begins_s > now_s:
        raise NotYetError(f"it waits for its begin at {job.begins}")


def _shape(job: HeldSlurmJob, largest: int) -> _Shape:
    per_node, per_task = _count(job.per_node), _count(job.per_task)
    if per_socket := _count(job.per_socket):
        if not job.sockets.isdecimal():
            raise LeftToSlurmError("it asks for GPUs of each socket, and not for how many sockets")
        per_node = per_node or per_socket * int(job.sockets)
    total = _count(job.per_job) or (0 if per_node else per_task * job.tasks)
    if not per_node and not total:
        raise LeftToSlurmError("it asks for no GPUs")
    if per_node:
        return _Shape(max(job.nodes, -(-total // per_node)), per_node)
    hosts = max(job.nodes, -(-total // largest) if largest else 1)
    # Slurm says 1 for the most where a job says nothing.
    if job.nodes_most > 1 and hosts > job.nodes_most:
        raise LeftToSlurmError(f"{total} GPUs need {hosts} nodes, and it asks for {job.nodes_most} at most")
    if hosts > 1 and total != hosts * (per_task if per_task and job.tasks == hosts else largest):
        raise LeftToSlurmError(f"how many of {total} GPUs are on each of {hosts} nodes is Slurm's choice")
    return _Shape(hosts, total // hosts)


def _count(tres: str) -> int:
    return all_gpus(gpus_in(tres))


def _hosts(job: HeldSlurmJob, nodes: Mapping[str, SlurmNode]) -> tuple[str, dict[str, int]]:
    """The type of GPUs that a job asks for, and how many of them each host has that Slurm would let it use."""
    types = {
        kind for tres in (job.per_node, job.per_job, job.per_task, job.per_socket) for kind in gpus_in(tres)
    } - {ANY_TYPE}
    if len(types) > 1:
        raise LeftToSlurmError(f"it asks for GPUs of several types: {', '.join(sorted(types))}")
    kind = min(types, default=ANY_TYPE)
    partitions, excluded = set(job.partitions.split(",")) - {""}, set(expand(job.excluded))
    alternatives = _alternatives(job.features)
    found = {}
    for name, node in nodes.items():
        features = set(node.features.split(","))
        if (
            name not in excluded
            and (not node.partitions or partitions <= set(node.partitions))
            and any(each <= features for each in alternatives)
        ):
            found[name] = _gpus_of(node, kind)
    return kind, {name: gpus for name, gpus in found.items() if gpus}


def _gpus_of(node: SlurmNode, kind: str) -> int:
    """The GPUs of a type that a host has; none if it has others too, as policies do not know which is which."""
    if kind == ANY_TYPE:
        return node.gpus
    gpus = gpus_in(node.gres)
    return gpus.get(kind, 0) if gpus.keys() == {kind} else 0


def _alternatives(constraint: str) -> list[set[str]]:
    """The sets of features of which a node needs one: of ``a&b``, of ``a|b``; without a constraint the empty one."""
    if not constraint:
        return [set()]
    parts = re.split("[&|]", constraint)
    if not all(_NAME.fullmatch(each) for each in parts) or ("&" in constraint and "|" in constraint):
        raise LeftToSlurmError(f"its constraint is more than names with & or |: {shown(constraint)}")
    return [set(parts)] if "|" not in constraint else [{each} for each in parts]


def used_outside(node: SlurmNode, own: Iterable[int]) -> int:
    """How many GPUs of a node Slurm has given to jobs that are not placed here, where ours there have `own`."""
    try:
        used = all_gpus(gpus_in(node.gres_used))
    except UsageError:
        return 0
    return min(node.gpus, max(0, used - sum(own)))
