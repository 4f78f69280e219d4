"""The server of ``mltcp-bench perf``: accepts connections, and starts one process for each test.

The first message on a connection says whether it is a test's control connection or one of its data connections. No read
blocks, and a connection without a valid first message is dropped after a few seconds.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from bench.perf import messages
from bench.perf.messages import GREETING, HEADER_BYTES, PeerError
from bench.perf.plan import PerfPlan
from bench.perf.side import Connections, needs_ecn, notice_loss, set_control
from mltcp.core.errors import MltcpError, UsageError
from mltcp.pacing.tcp_info import congestion_control

MOST_TESTS = 32
MOST_GREETING = 512
PATIENCE_S = 10.0
WITHOUT_ECN = ("reno", "dctcp-reno")
"""What connections without ECN have under a control that needs it: ours, the kernel's."""

Say = Callable[[str], None]


@dataclass
class _PendingConnection:
    """A connection whose first message has not been received yet."""

    connection: socket.socket
    address: str
    since_s: float
    received: bytes = b""


@dataclass
class _Test:
    """A test that waits for its data connections."""

    plan: PerfPlan
    control: socket.socket
    address: str
    since_s: float
    asks_for_ecn: bool
    data: dict[tuple[str, int], socket.socket] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        return len(self.data) == len(self.plan.directions) * self.plan.flows

    def connections(self) -> Connections:
        return {
            name: [self.data[name, flow] for flow in range(self.plan.flows)] for name in self.plan.directions
        }


class PerfServer:
    """A listening server.

    Args:
        address: to bind to; None: all addresses, IPv4 and IPv6.
        port: of TCP.
        say: called with one line for each event of a test.

    Raises:
        MltcpError: the address is in use, or does not belong to this host.
    """

    def __init__(self, address: str | None, port: int, say: Say) -> None:
        self._say = say
        self._listener = _listener(address, port)
        self._host_control = congestion_control(self._listener.fileno())
        self._lent: set[str] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._pending: dict[int, _PendingConnection] = {}
        self._tests: dict[str, _Test] = {}
        self._running: list[tuple[subprocess.Popen[bytes], str]] = []
        self._served = 0

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return int(self._listener.getsockname()[1])

    def serve(self, tests: int | None = None) -> None:
        """Serve until this number of tests has ended; None: for ever."""
        try:
            while tests is None or self._served < tests:
                for key, _ in self._selector.select(0.2):
                    if key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._read(self._pending[key.fd])
                self._drop_expired()
                self._reap()
        finally:
            self.close()

    def close(self) -> None:
        """Close all connections and kill the processes of running tests."""
        for process, _ in self._running:
            process.kill()
            process.wait()
        for pending in list(self._pending.values()):
            self._forget(pending)
            pending.connection.close()
        for token in list(self._tests):
            self._abandon(token, None)
        self._selector.close()
        self._listener.close()

    # -- new connections -----------------------------------------------------------------------------------------

    def _accept(self) -> None:
        with suppress(OSError, UsageError):
            connection, address = self._listener.accept()
            if len(self._pending) >= MOST_GREETING:
                connection.close()
                return
            if congestion_control(connection.fileno()) in self._lent:
                set_control(connection, self._host_control)
            connection.setblocking(False)
            pending = _PendingConnection(connection, _shown(address), time.monotonic())
            self._pending[connection.fileno()] = pending
            self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, pending: _PendingConnection) -> None:
        """Read no more than the first message: the process of the test reads the rest."""
        try:
            wanted = HEADER_BYTES
            if len(pending.received) >= HEADER_BYTES:
                wanted += messages.length_of(pending.received[:HEADER_BYTES])
            part = pending.connection.recv(wanted - len(pending.received))
            if not part:
                raise PeerError("it closed the connection without a message")
            pending.received += part
            if len(pending.received) == wanted > HEADER_BYTES:
                self._greet(pending, messages.parse(pending.received[HEADER_BYTES:]))
            elif len(pending.received) == HEADER_BYTES:
                messages.length_of(pending.received)
        except BlockingIOError:
            pass
        except (MltcpError, OSError) as error:
            self._refuse(pending, error)

    def _greet(self, pending: _PendingConnection, message: dict[str, Any]) -> None:
        if message.get("greeting") != GREETING:
            raise PeerError("it is not an mltcp-bench perf of this version")
        self._forget(pending)
        pending.connection.setblocking(True)
        pending.connection.settimeout(PATIENCE_S)
        notice_loss(pending.connection)
        if "plan" in message:
            self._begin(pending, PerfPlan.from_document(message["plan"]))
        else:
            self._join(pending, message)

    def _begin(self, pending: _PendingConnection, plan: PerfPlan) -> None:
        if len(self._running) + len(self._tests) >= MOST_TESTS:
            raise UsageError(f"the server runs {MOST_TESTS} tests, which is its limit: try again later")
        set_control(pending.connection, plan.control)  # the client is told before it opens the rest
        token = secrets.token_hex(16)
        asks_for_ecn = bool(plan.control) and needs_ecn(plan.control)
        self._tests[token] = _Test(plan, pending.connection, pending.address, time.monotonic(), asks_for_ecn)
        self._listen_for_ecn()
        try:
            messages.send(pending.connection, {"ok": True, "token": token})
        except PeerError:
            self._take(token)
            raise

    def _take(self, token: str) -> _Test:
        """Remove a waiting test and return it."""
        test = self._tests.pop(token)
        self._listen_for_ecn()
        return test

    def _listen_for_ecn(self) -> None:
        """Let the listener accept ECN while a test whose congestion control needs it waits for connections.

        The kernel negotiates ECN in the SYN-ACK, before there is a socket to set a control on. A listener under any
        control that needs ECN accepts it, without offering it on connections that do not ask.
        """
        asking = (test.plan.control for test in self._tests.values() if test.asks_for_ecn)
        needed = next(asking, self._host_control)
        if congestion_control(self._listener.fileno()) != needed:
            if needed != self._host_control:
                self._lent |= {needed, *WITHOUT_ECN} - {self._host_control}
            with suppress(UsageError):  # if it was unloaded meanwhile, the test fails by itself
                set_control(self._listener, needed)

    def _join(self, pending: _PendingConnection, message: dict[str, Any]) -> None:
        test = self._tests.get(str(message.get("token")))
        name, flow = str(message.get("direction")), message.get("flow")
        if test is None or name not in test.plan.directions or not isinstance(flow, int):
            raise PeerError("it belongs to no test")
        if not 0 <= flow < test.plan.flows or (name, flow) in test.data:
            raise PeerError("it belongs to no test")
        set_control(pending.connection, test.plan.control)
        test.data[name, flow] = pending.connection
        if test.is_complete:
            self._start(str(message["token"]))

    def _refuse(self, pending: _PendingConnection, error: Exception) -> None:
        self._say(f"{pending.address}: refused: {error}")
        self._forget(pending)
        with suppress(MltcpError, OSError):
            pending.connection.settimeout(1.0)
            messages.send(pending.connection, {"ok": False, "error": str(error)})
        pending.connection.close()

    def _forget(self, pending: _PendingConnection) -> None:
        if self._pending.pop(pending.connection.fileno(), None) is not None:
            self._selector.unregister(pending.connection)

    def _drop_expired(self) -> None:
        limit_s = time.monotonic() - PATIENCE_S
        for pending in [each for each in self._pending.values() if each.since_s < limit_s]:
            self._refuse(pending, PeerError(f"it sent no message for {PATIENCE_S:g} s"))
        for token in [token for token, test in self._tests.items() if test.since_s < limit_s]:
            self._abandon(token, f"not all of its connections came within {PATIENCE_S:g} s")

    def _abandon(self, token: str, why: str | None) -> None:
        test = self._take(token)
        if why:
            self._say(f"{test.address}: given up: {why}")
        for connection in [test.control, *test.data.values()]:
            connection.close()

    # -- tests -------------------------------------------------------------------------------------------------------

    def _start(self, token: str) -> None:
        """Start the process of a test; concurrent tests in one process would slow each other down."""
        test = self._take(token)
        connections = test.connections()
        descriptors = {name: [each.fileno() for each in several] for name, several in connections.items()}
        passed = [test.control.fileno(), *(each for several in descriptors.values() for each in several)]
        given = {"plan": test.plan.document(), "control": test.control.fileno(), "data": descriptors}
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.perf.serving", json.dumps(given)], pass_fds=passed, cwd=_root()
        )
        for connection in [test.control, *test.data.values()]:
            connection.close()
        self._running.append((process, test.address))
        self._say(f"{test.address}: test begins: {_described(test.plan)}")

    def _reap(self) -> None:
        for process, address in list(self._running):
            if process.poll() is not None:
                self._running.remove((process, address))
                self._served += 1
                how = "ended" if process.returncode == 0 else "broke off"
                self._say(f"{address}: test {how}")


def _listener(address: str | None, port: int) -> socket.socket:
    try:
        if address is None and socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=256)
        address = address or ""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, port), family=family, backlog=256)
    except OSError as error:
        where = f"{address or '*'} port {port}"
        raise MltcpError(f"cannot listen at {where}: {error.strerror or error}") from None


def _described(plan: PerfPlan) -> str:
    what = f"{len(plan.directions)} x {plan.flows} flows"
    if plan.buckets:
        what += f", {plan.iteration_bytes} bytes an iteration"
    return what + (f", job {plan.job}" if plan.job else "")


def _shown(address: tuple[Any, ...]) -> str:
    return f"{str(address[0]).removeprefix('::ffff:')} port {address[1]}"


def _root() -> str:
    """The directory of the packages, so that the server works from any directory."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
