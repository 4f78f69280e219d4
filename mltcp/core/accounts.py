"""Accounts of this host: names, whose a connection is, and what uids without one have in common."""

from __future__ import annotations

import pwd
import socket
import struct

NAMELESS = "accounts without a name"
"""The share of all uids that no account has: a range in /etc/subuid gives a user 65,536 of them."""

_CREDENTIALS = struct.Struct("=iII")


def peer_credentials(connection: socket.socket) -> tuple[int, int, int]:
    """Pid, uid and gid of the process at the other end of a Unix socket, as the kernel has them (SO_PEERCRED, unix(7)).

    Raises:
        OSError: it is no such socket, or not connected.
    """
    pid, uid, gid = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return pid, uid, gid


def account_name(uid: int) -> str | None:
    """The name of an account of this host; None: no account has this uid."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def share_of(uid: int) -> str:
    """What a uid is counted with, where a limit is one on all: its account, or all uids without one."""
    return NAMELESS if account_name(uid) is None else f"uid {uid}"
