"""The gate server: admits the large operations of running jobs (Ada-SRSF, V-C).

One thread serves all connections with non-blocking sockets. A peer that sends an invalid message, or does not read, is
sent the reason and disconnected; other connections are unaffected.
"""

from __future__ import annotations

import hmac
import logging
import select
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from mltcp.core.accounts import NAMELESS
from mltcp.core.address import Address
from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.one_line import one_line
from mltcp.core.processes import raise_descriptor_limit
from mltcp.core.user_lines import UserLines, of_user
from placement.gate import messages
from placement.gate.connection import GateConnection, RankIdentity, listen
from placement.gate.gatekeeper import Gatekeeper, GateRun, Grant
from placement.gate.messages import GateJob, GateLinks, job_from
from placement.gate.turns import GateUser
from placement.model.job import PUBLISHED, Contention
from placement.policies.gate_state import GateState, gate_policy

_log = logging.getLogger("placement.gate")
_LINES = UserLines()
_log.addFilter(_LINES)

HEARTBEAT_S = 1.0
"""The interval of the heartbeat to waiting ranks."""

INTRODUCTION_S = 10.0
"""A peer that has not introduced itself as a rank after this time is disconnected."""

_RESERVED_DESCRIPTORS = 64
_STOP_S = 5.0


@dataclass(frozen=True)
class GateConfiguration:
    """The configuration of a gate.

    Attributes:
        address: the address to listen at.
        policy: srsf-N, ada-srsf or ada-srsf-k.
        contention: a, b and eta of the links.
        links: jobs and links described at the start; all other jobs share one link.
        token: the token that ranks must present; required if other hosts can reach the address.
        open_to_all: whether all users of the host may connect to the Unix socket.
    """

    address: Address
    policy: str = "ada-srsf"
    contention: Contention = PUBLISHED
    links: GateLinks = field(default_factory=GateLinks)
    token: str = ""
    open_to_all: bool = False


class GateServer:
    """A gate that listens once it is constructed; `run` serves in this thread, `start` in a new one.

    It should have a process of its own, because other Python threads of the process delay its answers.

    Raises:
        UsageError: the policy is unknown, or other hosts can reach the address and no token is set.
        MltcpError: the address cannot be bound.
    """

    def __init__(self, configuration: GateConfiguration) -> None:
        policy = gate_policy(configuration.policy)
        if not configuration.address.is_local and not configuration.token:
            raise UsageError(
                "address: expected unix:/path or a loopback address without a token, "
                f"got {configuration.address}"
            )
        self.configuration = configuration
        state = GateState(policy, configuration.contention, configuration.links.speeds)
        self._keeper: Gatekeeper[GateConnection] = Gatekeeper(state)
        for job in configuration.links.jobs:
            self._keeper.describe(job, time.monotonic_ns())
        self._most = raise_descriptor_limit() - _RESERVED_DESCRIPTORS
        self._connections: dict[int, GateConnection] = {}
        self._connected: Counter[GateUser] = Counter()
        self._accepts = True
        self._tasks: deque[Callable[[], None]] = deque()
        self._due_ns: int | None = None
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._closed = False
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._listener = listen(configuration.address, configuration.open_to_all)
        self._listener.setblocking(False)
        self._handlers: dict[int, Callable[[int], object]] = {}
        self._epoll = select.epoll()
        self._register(self._listener, self._accept)
        self._register(self._woken, self._run_tasks)

    def _register(self, watched: socket.socket, handler: Callable[[int], object]) -> None:
        self._handlers[watched.fileno()] = handler
        self._epoll.register(watched, select.EPOLLIN)

    @property
    def address(self) -> Address:
        """The address it listens at; for port 0, with the port that the kernel chose."""
        asked = self.configuration.address
        if asked.path is not None:
            return asked
        return Address(host=asked.host, port=self._listener.getsockname()[1])

    # -- from any thread ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Serve on a new thread until `close`."""
        self._thread = threading.Thread(target=self.run, name="mltcp-gate", daemon=True)
        self._thread.start()

    def describe(self, job: GateJob) -> None:
        """Replace the description of a job."""
        self._tasks.append(lambda: self._tell(self._keeper.describe(job, time.monotonic_ns())))
        self._rouse()

    def close(self) -> None:
        """Stop serving, and close all connections; their jobs continue ungated. Idempotent."""
        self.stop()
        if self._thread is not None:
            self._thread.join(_STOP_S)
        self._close()

    def stop(self) -> None:
        """Make `run` return; may be called from a signal handler."""
        self._stopping = True
        self._rouse()

    def _rouse(self) -> None:
        with suppress(OSError):
            self._wake.send(b"\0")

    # -- the loop ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until `stop`."""
        beat_s = time.monotonic() + HEARTBEAT_S
        try:
            while not self._stopping:
                for descriptor, events in self._epoll.poll(self._until_s(beat_s)):
                    # An earlier event of this round may have closed the connection.
                    handler = self._handlers.get(descriptor)
                    if handler is not None:
                        handler(events)
                if time.monotonic() >= beat_s:
                    beat_s = time.monotonic() + HEARTBEAT_S
                    self._beat()
                elif self._due_ns is not None and time.monotonic_ns() >= self._due_ns:
                    self._tell(self._keeper.expire(time.monotonic_ns()))
        finally:
            self._close()

    def _until_s(self, beat_s: float) -> float:
        """The seconds to the next heartbeat, or to the end of a turn that others wait for."""
        self._due_ns = self._keeper.due_ns()
        due_s = beat_s if self._due_ns is None else min(beat_s, self._due_ns / 1e9)
        return max(0.0, due_s - time.monotonic())

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for connection in list(self._connections.values()):
            connection.socket.close()
        self._connections.clear()
        self._epoll.close()
        self._listener.close()
        self._woken.close()
        self._wake.close()
        if self.configuration.address.path is not None:
            self.configuration.address.path.unlink(missing_ok=True)

    def _run_tasks(self, _: int) -> None:
        with suppress(BlockingIOError):
            self._woken.recv(4096)
        while self._tasks:
            self._tasks.popleft()()

    def _beat(self) -> None:
        self._tell(self._keeper.expire(time.monotonic_ns()))
        latest_s = time.monotonic() - INTRODUCTION_S
        for connection in list(self._connections.values()):
            if connection.waits_for is not None:
                self._send(connection, messages.message(messages.WAIT))
            elif connection.member is None and connection.since_s < latest_s:
                self._refuse(connection, f"HELLO: expected within {INTRODUCTION_S:.0f} s, got none")
        _LINES.tell(_log)
        if not self._accepts:
            self._accepts = True
            self._register(self._listener, self._accept)

    # -- connections -------------------------------------------------------------------------------------------------

    def _accept(self, _: int) -> None:
        try:
            accepted, _address = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # Until the next heartbeat: what waits would only fail again, at once.
            _log.warning("connections cannot be accepted: %s", error.strerror)
            self._accepts = False
            self._epoll.unregister(self._listener)
            return
        try:
            connection = GateConnection(accepted)
        except OSError:
            accepted.close()
            return
        limit = self._limit_reached(connection.user)
        if limit:
            _log.warning("refused a connection: %s", limit, extra=of_user(connection.user.name))
            accepted.close()
            return
        self._connections[accepted.fileno()] = connection
        self._connected[connection.user] += 1
        self._register(accepted, lambda events: self._serve(connection, events))

    def _limit_reached(self, user: GateUser) -> str | None:
        if self._connected[user] >= self._most // 2:
            return f"{user.name} already has {self._most // 2} connections, the limit"
        most = self._most - self._most // 4 if user.share == NAMELESS else self._most
        if len(self._connections) >= most:
            return f"there are {most} connections of all users, the limit"
        return None

    def _serve(self, connection: GateConnection, events: int) -> None:
        """Handle events of one connection; an error closes this connection only."""
        try:
            if events & select.EPOLLOUT:
                connection.flush()
                self._watch(connection)
            if events & ~select.EPOLLOUT:
                for kind, body in connection.receive():
                    self._handle(connection, kind, body)
                    if connection.socket.fileno() < 0:
                        return  # closed, because the answer could not be sent
        except OSError:
            self._drop(connection)
        except MltcpError as error:
            self._refuse(connection, str(error))
        except Exception as error:
            # A bug in the gate must not end the loop that serves all jobs.
            extra = of_user(connection.user.name)
            _log.exception("a message of %s failed", _who(connection), extra=extra)
            self._refuse(connection, f"the gate failed: {error!r}")

    def _watch(self, connection: GateConnection) -> None:
        """Poll for writability while bytes are waiting to be sent."""
        if connection.must_write != connection.is_watched:
            connection.is_watched = connection.must_write
            self._epoll.modify(
                connection.socket, select.EPOLLIN | (select.EPOLLOUT if connection.must_write else 0)
            )

    def _send(self, connection: GateConnection, message: bytes) -> None:
        """Send to any peer; an error closes that peer's connection instead of propagating."""
        try:
            connection.send(message)
            self._watch(connection)
        except OSError:
            self._drop(connection)
        except UsageError as error:
            self._refuse(connection, str(error))

    def _refuse(self, connection: GateConnection, why: str) -> None:
        extra = of_user(connection.user.name)
        _log.warning("dropped the connection of %s: %s", _who(connection), one_line(why), extra=extra)
        with suppress(OSError, UsageError):
            connection.send(messages.message(messages.REFUSED, why.encode()[: messages.MOST_BYTES]))
        self._drop(connection)

    def _drop(self, connection: GateConnection) -> None:
        if self._connections.pop(connection.socket.fileno(), None) is None:
            return
        del self._handlers[connection.socket.fileno()]
        self._epoll.unregister(connection.socket)
        connection.socket.close()
        self._connected[connection.user] -= 1
        if not self._connected[connection.user]:
            del self._connected[connection.user]
        member, now_ns = connection.member, time.monotonic_ns()
        if member is None:
            return
        if connection.waits_for is not None:
            self._tell(self._keeper.withdraw(member.run, member.rank, connection.waits_for, now_ns))
        self._tell(self._keeper.leave(member.run, member.rank, now_ns))

    # -- messages ----------------------------------------------------------------------------------------------------

    def _handle(self, connection: GateConnection, kind: int, body: bytes) -> None:
        if kind == messages.ASK:
            self._ask(connection, body)
        elif kind == messages.DONE:
            member = _member(connection)
            operation = messages.read_operation(body)
            self._tell(self._keeper.done(member.run, member.rank, operation, time.monotonic_ns()))
        elif kind == messages.HELLO:
            self._greet(connection, messages.read_hello(body))
        elif kind == messages.DESCRIBE:
            self._learn(connection, body)
        elif kind == messages.STATUS:
            self._answer(connection, self._status())
        else:
            raise UsageError(f"message kind: expected 1 to 5, got {kind}")

    def _ask(self, connection: GateConnection, body: bytes) -> None:
        member, ask = _member(connection), messages.read_ask(body)
        if connection.waits_for is not None:
            raise UsageError("ASK: expected one at a time, got another before the answer")
        connection.waits_for = (ask.group, ask.number)
        now_ns = time.monotonic_ns()
        self._tell(self._keeper.ask(member.run, member.rank, ask, connection, now_ns))

    def _greet(self, connection: GateConnection, hello: messages.RankHello) -> None:
        if connection.member is not None:
            raise UsageError("HELLO: expected once, got a second one")
        token = self.configuration.token
        if token and not hmac.compare_digest(hello.token.encode(), token.encode()):
            raise UsageError("token: expected the gate's token, got another")
        member = connection.rank_of(hello)
        self._keeper.enter(member.run, member.rank, connection.user)
        connection.member = member
        self._answer(connection, {"policy": self.configuration.policy})

    def _learn(self, connection: GateConnection, body: bytes) -> None:
        if not connection.may_describe:
            raise UsageError(
                "DESCRIBE: expected root or the gate's own user on its Unix socket, got another peer"
            )
        job = job_from(messages.read_object(body))
        self._tell(self._keeper.describe(job, time.monotonic_ns()))
        self._answer(connection, {"job": job.name})

    def _answer(self, connection: GateConnection, document: dict[str, Any]) -> None:
        connection.send(messages.json_message(messages.WELCOME, document))
        self._watch(connection)

    def _tell(self, going: Iterable[Grant[GateConnection]]) -> None:
        for go in going:
            if go.peer.waits_for == go.key:
                go.peer.waits_for = None
                self._send(go.peer, messages.message(messages.GO, messages.OPERATION.pack(*go.key)))

    def _status(self) -> dict[str, Any]:
        return {
            "policy": self.configuration.policy,
            "connections": len(self._connections),
            "operations": asdict(self._keeper.counts),
            "jobs": [_run_status(run) for run in self._keeper.runs[: messages.MOST_BYTES // 1024]],
        }


def _run_status(run: GateRun[GateConnection]) -> dict[str, Any]:
    operations = run.operations.values()
    return {
        "job": run.name[0],
        "ranks": len(run.connections),
        "links": list(run.job.links)[:4],
        "sending": sum(each.granted for each in operations),
        "waiting": sum(not each.granted for each in operations),
        "stalled": run.stalled,
    }


def _member(connection: GateConnection) -> RankIdentity:
    if connection.member is None:
        raise UsageError("message: expected HELLO first, got another kind")
    return connection.member


def _who(connection: GateConnection) -> str:
    member = connection.member
    return "a peer without HELLO" if member is None else f"rank {member.rank} of {one_line(member.run[0])}"
