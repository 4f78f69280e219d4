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

Say = Callable[[str], None]


@dataclass
class _Newcomer:
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
        self._newcomers: dict[int, _Newcomer] = {}
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
                        self._read(self._newcomers[key.fd])
                self._drop_the_slow()
                self._reap()
        finally:
            self.close()

    def close(self) -> None:
        """Close all connections and kill the processes of running tests."""
        for process, _ in self._running:
            process.kill()
            process.wait()
        for newcomer in list(self._newcomers.values()):
            self._forget(newcomer)
            newcomer.connection.close()
        for token in list(self._tests):
            self._abandon(token, None)
        self._selector.close()
        self._listener.close()

    # -- new connections ---------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        with suppress(OSError, UsageError):
            connection, address = self._listener.accept()
            if len(self._newcomers) >= MOST_GREETING:
                connection.close()
                return
            if congestion_control(connection.fileno()) in self._lent:
                set_control(connection, self._host_control)
            connection.setblocking(False)
            newcomer = _Newcomer(connection, _shown(address), time.monotonic())
            self._newcomers[connection.fileno()] = newcomer
            self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, newcomer: _Newcomer) -> None:
        """Read no more than the first message: the process of the test reads the rest."""
        try:
            wanted = HEADER_BYTES
            if len(newcomer.received) >= HEADER_BYTES:
                wanted += messages.length_of(newcomer.received[:HEADER_BYTES])
            part = newcomer.connection.recv(wanted - len(newcomer.received))
            if not part:
                raise PeerError("it closed the connection without a message")
            newcomer.received += part
            if len(newcomer.received) == wanted > HEADER_BYTES:
                self._greet(newcomer, messages.parse(newcomer.received[HEADER_BYTES:]))
            elif len(newcomer.received) == HEADER_BYTES:
                messages.length_of(newcomer.received)
        except BlockingIOError:
            pass
        except (MltcpError, OSError) as error:
            self._refuse(newcomer, error)

    def _greet(self, newcomer: _Newcomer, message: dict[str, Any]) -> None:
        if message.get("greeting") != GREETING:
            raise PeerError("it is not an mltcp-bench perf of this version")
        self._forget(newcomer)
        newcomer.connection.setblocking(True)
        newcomer.connection.settimeout(PATIENCE_S)
        notice_loss(newcomer.connection)
        if "plan" in message:
            self._begin(newcomer, PerfPlan.from_document(message["plan"]))
        else:
            self._join(newcomer, message)

    def _begin(self, newcomer: _Newcomer, plan: PerfPlan) -> None:
        if len(self._running) + len(self._tests) >= MOST_TESTS:
            raise UsageError(f"the server runs {MOST_TESTS} tests, which is its limit: try again later")
        set_control(newcomer.connection, plan.control)  # the client is told before it opens the rest
        token = secrets.token_hex(16)
        asks_for_ecn = bool(plan.control) and needs_ecn(plan.control)
        self._tests[token] = _Test(
            plan, newcomer.connection, newcomer.address, time.monotonic(), asks_for_ecn
        )
        self._listen_for_ecn()
        try:
            messages.send(newcomer.connection, {"ok": True, "token": token})
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
            self._lent |= {needed} - {self._host_control}
            with suppress(UsageError):  # if it was unloaded meanwhile, the test fails by itself
                set_control(self._listener, needed)

    def _join(self, newcomer: _Newcomer, message: dict[str, Any]) -> None:
        test = self._tests.get(str(message.get("token")))
        name, flow = str(message.get("direction")), message.get("flow")
        if test is None or name not in test.plan.directions or not isinstance(flow, int):
            raise PeerError("it belongs to no test")
        if not 0 <= flow < test.plan.flows or (name, flow) in test.data:
            raise PeerError("it belongs to no test")
        set_control(newcomer.connection, test.plan.control)
        test.data[name, flow] = newcomer.connection
        if test.is_complete:
            self._start(str(message["token"]))

    def _refuse(self, newcomer: _Newcomer, error: Exception) -> None:
        self._say(f"{newcomer.address}: refused: {error}")
        self._forget(newcomer)
        with suppress(MltcpError, OSError):
            newcomer.connection.settimeout(1.0)
            messages.send(newcomer.connection, {"ok": False, "error": str(error)})
        newcomer.connection.close()

    def _forget(self, newcomer: _Newcomer) -> None:
        if self._newcomers.pop(newcomer.connection.fileno(), None) is not None:
            self._selector.unregister(newcomer.connection)

    def _drop_the_slow(self) -> None:
        limit_s = time.monotonic() - PATIENCE_S
        for newcomer in [each for each in self._newcomers.values() if each.since_s < limit_s]:
            self._refuse(newcomer, PeerError(f"it sent no message for {PATIENCE_S:g} s"))
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
