"""The daemon's Unix socket: connections, their packets, and the limits on both.

Everything runs on one event loop. No peer can block another: one packet is read at a time, the replies that a peer does
read are bounded, and requests of a user who has had a share of the time wait. Descriptors are never received here,
since to look at one and to close it may block: a process of their user does so (mltcp/daemon/descriptors), for one
packet of the user at a time.
"""

from __future__ import annotations

import asyncio
import grp
import logging
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Awaitable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Protocol

from mltcp.core.accounts import peer_credentials
from mltcp.core.address import Address
from mltcp.core.errors import MltcpError, NotAvailableError, UsageError
from mltcp.core.processes import raise_descriptor_limit
from mltcp.core.trusted_directory import make_trusted_directory
from mltcp.core.user_lines import of_user
from mltcp.daemon.client.protocol import (
    MOST_BYTES,
    MOST_DESCRIPTORS,
    REQUEST_ID,
    Fields,
    decode,
    encode,
    error_reply,
)
from mltcp.daemon.descriptors.workers import DescriptorWorkers, NoWorkerError, PassedFlows
from mltcp.daemon.jobs.attachments import most_attached
from mltcp.daemon.jobs.job import Peer
from mltcp.daemon.jobs.job_table import Limits
from mltcp.daemon.service.user_share import UserShare, metered

_log = logging.getLogger("mltcp.daemon")

BACKLOG = 1024
_ACCEPTED_AT_ONCE = 16
MOST_UNREAD = 256
"""The number of packets that may wait for a peer that does not read; with more it is dropped."""

SECONDS_WITHOUT_DESCRIPTORS = 0.2
"""How long no connection is accepted after one could not be, for want of a descriptor."""

RESERVED_DESCRIPTORS = 128
_TELL_EVERY_S = 60.0
_SHORTEST_WAIT_S = 0.001

Reply = Mapping[str, Any]


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
        self.peer = Peer(*peer_credentials(accepted))
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
        """Read and handle one packet, unless the user has to wait."""
        if not self._server.has_to_wait(self):
            self.serve()

    def serve(self) -> None:
        """Read and handle one packet."""
        try:
            # Without space for descriptors, MSG_CTRUNC tells that there are some.
            packet, _, flags, _ = self._socket.recvmsg(MOST_BYTES + 1, 0, socket.MSG_PEEK)
            if flags & socket.MSG_CTRUNC:
                if not self._server.has_to_wait_to_pass(self):
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
        self._connected: Counter[int] = Counter()
        self._shares: dict[int, UserShare[Connection]] = {}
        self._nameless: UserShare[Connection] = UserShare(2 * limits.seconds)
        self._told_s = -inf
        self._most = raise_descriptor_limit() - RESERVED_DESCRIPTORS - 2 * most_attached()
        self._listener: socket.socket | None = None
        self._inode = 0
        self.loop: asyncio.AbstractEventLoop

    @property
    def connections(self) -> int:
        """The number of connections."""
        return len(self._connections)

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start to listen; the socket of an earlier daemon is replaced.

        Raises:
            UnsafeDirectoryError: another account controls the directory of the socket.
            MltcpError: another process listens there.
            NotAvailableError: the socket cannot be created.
        """
        self.loop = loop
        make_trusted_directory(self.path.parent, 0o755)
        Address(path=self.path).check_free()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.path.unlink(missing_ok=True)
            former = os.umask(0o117)
            try:
                listener.bind(os.fspath(self.path))
            finally:
                os.umask(former)
            self._open_to_group()
            listener.listen(BACKLOG)
            self._inode = self.path.stat().st_ino
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
            # Another process may have put its own in the place of this one.
            with suppress(FileNotFoundError):
                if self.path.stat().st_ino == self._inode:
                    self.path.unlink()
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
            _log.warning(
                "refused a connection of %s: %s",
                connection.peer,
                limit,
                extra=of_user(connection.peer.user),
            )
            with suppress(OSError):
                accepted.send(encode(error_reply(NotAvailableError(limit))))
            self._close(connection)
            return
        self._connections.add(connection)
        self._connected[connection.peer.uid] += 1
        self.loop.add_reader(connection.fileno(), connection.receive)

    def _limit_reached(self, peer: Peer) -> str | None:
        in_all = len(self._connections) + len(self._unclosed)
        part = peer.part_of(self._most, in_all)
        if in_all >= part:
            return f"the daemon already has {part} connections, the limit of all"
        most = min(self._limits.connections or self._most, self._most // 2)
        held = self._connected[peer.uid] + sum(each.peer.uid == peer.uid for each in self._unclosed)
        if not peer.is_root and held >= most:
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
            peer = connection.peer
            _log.warning("dropped the connection of %s: %s", peer, why, extra=of_user(peer.user))
        self._connections.discard(connection)
        self._connected[connection.peer.uid] -= 1
        self.loop.remove_reader(connection.fileno())
        self.loop.remove_writer(connection.fileno())
        self._close(connection)
        self._handler.left(connection)
        if not self._connected[connection.peer.uid]:
            del self._connected[connection.peer.uid]
            self._workers.end(connection.peer.uid)

    def _close(self, connection: Connection) -> None:
        if not connection.close(self._workers):
            self._unclosed.append(connection)

    # -- requests ----------------------------------------------------------------------------------------------------

    def handle(self, connection: Connection, packet: bytes, flags: int) -> list[Reply]:
        """Handle a packet without descriptors; returns the replies."""
        began_s = time.thread_time()
        asked: dict[str, int] = {}
        try:
            fields = _fields(packet, flags, asked)
            return _accepted(self._handler.handle(connection, fields), asked)
        except Exception as error:
            return _failed(error, asked, connection)
        finally:
            self._charge(connection, time.thread_time() - began_s)

    def begin_passed(self, connection: Connection, packet: bytes, flags: int) -> None:
        """Handle a packet with descriptors, and send the replies; the connection's next packets wait for that."""
        connection.busy = True
        self._share(connection).passing = True
        self.loop.remove_reader(connection.fileno())
        handling = self._handle_passed(connection, packet, flags & ~socket.MSG_CTRUNC)
        task = self.loop.create_task(_run(metered(handling, partial(self._charge, connection))))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle_passed(self, connection: Connection, packet: bytes, flags: int) -> None:
        asked: dict[str, int] = {}
        left = False
        try:
            replies = await self._replies_to_passed(connection, packet, flags, asked)
        except Exception as error:
            replies = _failed(error, asked, connection)
            left = isinstance(error, NoWorkerError)
        for reply in replies:
            connection.send(reply)
        if left:
            self.drop(connection, "its descriptors cannot be taken")
        connection.busy = False
        self._let_next_pass(self._share(connection))
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
        if connection in self._connections and not connection.busy:
            self.loop.add_reader(connection.fileno(), connection.receive)

    # -- users' time -------------------------------------------------------------------------------------------------

    def _share(self, connection: Connection) -> UserShare[Connection]:
        peer = connection.peer
        share = self._shares.get(peer.uid)
        if share is None:
            seconds = None if peer.is_root else self._limits.seconds
            of_all = self._nameless if peer.is_nameless else None
            share = self._shares[peer.uid] = UserShare(seconds, of_all=of_all)
        return share

    def _charge(self, connection: Connection, used_s: float) -> None:
        self._share(connection).charge(used_s, self.loop.time())

    def has_to_wait(self, connection: Connection) -> bool:
        """Whether the connection's user has had its time; it is then served in its turn."""
        share = self._share(connection)
        if not share.waiting and not share.wait_s(self.loop.time()):
            return False
        self._wait(connection, share)
        return True

    def has_to_wait_to_pass(self, connection: Connection) -> bool:
        """Whether descriptors of the connection's user are being handled; these are then in their turn."""
        share = self._share(connection)
        if share.passing:
            share.to_pass.append(connection)
            self.loop.remove_reader(connection.fileno())
        return share.passing

    def _let_next_pass(self, share: UserShare[Connection]) -> None:
        share.passing = False
        if share.to_pass:
            self._wait(share.to_pass.popleft(), share)

    def _wait(self, connection: Connection, share: UserShare[Connection]) -> None:
        """Serve a connection when its user's time allows it."""
        share.waiting.append(connection)
        self.loop.remove_reader(connection.fileno())
        if len(share.waiting) == 1:
            self._serve_later(share)

    def _serve_later(self, share: UserShare[Connection]) -> None:
        wait_s = share.wait_s(self.loop.time())
        self.loop.call_later(max(wait_s, _SHORTEST_WAIT_S) if wait_s else 0.0, self._serve_first, share)

    def _serve_first(self, share: UserShare[Connection]) -> None:
        """Serve the first connection that waits, if its user's time allows it; the others are looked at later."""
        if share.waiting and not share.wait_s(self.loop.time()):
            connection = share.waiting.popleft()
            if connection in self._connections:
                self._listen_to(connection)
                connection.serve()  # which may put it into a queue
        if share.to_pass and not share.passing:
            share.waiting.append(share.to_pass.popleft())
        if share.waiting:
            self._serve_later(share)

    def _next_second(self) -> None:
        if self._listener is None:
            return
        now_s = self.loop.time()
        self._shares = {uid: share for uid, share in self._shares.items() if not share.is_idle(now_s)}
        self._unclosed = [each for each in self._unclosed if not each.close(self._workers)]
        self._workers.end_idle()
        self.loop.call_later(1.0, self._next_second)


async def _run(awaitable: Awaitable[None]) -> None:
    await awaitable


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
        peer = connection.peer
        _log.error("a request of %s failed", peer, exc_info=error, extra=of_user(peer.user))
        error = MltcpError(f"the daemon failed: {error!r}")
    return [{**asked, **error_reply(error)}]
