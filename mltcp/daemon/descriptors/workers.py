"""The daemon's side of the processes that receive descriptors: one for each user who passes any.

There are so many in all. One that has nothing to do ends after `IDLE_S`, or when another user needs one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mltcp.core.errors import MltcpError, NotAvailableError
from mltcp.core.user_lines import of_user
from mltcp.daemon.descriptors.worker import MOST_BYTES, STARTED
from mltcp.daemon.jobs.flows import FlowSettings, FoundFlow, RefusedFlow
from mltcp.daemon.jobs.job import Peer
from mltcp.daemon.jobs.job_table import Limits
from mltcp.pacing.sock_diag import FlowKey

_log = logging.getLogger("mltcp.daemon")

LONGEST_S = 2.0
"""How long a request waits for the process once that has started; longer only if its descriptors block."""

LONGEST_START_S = 2.5
"""How long it waits before for the start of the process. Clients wait 5 s in all."""

IDLE_S = 10.0
"""How long a process without work stays."""

MOST_OF_USER = 2
"""Processes of a user, of which all but one are ending. One that is blocked does not end."""

_LONGEST_END_S = 1.0
_MODULE = "mltcp.daemon.descriptors.worker"
_NO_MAP = -1


class BlockedError(MltcpError):
    """A descriptor that the user has passed blocks the process that looks at it."""


class NoWorkerError(NotAvailableError):
    """There is no process for the descriptors of a user, which are still on their connection."""


@dataclass(frozen=True)
class PassedFlows:
    """The descriptors of one packet, which are open in the process of their user until :meth:`set`.

    Attributes:
        found: those that are TCP connections; `refused`: the others.
        truncated: whether there were more than may be passed.
    """

    worker: _Worker
    task: int
    found: tuple[FoundFlow, ...]
    refused: tuple[RefusedFlow, ...]
    truncated: bool

    @property
    def count(self) -> int:
        """The number of descriptors."""
        return len(self.found) + len(self.refused)

    async def set(self, settings: Sequence[FlowSettings] = ()) -> list[RefusedFlow]:
        """Set up connections and close all descriptors; returns those on which something could not be set.

        Raises:
            BlockedError: one blocks.
        """
        self.worker.held.discard(self.task)
        reply = await self.worker.ask(
            {"task": self.task, "do": "set", "settings": [vars(each) for each in settings]}
        )
        return [RefusedFlow(**each) for each in reply["refused"]]


class DescriptorWorkers:
    """The processes of all users. The packets of a user are to be looked at one after the other.

    Args:
        tags_map: the descriptor of the map of sockets' jobs of the loaded controls, if there are any.
        most: processes in all, those that are blocked included.
    """

    def __init__(self, tags_map: int | None = None, most: int = Limits().workers) -> None:
        self._most = most
        self._tags_map = _NO_MAP if tags_map is None else tags_map
        self._workers: dict[int, _Worker] = {}
        self._ended: list[_Worker] = []

    async def look(self, peer: Peer, connection: socket.socket) -> PassedFlows:
        """Receive the descriptors of the packet that waits on a connection, and look at them.

        Raises:
            BlockedError: one of these, or of earlier ones of this user, blocks.
            NoWorkerError: there are as many processes as there may be.
        """
        worker = self._worker(peer)
        task = worker.next_task()
        reply = await worker.ask({"task": task, "do": "look"}, connection)
        worker.held.add(task)
        found = tuple(FoundFlow(**{**each, "key": _key(each["key"])}) for each in reply["found"])
        refused = tuple(RefusedFlow(**each) for each in reply["refused"])
        return PassedFlows(worker, task, found, refused, reply["truncated"])

    def close_connection(self, peer: Peer, connection: socket.socket) -> bool:
        """Close a connection with the packets that wait on it; False, and still open, if that has to be tried again.

        What they carry is closed by whoever closes the connection last: the process, which is told to after the daemon.
        """
        try:
            worker = self._worker(peer)
        except NoWorkerError:
            return False
        if not worker.tell({"do": "keep"}, connection):
            return False
        connection.close()
        # Without space for this message, the next one does: the process closes what it keeps on any.
        worker.tell({"do": "close"})
        return True

    def end(self, uid: int) -> None:
        """End the process of a user who has no connection any more."""
        worker = self._workers.pop(uid, None)
        if worker is not None:
            worker.close()
            self._ended.append(worker)
        self._forget_ended()

    def end_idle(self) -> None:
        """End the processes that have had nothing to do for a while; to be called about once a second."""
        latest_s = time.monotonic() - IDLE_S
        for uid, worker in list(self._workers.items()):
            if worker.is_idle and worker.used_s < latest_s:
                self.end(uid)
        self._forget_ended()

    def _forget_ended(self) -> None:
        self._ended = [each for each in self._ended if not each.is_gone()]

    @property
    def count(self) -> int:
        """The number of processes, those that are ending included."""
        return len(self._workers) + len(self._ended)

    def close(self) -> None:
        """End all processes. One that is blocked ends when it is not any more."""
        for uid in list(self._workers):
            self.end(uid)
        for worker in self._ended:
            worker.is_gone(_LONGEST_END_S)

    def _worker(self, peer: Peer) -> _Worker:
        worker = self._workers.get(peer.uid)
        if worker is not None and worker.has_ended:
            self.end(peer.uid)
            worker = None
        if worker is None:
            self._make_space(peer)
            worker = self._workers[peer.uid] = _Worker(peer, self._tags_map)
        return worker

    def _make_space(self, peer: Peer) -> None:
        """Make space for a process of a user, by the end of one that has been idle for the longest.

        Raises:
            NoWorkerError: there is none.
        """
        self._forget_ended()
        if sum(each.uid == peer.uid for each in self._ended) >= MOST_OF_USER:
            raise NoWorkerError(f"descriptors: those that {peer.user} has passed before still block")
        most = peer.part_of(self._most, self.count)
        if self.count < most:
            return
        idle = [each for each in self._workers.values() if each.is_idle]
        if not idle or self.count >= 2 * most:
            raise NoWorkerError(
                f"descriptors: {most} processes already take those of users, the limit (limits.workers)"
            )
        self.end(min(idle, key=lambda each: each.used_s).uid)


class _Worker:
    def __init__(self, peer: Peer, tags_map: int) -> None:
        self.uid = peer.uid
        self.used_s = time.monotonic()
        self.held: set[int] = set()
        """The tasks whose descriptors are open there."""
        self._user = peer.user
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._last_task = 0
        self._blocked = False
        self.has_ended = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            passed = [theirs.fileno()] + ([tags_map] if tags_map != _NO_MAP else [])
            # -P: the daemon's working directory is no place for modules.
            command = [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno()), str(tags_map)]
            self._process = subprocess.Popen(command, pass_fds=passed, stdin=subprocess.DEVNULL)
        self._socket = ours
        self._loop.add_reader(ours.fileno(), self._receive)

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing to do, and holds no descriptors."""
        return not (self._waiting or self.held or self._blocked)

    def next_task(self) -> int:
        self._last_task += 1
        return self._last_task

    async def ask(
        self, message: Mapping[str, Any], connection: socket.socket | None = None
    ) -> dict[str, Any]:
        """Send a task, with a connection; returns the answer. Raises BlockedError if there is none in time."""
        if self._blocked:
            raise self._error()
        answer = self._waiting[message["task"]] = self._loop.create_future()
        try:
            if not self.tell(message, connection):
                raise self._error()
            if not self._started.done():
                await asyncio.wait([self._started], timeout=LONGEST_START_S)
            # Not a time-out that cancels: where the loop is late, the answer may be there when the time is up.
            await asyncio.wait([answer], timeout=LONGEST_S)
            if not answer.done():
                self._blocked = True
                _log.warning(
                    "descriptors of %s block: no further ones are taken as long as they do",
                    self._user,
                    extra=of_user(self._user),
                )
                raise self._error()
            found: dict[str, Any] = json.loads(answer.result())
            return found
        finally:
            self._waiting.pop(message["task"], None)

    def tell(self, message: Mapping[str, Any], connection: socket.socket | None = None) -> bool:
        """Send a message, with a connection; False if there is no space for it."""
        self.used_s = time.monotonic()
        descriptors = [] if connection is None else [connection.fileno()]
        try:
            socket.send_fds(self._socket, [json.dumps(message).encode()], descriptors)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Let the process end, as soon as it is not blocked; idempotent."""
        if self.has_ended:
            return
        self.has_ended = True
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._end_start()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(self._error())

    def is_gone(self, within_s: float = 0.0) -> bool:
        """Whether the process has ended, which is waited for unless it is blocked."""
        if within_s and not self._blocked:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(within_s)
        return self._process.poll() is not None

    def _receive(self) -> None:
        try:
            packet = self._socket.recv(MOST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            _log.warning(
                "the process that takes descriptors of %s has ended", self._user, extra=of_user(self._user)
            )
            self.close()
            return
        self._blocked = False
        if packet == STARTED:
            self._end_start()
            return
        number, _, text = packet.partition(b" ")
        answer = self._waiting.get(int(number))
        if answer is not None and not answer.done():
            answer.set_result(text)  # read by who asked, whose user is charged for that
        elif "found" in json.loads(text):
            # Nobody waits for it any more; its descriptors are to be closed.
            self.tell({"task": int(number), "do": "set", "settings": []})

    def _end_start(self) -> None:
        if not self._started.done():
            self._started.set_result(None)

    def _error(self) -> BlockedError:
        return BlockedError(
            f"descriptors: one that {self._user} has passed blocks; none is taken as long as it does"
        )


def _key(parts: Mapping[str, Any]) -> FlowKey:
    return FlowKey(parts["family"], tuple(parts["local"]), tuple(parts["remote"]), parts["cookie"])
