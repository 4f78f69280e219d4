"""The sockets of a gate: the one that listens, and a connection with its buffers and the identity of the peer."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mltcp.core.accounts import peer_credentials
from mltcp.core.address import Address
from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.trusted_directory import make_trusted_directory
from placement.gate.messages import RankHello, take_messages
from placement.gate.turns import GateUser

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


READ_BYTES = 4096
"""Most bytes read from one peer before the next one is served."""

MOST_UNREAD = 65536
"""A peer with more unread bytes than this is disconnected."""


@dataclass(frozen=True)
class RankIdentity:
    """The rank that a connection belongs to."""

    run: tuple[str, str, str]
    rank: int


class GateConnection:
    """A non-blocking, accepted connection.

    Attributes:
        uid: of the peer at a Unix socket (SO_PEERCRED); None over TCP.
        user: whose turns its operations take.
        since_s: when it was accepted (CLOCK_MONOTONIC).
        member: the rank that it belongs to, once that has introduced itself.
        waits_for: the operation that the rank waits for.

    Raises:
        OSError: the peer has gone.
    """

    def __init__(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        if accepted.family != socket.AF_UNIX:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = accepted
        self.uid = self._peer_uid() if accepted.family == socket.AF_UNIX else None
        self.user = (
            GateUser.at_address(accepted.getpeername()[0]) if self.uid is None else GateUser.of_uid(self.uid)
        )
        self.since_s = time.monotonic()
        self.member: RankIdentity | None = None
        self.waits_for: tuple[int, int] | None = None
        self.is_watched = False
        self._received = bytearray()
        self._unread = bytearray()

    @property
    def may_describe(self) -> bool:
        """Whether the peer is on the Unix socket and runs as root or as the gate's own user."""
        return self.uid in (0, os.getuid())

    def _peer_uid(self) -> int:
        return peer_credentials(self.socket)[1]

    def rank_of(self, hello: RankHello) -> RankIdentity:
        """The rank that a HELLO on this connection introduces. No user can name a rank of another one."""
        owner = "" if self.uid is None else self.user.name
        return RankIdentity((hello.job, hello.instance, owner), hello.rank)

    @property
    def must_write(self) -> bool:
        """Whether bytes are waiting to be sent."""
        return bool(self._unread)

    def receive(self) -> Iterator[tuple[int, bytes]]:
        """Receive, and yield the messages that are complete.

        Raises:
            ConnectionError: the peer has disconnected.
            UsageError: a message is too long.
        """
        try:
            received = self.socket.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        if not received:
            raise ConnectionResetError
        self._received += received
        yield from take_messages(self._received)

    def send(self, message: bytes) -> None:
        """Send as much of the message as the socket accepts now; `flush` sends the rest.

        Raises:
            ConnectionError: the peer has disconnected.
            UsageError: the peer has too many unread bytes.
        """
        self._unread += message
        self.flush()
        if len(self._unread) > MOST_UNREAD:
            raise UsageError(f"expected at most {MOST_UNREAD} unread bytes, got {len(self._unread)}")

    def flush(self) -> None:
        """Send as much of the waiting bytes as the socket accepts; raises ConnectionError if the peer is gone."""
        while self._unread:
            try:
                sent = self.socket.send(self._unread)
            except (BlockingIOError, InterruptedError):
                return
            del self._unread[:sent]
