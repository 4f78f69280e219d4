"""This process's place in its job at the host's daemon, where there is one (mltcp/daemon)."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable

from torch.distributed import PrefixStore, Store

from collectives.core.notices import rank_on_host, say_once
from collectives.core.settings import Settings
from collectives.transport.sockets import Mesh
from mltcp.core.errors import MltcpError, NotAvailableError
from mltcp.daemon.client.client import INSTANCE, NoDaemonError, Registration
from mltcp.daemon.client.membership import Membership

_KEYS = "mltcp/daemon"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._@-]+")
_LONGEST_NAME = 31


def join(settings: Settings, store: Store, rank: int, ranks: int) -> Membership | None:
    """Make this process a member of its job at the daemon; None if no daemon answers.

    What the daemon refuses is said once, and the job runs without it.

    Raises:
        NotAvailableError: it is refused, and MLTCP_STRICT is set.
    """
    registration = Registration(
        job=_name(settings.job),
        instance=_instance(store, rank),
        rank=rank,
        ranks=ranks,
        control=settings.control if settings.control_asked else "default",
    )
    try:
        return Membership(registration)
    except NoDaemonError:
        return None
    except MltcpError as error:
        if settings.strict:
            raise NotAvailableError(str(error)) from None
        say_once("daemon", f"{error}; the job runs without the daemon", rank_on_host(rank))
        return None


def pass_flows(mesh: Mesh, membership: Membership, rank: int) -> None:
    """Pass a group's connections to the daemon, each as soon as it is there."""
    mesh.when_found(lambda descriptors: _pass(descriptors, membership, rank))


def _pass(descriptors: Iterable[int], membership: Membership, rank: int) -> None:
    refused = membership.add(descriptors)
    if refused:
        message = f"mltcp: the daemon does not take {len(refused)} of the job's connections: {refused[0].why}"
        say_once("flows", message, rank_on_host(rank))


def sets_control(membership: Membership | None) -> bool:
    """Whether the daemon decides what the job's connections run under."""
    return (
        membership is not None and membership.registered is not None and membership.registered.how != "none"
    )


def _name(text: str) -> str:
    """A job's name as the daemon and the kernel take it."""
    name = _NOT_IN_NAMES.sub("-", text).lstrip("._@-")[:_LONGEST_NAME]
    return name or "job"


def _instance(store: Store, rank: int) -> str:
    """What all processes of this run, and none of another, call it; made by the first to ask."""
    if given := os.environ.get(INSTANCE):
        return given
    own = PrefixStore(_KEYS, store)
    launched = os.environ.get("TORCHELASTIC_RUN_ID", "")
    token = f"{launched[:32]}-{secrets.token_hex(4)}".lstrip("-")
    if rank == 0:
        own.set("instance", token)
        return token
    return bytes(own.get("instance")).decode()
