"""Messages on a test's control connection: a length of four bytes, then JSON."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

from mltcp.core.errors import MltcpError

_LENGTH = struct.Struct("!I")
HEADER_BYTES = _LENGTH.size
MOST_BYTES = 1 << 16
GREETING = "mltcp-perf-1"


class PeerError(MltcpError):
    """The peer is gone, or is not an mltcp-bench perf."""


def pack(message: Mapping[str, Any]) -> bytes:
    """Encode a message."""
    body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    if len(body) > MOST_BYTES:
        raise MltcpError(f"message: expected at most {MOST_BYTES} bytes, got {len(body)}")
    return _LENGTH.pack(len(body)) + body


def length_of(header: bytes) -> int:
    """The number of bytes that follow a header.

    Raises:
        PeerError: it is 0 or exceeds the largest message.
    """
    length = int(_LENGTH.unpack(header)[0])
    if not 0 < length <= MOST_BYTES:
        raise PeerError(f"message: expected 1 to {MOST_BYTES} bytes, got {length}: not an mltcp-bench perf")
    return length


def parse(body: bytes) -> dict[str, Any]:
    """Decode a message.

    Raises:
        PeerError: it is not a JSON object.
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise PeerError("message: expected a JSON object: not an mltcp-bench perf")
    return found


def send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """Send a message; PeerError if the peer is gone."""
    try:
        connection.sendall(pack(message))
    except OSError as error:
        raise PeerError(f"the peer is gone: {error.strerror or error}") from None


def receive(connection: socket.socket) -> dict[str, Any]:
    """Receive the next message; PeerError if none comes."""
    return parse(_exactly(connection, length_of(_exactly(connection, HEADER_BYTES))))


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        try:
            part = connection.recv(size - len(received))
        except TimeoutError:
            raise PeerError(f"the peer has sent nothing for {connection.gettimeout():g} s") from None
        except OSError as error:
            raise PeerError(f"the peer is gone: {error.strerror or error}") from None
        if not part:
            raise PeerError("the peer closed the connection")
        received += part
    return received
