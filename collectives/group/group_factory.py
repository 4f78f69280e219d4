"""Makes an MltcpProcessGroup: builds the inner group, finds its sockets, sets their congestion control."""

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
    """Wrap the group that `build` makes; None if this rank is no member.

    Args:
        build: makes the inner group; its errors are passed on.
        timeout: of the exchange of socket addresses between the ranks.
        name: backend name of the new group; None: that of the inner group.

    Raises:
        UsageError: a setting is invalid.
        NotAvailableError: the host lacks something and MLTCP_STRICT is set.
    """
    # Invalid settings are refused before any connection is made.
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
    admission = None if own.coordination is None else own.coordination.admission
    return MltcpProcessGroup(inner, name or inner.name(), own.recorder, mesh, admission)


def _mesh(inner: ProcessGroup, listeners: Listeners, timeout: timedelta) -> Mesh | None:
    """The TCP connections of the group's Gloo backend, if it has one and more than one rank."""
    cpu = torch.device("cpu")
    if inner.size() < 2 or cpu not in inner._device_types:
        return None
    if not isinstance(inner._get_backend(cpu), dist.ProcessGroupGloo | c10d._ProcessGroupWrapper):
        return None
    return Mesh(inner.get_group_store(), inner.rank(), inner.size(), listeners, timeout)
