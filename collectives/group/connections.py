"""The TCP connections of a group's backends: found, and put under the job's congestion control, pacer or daemon."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, Store
from torch.distributed import distributed_c10d as c10d

from collectives.core.settings import Settings
from collectives.group import job
from collectives.transport import congestion_control as congestion
from collectives.transport import daemon, traffic_class
from collectives.transport.gloo_sockets import Mesh
from collectives.transport.nccl_sockets import NcclConnections
from collectives.transport.process_sockets import Connections, Listeners, ProcessSockets


def gloo_mesh(
    inner: ProcessGroup, listeners: Listeners, timeout: timedelta, store: Store | None = None
) -> Mesh | None:
    """The connections of the group's Gloo backend, if it has one and more than one rank.

    The ranks tell each other their listeners through `store`, or else the group's own.
    """
    cpu = torch.device("cpu")
    if inner.size() < 2 or cpu not in inner._device_types:
        return None
    if not isinstance(inner._get_backend(cpu), dist.ProcessGroupGloo | c10d._ProcessGroupWrapper):
        return None
    mesh = Mesh(store or inner.get_group_store(), inner.rank(), inner.size(), listeners, timeout)
    _manage(mesh)
    return mesh


def nccl_connections(
    inner: ProcessGroup, before: ProcessSockets, store: Store | None = None
) -> NcclConnections | None:
    """Those of the group's NCCL backend, if it has one and more than one rank; `before` the group was made."""
    if inner.size() < 2 or not any(is_nccl(inner._get_backend(each)) for each in inner._device_types):
        return None
    found = NcclConnections(store or inner.get_group_store(), inner.rank(), inner.size(), before)
    _manage(found)
    # With a bound device the communicator is there already.
    job.current().recorder.completion.run(found.after)
    return found


def acked_bytes_of(gloo: Mesh | None, nccl: NcclConnections | None) -> Callable[[], int | None]:
    """Returns the bytes acknowledged on a group's connections since they were opened, None if that is not known.

    It keeps the connections, not the group.
    """

    def acked_bytes() -> int | None:
        of_gloo = None if gloo is None else gloo.acked_bytes()
        return of_gloo if nccl is None else (of_gloo or 0) + nccl.acked_bytes()

    return acked_bytes


def is_nccl(backend: object) -> bool:
    """Whether a backend is NCCL's, in any of torch's implementations."""
    return "nccl" in str(backend.name()).lower()  # type: ignore[attr-defined]


def _manage(connections: Connections) -> None:
    """Put each connection, as soon as it is found, under whatever manages the job's."""
    own, settings = job.current(), Settings.from_environment()
    rank, _ = job.own_rank(own.rank)
    # Before the daemon has them: it may give them the priority by which it paces them.
    traffic_class.apply(connections, settings, rank)
    if own.membership is not None:
        daemon.pass_flows(connections, own.membership)
    if own.boundaries is not None:
        connections.when_found(own.boundaries.add)
    if own.pacer is not None:
        connections.when_found(own.pacer.add)
    elif not daemon.sets_control(own.membership):
        congestion.apply(connections, settings, rank)
