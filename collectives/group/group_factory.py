"""Makes an MltcpProcessGroup: builds the inner group, and finds its connections."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import ProcessGroup

from collectives.core.notices import warn_once
from collectives.core.settings import Settings
from collectives.group import job
from collectives.group.connections import gloo_mesh, nccl_connections
from collectives.group.process_group import MltcpProcessGroup
from collectives.transport import congestion_control as congestion
from collectives.transport.process_sockets import new_listeners
from mltcp.core.errors import NotAvailableError


def make_group(
    build: Callable[[bool], ProcessGroup | None],
    timeout: timedelta,
    name: str | None,
    connected: bool = True,
) -> MltcpProcessGroup | None:
    """Wrap the group that `build` makes; None if this rank is no member.

    Args:
        build: makes the inner group, told whether another thread makes one now; its errors are passed on.
        timeout: of it all; what making the inner group has taken is no longer there for the exchange of addresses.
        name: backend name of the new group; None: that of the inner group.
        connected: whether its ranks are connected; else they are once it is reconfigured.

    Raises:
        UsageError: a setting is invalid.
        NotAvailableError: the host lacks something and MLTCP_STRICT is set.
    """
    # Invalid settings are refused before any connection is made.
    settings = Settings.from_environment()
    congestion.check(settings.control)
    until_s = time.monotonic() + timeout.total_seconds()
    with new_listeners() as listeners:
        inner = build(listeners.mixed)
    if inner is None:
        return None
    own = job.current()
    rank, ranks = job.own_rank(inner.rank())
    own.open(settings, rank, ranks if ranks > 0 else inner.size(), inner.name(), inner.get_group_store())
    if listeners.mixed:
        _tell_mixed(settings, rank)
    left = timedelta(seconds=max(0.0, until_s - time.monotonic()))
    mesh = gloo_mesh(inner, listeners, left) if connected else None
    nccl = nccl_connections(inner, listeners.before) if connected else None
    admission = None if own.coordination is None else own.coordination.admission
    group = MltcpProcessGroup(inner, name or inner.name(), own.recorder, mesh, nccl, admission)
    group.listeners = listeners
    return group


def _tell_mixed(settings: Settings, rank: int) -> None:
    message = (
        "mltcp: two threads make process groups at the same time: their connections cannot be told apart"
    )
    if settings.strict:
        raise NotAvailableError(message)
    warn_once("mixed", f"{message}, and are left as they are", rank)
