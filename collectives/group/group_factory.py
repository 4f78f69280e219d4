"""Makes an MltcpProcessGroup: builds the inner group, and finds its connections."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from torch.distributed import ProcessGroup

from collectives.core.settings import Settings
from collectives.group import job
from collectives.group.connections import gloo_mesh, nccl_connections
from collectives.group.process_group import MltcpProcessGroup
from collectives.transport import congestion_control as congestion
from collectives.transport.process_sockets import new_listeners


def make_group(
    build: Callable[[], ProcessGroup | None],
    timeout: timedelta,
    name: str | None,
    connected: bool = True,
) -> MltcpProcessGroup | None:
    """Wrap the group that `build` makes; None if this rank is no member.

    Args:
        build: makes the inner group; its errors are passed on.
        timeout: of the exchange of socket addresses between the ranks.
        name: backend name of the new group; None: that of the inner group.
        connected: whether its ranks are connected; else they are once it is reconfigured.

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
    mesh = gloo_mesh(inner, listeners, timeout) if connected else None
    nccl = nccl_connections(inner, listeners.before) if connected else None
    admission = None if own.coordination is None else own.coordination.admission
    group = MltcpProcessGroup(inner, name or inner.name(), own.recorder, mesh, nccl, admission)
    group.listeners = listeners
    return group
