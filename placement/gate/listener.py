"""The listening socket of a gate server."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from mltcp.core.address import Address
from mltcp.core.errors import MltcpError
from mltcp.core.trusted_directory import make_trusted_directory

_BACKLOG = 1024


def listen(address: Address, open_to_all: bool) -> socket.socket:
    """A socket that listens at the address.

    A Unix socket, and its directory if that does not exist yet, is accessible to its owner only, or to all users of
    the host with `open_to_all`. The socket file of a gate that was killed is replaced.

    Raises:
        UnsafeDirectoryError: another account controls the directory of the socket.
        MltcpError: the address cannot be bound, or another process listens there.
    """
    if address.path is not None:
        make_trusted_directory(address.path.parent, 0o755 if open_to_all else 0o700)
    address.check_free()
    try:
        return _listen_at_path(address.path, open_to_all) if address.path else _listen_at_port(address)
    except OSError as error:
        raise MltcpError(f"cannot listen at {address}: {error.strerror or error}") from None


def _listen_at_path(path: Path, open_to_all: bool) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        former = os.umask(0o111 if open_to_all else 0o177)
        try:
            listener.bind(os.fspath(path))
        finally:
            os.umask(former)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _listen_at_port(address: Address) -> socket.socket:
    family, kind, protocol, _, endpoint = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(endpoint)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
