"""Makes a process group of ours: builds what is inside, finds its sockets, sets their congestion control."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as c10d

from collectives.core.settings import Settings
from collectives.group import job
from collectives.group.process_group import MltcpProcessGroup
from collectives.transport import congestion_control as congestion
from collectives.transport import daemon
from collectives.transport.sockets import Listeners, Mesh, new_listeners


def make_group(
    build: Callable[[], ProcessGroup | None], timeout: timedelta, name: str | None
) -> MltcpProcessGroup | None:
    """Our group around what `build` makes; None if this rank is no member.

    `name` is what the group calls itself; None: as the inner group does. Raises what `build` raises, UsageError for
    settings that cannot be, NotAvailableError for what is missing if MLTCP_STRICT is set.
    """
    # Bad settings are refused before any connection is made.
    settings = Settings.from_environment()
    congestion.check(settings.control)
    with new_listeners() as listeners:
        inner = build()
    if inner is None:
        return None
    own = job.current()
    rank, ranks = job.own_rank(inner.rank())
    own.open(settings, rank, ranks if ranks > 0 else inner.size(), inner.name(), inner.get_group_store())
    mesh = _mesh(inner, listeners, timeout)
    if mesh is not None:
        if own.membership is not None:
            daemon.pass_flows(mesh, own.membership, rank)
        if own.pacer is not None:
            mesh.when_found(own.pacer.add)
        elif not daemon.sets_control(own.membership):
            congestion.apply(mesh, settings, rank)
    return MltcpProcessGroup(inner, name or inner.name(), own.recorder, mesh)


def _mesh(inner: ProcessGroup, listeners: Listeners, timeout: timedelta) -> Mesh | None:
    """The TCP connections of the group's Gloo backend, if it has one with peers."""
    cpu = torch.device("cpu")
    if inner.size() < 2 or cpu not in inner._device_types:
        return None
    if not isinstance(inner._get_backend(cpu), dist.ProcessGroupGloo | c10d._ProcessGroupWrapper):
        return None
    return Mesh(inner.get_group_store(), inner.rank(), inner.size(), listeners, timeout)
