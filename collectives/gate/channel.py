"""One connection to a gate. The messages are described in ``placement/gate/messages.py``, the gate's own side."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Any

from mltcp.core.errors import MltcpError
from mltcp.core.trusted_directory import UnsafeDirectoryError, check_trusted_directory

VERSION = 1
HELLO, ASK, DONE = 1, 2, 3
WELCOME, GO, WAIT, REFUSED = 129, 130, 131, 132

_HEADER = Struct("<BxxxI")
_ASK = Struct("<BxxxIQQQII")
_DONE = Struct("<BxxxIQQ")
_OPERATION = Struct("<QQ")
_MOST_BYTES = 65536


class GateRefusedError(MltcpError):
    """The gate refused this rank or its message."""


class GateChannel:
    """A connection for use by one thread; every failure is an OSError or GateRefusedError.

    Args:
        address: ``unix:/path`` or ``host:port``.
        hello: fields that identify this rank to the gate.
        timeout_s: of every wait for the gate.
        socket_owner: number of the account that runs the gate at a Unix socket, if it is neither this one nor root.
    """

    def __init__(
        self, address: str, hello: Mapping[str, Any], timeout_s: float, socket_owner: int | None = None
    ) -> None:
        self._socket = _connected(address, timeout_s, socket_owner)
        self._received = b""
        try:
            body = json.dumps({"version": VERSION, **hello}).encode()
            self._socket.sendall(_HEADER.pack(HELLO, len(body)) + body)
            while self._take()[0] != WELCOME:
                pass
        except BaseException:
            self.close()
            raise

    def ask(self, group: int, number: int, nbytes: int, size: int, iterations: int) -> None:
        """Request a pass; returns when it is granted."""
        self._socket.sendall(
            _ASK.pack(ASK, _ASK.size - _HEADER.size, group, number, nbytes, size, iterations)
        )
        while True:
            kind, body = self._take()
            if kind == GO and _OPERATION.unpack(body) == (group, number):
                return

    def tell_done(self, group: int, number: int) -> None:
        """Return the pass: the operation has ended on this rank."""
        self._socket.sendall(_DONE.pack(DONE, _OPERATION.size, group, number))

    def shut(self) -> None:
        """End the connection, from any thread; a thread that waits for an answer gets an error."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this process's descriptor; the parent of a forked process may keep its own open."""
        self._socket.close()

    def _take(self) -> tuple[int, bytes]:
        """Receive the next message: its kind and body."""
        while True:
            received = self._received
            if len(received) >= _HEADER.size:
                kind, length = _HEADER.unpack_from(received)
                if length > _MOST_BYTES:
                    raise ConnectionError(f"malformed message of {length} bytes")
                end = _HEADER.size + length
                if len(received) >= end:
                    self._received = received[end:]
                    return _checked(kind, received[_HEADER.size : end])
            more = self._socket.recv(4096)
            if not more:
                raise ConnectionResetError("closed the connection")
            self._received = received + more


def _checked(kind: int, body: bytes) -> tuple[int, bytes]:
    if kind == REFUSED:
        raise GateRefusedError(body.decode(errors="replace")[:300])
    if kind == GO and len(body) != _OPERATION.size:
        raise ConnectionError(f"malformed answer of {len(body)} bytes")
    return kind, body


def _check_directory(path: str, socket_owner: int | None) -> None:
    """Check that nobody else could put a socket of his own in place of the gate's, before anything is sent."""
    try:
        check_trusted_directory(Path(path).parent, socket_owner)
    except UnsafeDirectoryError as error:
        raise GateRefusedError(
            f"{error}; another account that runs the gate: MLTCP_GATE_SOCKET_OWNER"
        ) from None
    except MltcpError as error:
        raise ConnectionError(str(error)) from None


def _connected(address: str, timeout_s: float, socket_owner: int | None) -> socket.socket:
    if address.startswith("unix:"):
        _check_directory(address.removeprefix("unix:"), socket_owner)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout_s)
            connection.connect(address.removeprefix("unix:"))
        except BaseException:
            connection.close()
            raise
        return connection
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
