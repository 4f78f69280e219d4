"""One connection of a gate: what has arrived of a message, what a peer has not read yet, and who the peer is."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

from mltcp.core.errors import UsageError
from placement.gate.messages import Hello, take_messages

READ_BYTES = 4096
"""So much of one peer is read before it is the next one's turn."""

MOST_UNREAD = 65536
"""So many bytes may wait for a peer that does not read; then it is dropped."""

_CREDENTIALS = Struct("=iII")


@dataclass(frozen=True)
class RankIdentity:
    """The rank that a connection belongs to."""

    run: tuple[str, str]
    rank: int

    @classmethod
    def of(cls, hello: Hello) -> RankIdentity:
        """The rank that says this."""
        return cls((hello.job, hello.instance), hello.rank)


class GateConnection:
    """A connection that was accepted; nothing of it blocks."""

    def __init__(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        if accepted.family != socket.AF_UNIX:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = accepted
        self.member: RankIdentity | None = None
        self.waits_for: tuple[int, int] | None = None
        self.is_watched = False
        self._received = bytearray()
        self._unread = bytearray()

    @property
    def may_describe(self) -> bool:
        """Whether the peer runs as the gate does, or as root, so far as the kernel says."""
        if self.socket.family != socket.AF_UNIX:
            return False
        found = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return _CREDENTIALS.unpack(found)[1] in (0, os.getuid())

    @property
    def must_write(self) -> bool:
        """Whether something waits until the peer reads."""
        return bool(self._unread)

    def receive(self) -> Iterator[tuple[int, bytes]]:
        """The messages that are complete now.

        Raises:
            ConnectionError: the peer has gone.
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
        """Send it now, or as much as the peer takes, and the rest in `flush`.

        Raises:
            ConnectionError: the peer has gone.
            UsageError: it does not read.
        """
        self._unread += message
        self.flush()
        if len(self._unread) > MOST_UNREAD:
            raise UsageError("does not read what it is sent")

    def flush(self) -> None:
        """Send what waits, as far as the peer takes it; ConnectionError if it has gone."""
        while self._unread:
            try:
                sent = self.socket.send(self._unread)
            except (BlockingIOError, InterruptedError):
                return
            del self._unread[:sent]
