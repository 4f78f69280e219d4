"""The daemon's Unix socket: connections, their packets, and the limits on both.

Everything runs on one event loop. No peer can block another: one packet is read at a time, the replies that a peer does
not read are bounded, and the requests of a user who has had a share of the time wait. Descriptors are never received
here, since to look at one and to close it may block: a process of their user does so (mltcp/daemon/descriptors).
"""

from __future__ import annotations

import asyncio
import grp
import logging
import os
import resource
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any, Protocol

from mltcp.core.errors import MltcpError, NotAvailableError, UsageError
from mltcp.daemon.client.protocol import (
    MOST_BYTES,
    MOST_DESCRIPTORS,
    REQUEST_ID,
    Fields,
    decode,
    encode,
    error_reply,
)
from mltcp.daemon.descriptors.workers import DescriptorWorkers, PassedFlows
from mltcp.daemon.jobs.limits import Limits
from mltcp.daemon.jobs.peer import Peer

_log = logging.getLogger("mltcp.daemon")

BACKLOG = 1024
_ACCEPTED_AT_ONCE = 64
MOST_UNREAD = 256
"""The number of packets that may wait for a peer that does not read; with more it is dropped."""

SECONDS_WITHOUT_DESCRIPTORS = 0.2
"""How long no connection is accepted after one could not be, for want of a descriptor."""

RESERVED_DESCRIPTORS = 128
_TELL_EVERY_S = 60.0
_PASSED_S = 0.0005
"""The daemon's time for a packet with descriptors, which another process looks at."""

Reply = Mapping[str, Any]
_CREDENTIALS = struct.Struct("=iII")


class Handler(Protocol):
    """Handles the requests of connections."""

    def handle(self, connection: Connection, fields: Fields) -> Iterable[Reply]:
        """The replies to a request without descriptors. A MltcpError becomes an error reply."""

    async def handle_passed(
        self, connection: Connection, fields: Fields, passed: PassedFlows
    ) -> Iterable[Reply]:
        """The replies to a request with descriptors. A MltcpError becomes an error reply."""

    def left(self, connection: Connection) -> None:
        """Handle the end of a connection."""


class Connection:
    """The connection of one peer."""

    def __init__(self, server: DaemonServer, accepted: socket.socket) -> None:
        self._server = server
        self._socket = accepted
        self._unread: deque[bytes] = deque()
        self._open = True
        credentials = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.peer = Peer(*_CREDENTIALS.unpack(credentials))
        self.subscribed = False
        self.busy = False

    def fileno(self) -> int:
        """The descriptor of its socket."""
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a packet, now or when the peer has read earlier ones."""
        if not self._open:
            return
        self._unread.append(encode(message))
        if len(self._unread) > MOST_UNREAD:
            self._server.drop(self, "it does not read its replies")
        else:
            self.flush()

    def flush(self) -> None:
        """Send the waiting packets until the peer's buffer is full."""
        while self._unread:
            try:
                self._socket.send(self._unread[0])
            except BlockingIOError:
                self._server.loop.add_writer(self.fileno(), self.flush)
                return
            except OSError as error:
                self._server.drop(self, f"sending fails: {error.strerror}")
                return
            self._unread.popleft()
        if self._open:
            self._server.loop.remove_writer(self.fileno())

    def receive(self) -> None:
        """Read and handle one packet."""
        if self._server.has_to_wait(self):
            return
        try:
            # Without space for descriptors, MSG_CTRUNC tells that there are some.
            packet, _, flags, _ = self._socket.recvmsg(MOST_BYTES + 1, 0, socket.MSG_PEEK)
            if flags & socket.MSG_CTRUNC:
                self._server.begin_passed(self, packet, flags)
                return
            self._socket.recv(1)  # the rest of the packet is dropped
        except BlockingIOError:
            return
        except OSError as error:
            self._server.drop(self, f"receiving fails: {error.strerror}")
            return
        if not packet:
            self._server.drop(self)
            return
        for reply in self._server.handle(self, packet, flags):
            self.send(reply)

    async def look(self, workers: DescriptorWorkers) -> PassedFlows:
        """Have the descriptors of the packet that waits received and looked at, and the packet dropped."""
        return await workers.look(self.peer, self._socket)

    def close(self, workers: DescriptorWorkers) -> bool:
        """Close the socket. False if that has to be tried again: to close what waits on it may block."""
        self._open = False
        with suppress(OSError):  # the peer sends no more from here on
            self._socket.shutdown(socket.SHUT_RD)
        if self._has_packets():
            return workers.close_connection(self.peer, self._socket)
        self._socket.close()
        return True

    def _has_packets(self) -> bool:
        """Whether packets wait. A peer that leaves replies unread resets the connection, which is told before them."""
        for _ in range(2):
            try:
                packet, _, flags, _ = self._socket.recvmsg(1, 0, socket.MSG_PEEK)
            except BlockingIOError:
                return False
            except OSError:
                continue
            return bool(packet or flags & socket.MSG_CTRUNC)
        return True


class DaemonServer:
    """Listens on a Unix socket that a group may connect to.

    Args:
        path: of the socket.
        group: that owns it; if there is no such group, every user may connect.
        handler: of the requests.
        workers: receive descriptors.
        limits: of users.
    """

    def __init__(
        self,
        path: Path,
        group: str,
        handler: Handler,
        workers: DescriptorWorkers,
        limits: Limits = Limits(),  # noqa: B008 (frozen)
    ) -> None:
        self.path = path
        self._group = group
        self._handler = handler
        self._workers = workers
        self._limits = limits
        self._tasks: set[asyncio.Task[None]] = set()
        self._unclosed: list[Connection] = []
        self._connections: set[Connection] = set()
        self._used_s: dict[int, float] = {}
        self._told_s = -inf
        self._paused: set[Connection] = set()
        self._most = _raise_descriptor_limit() - RESERVED_DESCRIPTORS
        self._listener: socket.socket | None = None
        self.loop: asyncio.AbstractEventLoop

    @property
    def connections(self) -> int:
        """The number of connections."""
        return len(self._connections)

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start to listen; the socket of an earlier daemon is replaced.

        Raises:
            NotAvailableError: the socket cannot be created.
        """
        self.loop = loop
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self.path.unlink(missing_ok=True)
            former = os.umask(0o117)
            try:
                listener.bind(os.fspath(self.path))
            finally:
                os.umask(former)
            self._open_to_group()
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            raise NotAvailableError(f"cannot listen at {self.path}: {error.strerror or error}") from None
        listener.setblocking(False)
        self._listener = listener
        loop.add_reader(listener.fileno(), self._accept)
        loop.call_later(1.0, self._next_second)

    def _open_to_group(self) -> None:
        try:
            os.chown(self.path, -1, grp.getgrnam(self._group).gr_gid)
        except KeyError:
            os.chmod(self.path, 0o666)
            _log.warning("there is no group %s: every user may connect to %s", self._group, self.path)

    def close(self) -> None:
        """Close all connections and remove the socket."""
        for connection in list(self._connections):
            self.drop(connection)
        if self._listener is not None:
            self.loop.remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
            self.path.unlink(missing_ok=True)
        self._workers.close()

    def subscribers(self) -> list[Connection]:
        """The connections that have subscribed to events."""
        return [connection for connection in self._connections if connection.subscribed]

    # -- connections -------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        """Accept connections that wait: if it were one at a time, the last would wait for requests of all before it."""
        for _ in range(_ACCEPTED_AT_ONCE):
            if self._listener is None:
                return
            try:
                accepted, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._rest(self._listener, error)
                return
            self._admit(accepted)

    def _admit(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        connection = Connection(self, accepted)
        limit = self._limit_reached(connection.peer)
        if limit:
            _log.warning("refused a connection of %s: %s", connection.peer, limit)
            with suppress(OSError):
                accepted.send(encode(error_reply(NotAvailableError(limit))))
            self._close(connection)
            return
        self._connections.add(connection)
        self.loop.add_reader(connection.fileno(), connection.receive)

    def _limit_reached(self, peer: Peer) -> str | None:
        held = [*self._connections, *self._unclosed]
        if len(held) >= self._most:
            return f"the daemon already has {self._most} connections, the limit"
        most = min(self._limits.connections or self._most, self._most // 2)
        if not peer.is_root and sum(each.peer.uid == peer.uid for each in held) >= most:
            return f"{peer.user} already has {most} connections, the limit (limits.connections)"
        return None

    def _rest(self, listener: socket.socket, error: OSError) -> None:
        """Accept nothing for a while: what waits would only fail again, at once."""
        if self.loop.time() - self._told_s > _TELL_EVERY_S:
            _log.warning("connections cannot be accepted: %s", error.strerror)
            self._told_s = self.loop.time()
        self.loop.remove_reader(listener.fileno())
        self.loop.call_later(SECONDS_WITHOUT_DESCRIPTORS, self._accept_again)

    def _accept_again(self) -> None:
        if self._listener is not None:
            self.loop.add_reader(self._listener.fileno(), self._accept)

    def drop(self, connection: Connection, why: str | None = None) -> None:
        """Close a connection, and log the reason; without one, its peer has closed it."""
        if connection not in self._connections:
            return
        if why:
            _log.warning("dropped the connection of %s: %s", connection.peer, why)
        self._connections.discard(connection)
        self._paused.discard(connection)
        self.loop.remove_reader(connection.fileno())
        self.loop.remove_writer(connection.fileno())
        self._close(connection)
        self._handler.left(connection)
        if not any(each.peer.uid == connection.peer.uid for each in self._connections):
            self._workers.end(connection.peer.uid)

    def _close(self, connection: Connection) -> None:
        if not connection.close(self._workers):
            self._unclosed.append(connection)

    # -- requests ----------------------------------------------------------------------------------------------------

    def handle(self, connection: Connection, packet: bytes, flags: int) -> list[Reply]:
        """Handle a packet without descriptors; returns the replies."""
        began_s = time.monotonic()
        asked: dict[str, int] = {}
        try:
            fields = _fields(packet, flags, asked)
            return _accepted(self._handler.handle(connection, fields), asked)
        except Exception as error:
            return _failed(error, asked, connection)
        finally:
            self._charge(connection, time.monotonic() - began_s)

    def begin_passed(self, connection: Connection, packet: bytes, flags: int) -> None:
        """Handle a packet with descriptors, and send the replies; the connection's next packets wait for that."""
        connection.busy = True
        self.loop.remove_reader(connection.fileno())
        task = self.loop.create_task(self._handle_passed(connection, packet, flags & ~socket.MSG_CTRUNC))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle_passed(self, connection: Connection, packet: bytes, flags: int) -> None:
        self._charge(connection, _PASSED_S)
        asked: dict[str, int] = {}
        try:
            replies = await self._replies_to_passed(connection, packet, flags, asked)
        except Exception as error:
            replies = _failed(error, asked, connection)
        for reply in replies:
            connection.send(reply)
        connection.busy = False
        self._listen_to(connection)

    async def _replies_to_passed(
        self, connection: Connection, packet: bytes, flags: int, asked: dict[str, int]
    ) -> list[Reply]:
        passed = await connection.look(self._workers)
        try:
            fields = _fields(packet, flags, asked)
            if passed.truncated:
                raise UsageError(f"descriptors: expected at most {MOST_DESCRIPTORS}, got more")
            return _accepted(await self._handler.handle_passed(connection, fields, passed), asked)
        except UsageError:
            await passed.set()  # closes them
            raise

    def _listen_to(self, connection: Connection) -> None:
        if connection in self._connections and not connection.busy and connection not in self._paused:
            self.loop.add_reader(connection.fileno(), connection.receive)

    def has_to_wait(self, connection: Connection) -> bool:
        """Whether the connection's user has had its time in this second; it is then read again in the next one."""
        peer = connection.peer
        if peer.is_root or self._used_s.get(peer.uid, 0.0) < self._limits.seconds:
            return False
        self._paused.add(connection)
        self.loop.remove_reader(connection.fileno())
        return True

    def _charge(self, connection: Connection, seconds: float) -> None:
        uid = connection.peer.uid
        self._used_s[uid] = self._used_s.get(uid, 0.0) + seconds

    def _next_second(self) -> None:
        if self._listener is None:
            return
        self._used_s.clear()
        paused, self._paused = self._paused, set()
        for connection in paused:
            self._listen_to(connection)
        self._unclosed = [each for each in self._unclosed if not each.close(self._workers)]
        self.loop.call_later(1.0, self._next_second)


def _fields(packet: bytes, flags: int, asked: dict[str, int]) -> Fields:
    """The fields of a request; its number is put into `asked` as soon as it is known."""
    if flags & socket.MSG_TRUNC or len(packet) > MOST_BYTES:
        raise UsageError(f"message: expected at most {MOST_BYTES} bytes, got more")
    fields = decode(packet)
    if REQUEST_ID in fields:
        asked[REQUEST_ID] = fields.whole(REQUEST_ID, 0, 1 << 53)
    return fields


def _accepted(replies: Iterable[Reply], asked: Mapping[str, int]) -> list[Reply]:
    return [{"ok": True, **asked, **reply} for reply in replies]


def _failed(error: Exception, asked: Mapping[str, int], connection: Connection) -> list[Reply]:
    if not isinstance(error, MltcpError):
        # A bug here must not end the daemon, on which all jobs of the host depend.
        _log.error("a request of %s failed", connection.peer, exc_info=error)
        error = MltcpError(f"the daemon failed: {error!r}")
    return [{**asked, **error_reply(error)}]


def _raise_descriptor_limit() -> int:
    """Raise the soft limit on descriptors to the hard limit; returns the number that may be used."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = 1 << 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(hard, 1 << 16)
