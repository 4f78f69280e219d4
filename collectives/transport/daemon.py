"""Registers this process and its connections at the host's daemon, if there is one (mltcp/daemon)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from collectives.core.notices import rank_on_host, warn_once
from collectives.core.settings import Settings
from collectives.transport.process_sockets import Connections
from mltcp.core.errors import MltcpError, NotAvailableError
from mltcp.daemon.client.client import INSTANCE, NoDaemonError, Refused, Registration, socket_path
from mltcp.daemon.client.membership import Membership

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._@-]+")
_LONGEST_NAME = 31


def join(settings: Settings, run: Callable[[], str], rank: int, ranks: int) -> Membership | None:
    """Register this process as a member of its job; None if no daemon answers, or if it refuses, which is logged.

    Args:
        settings: of this process.
        run: returns the identifier of this run; not called where no daemon has ever run.
        rank, ranks: of this process in the job, and of the job.

    Raises:
        NotAvailableError: the daemon refuses, and MLTCP_STRICT is set.
    """
    path = socket_path()
    if path is None or not path.parent.is_dir():
        return None
    registration = Registration(
        job=_name(settings.job),
        instance=os.environ.get(INSTANCE) or run(),
        rank=rank,
        ranks=ranks,
        control=settings.control if settings.control_asked else "default",
    )
    try:
        return Membership(registration, on_refused=lambda refused: _tell_refused(refused, rank))
    except NoDaemonError:
        return None
    except MltcpError as error:
        if settings.strict:
            raise NotAvailableError(str(error)) from None
        warn_once("daemon", f"{error}; the job runs without the daemon", rank_on_host(rank))
        return None


def pass_flows(connections: Connections, membership: Membership) -> None:
    """Have a group's connections passed to the daemon, each as soon as it is found, without waiting for that."""
    connections.when_found(membership.add)


def _tell_refused(refused: tuple[Refused, ...], rank: int) -> None:
    message = f"mltcp: the daemon refused {len(refused)} of the job's connections: {refused[0].why}"
    warn_once("flows", message, rank_on_host(rank))


def sets_control(membership: Membership | None) -> bool:
    """Whether the daemon sets the congestion control of the job's connections."""
    return (
        membership is not None and membership.registered is not None and membership.registered.how != "none"
    )


def _name(text: str) -> str:
    """The job's name in the form that the daemon and the kernel accept."""
    name = _NOT_IN_NAMES.sub("-", text).lstrip("._@-")[:_LONGEST_NAME]
    return name or "job"
