"""Messages on a test's control connection: four bytes of length, then so many of JSON."""

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
    """The other side is gone, or is no mltcp-bench perf."""


def pack(message: Mapping[str, Any]) -> bytes:
    """A message as it is sent."""
    body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    if len(body) > MOST_BYTES:
        raise MltcpError(f"a message of {len(body)} bytes: at most {MOST_BYTES} are allowed")
    return _LENGTH.pack(len(body)) + body


def length_of(header: bytes) -> int:
    """How many bytes follow a header.

    Raises:
        PeerError: more than any message of ours has.
    """
    length = int(_LENGTH.unpack(header)[0])
    if not 0 < length <= MOST_BYTES:
        raise PeerError("the other side is no mltcp-bench perf: its message has an impossible length")
    return length


def parse(body: bytes) -> dict[str, Any]:
    """What a message says.

    Raises:
        PeerError: it is no message of ours.
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise PeerError("the other side is no mltcp-bench perf: its message is no JSON object")
    return found


def send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """Send a message; PeerError if the other side is gone."""
    try:
        connection.sendall(pack(message))
    except OSError as error:
        raise PeerError(f"the other side is gone: {error.strerror or error}") from None


def receive(connection: socket.socket) -> dict[str, Any]:
    """The next message; PeerError if none comes."""
    return parse(_exactly(connection, length_of(_exactly(connection, HEADER_BYTES))))


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        try:
            part = connection.recv(size - len(received))
        except TimeoutError:
            raise PeerError(f"the other side says nothing for {connection.gettimeout():g} s") from None
        except OSError as error:
            raise PeerError(f"the other side is gone: {error.strerror or error}") from None
        if not part:
            raise PeerError("the other side closed the connection")
        received += part
    return received
