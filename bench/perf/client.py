"""The client of ``mltcp-bench perf``: runs a test against a server."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from bench.perf import messages, side
from bench.perf.messages import GREETING, PeerError
from bench.perf.plan import PerfPlan
from bench.perf.side import registered
from bench.perf.traffic import Interval, Meter, PerfDirection
from mltcp.core.errors import MltcpError, UsageError

CONNECT_S = 10.0
RESULTS_S = 30.0

OnInterval = Callable[[list[Interval]], None]


@dataclass
class PerfOutcome:
    """The result of a test; if it was `interrupted`, the server's reports are missing."""

    plan: PerfPlan
    server: str
    daemon: str = ""
    server_daemon: str = ""
    client: list[dict[str, Any]] = field(default_factory=list)
    remote: list[dict[str, Any]] = field(default_factory=list)
    intervals: list[list[Interval]] = field(default_factory=list)
    interrupted: bool = False


def run(
    plan: PerfPlan,
    host: str,
    port: int,
    every_s: float,
    omit: int,
    on_interval: OnInterval,
    on_start: Callable[[PerfOutcome], None],
) -> PerfOutcome:
    """Run a test; `on_interval` gets the flows' intervals every `every_s` seconds.

    Args:
        omit: seconds of bulk, or iterations, to leave out of the summary.

    Raises:
        UsageError: this host or the server does not have the congestion control.
        MltcpError: the server does not answer, refuses, or is gone; or a flow fails.
    """
    outcome = PerfOutcome(plan, f"{host} port {port}")
    with _connected(plan, host, port) as (control, connections):
        every = [each for several in connections.values() for each in several]
        with registered(plan.job, plan.control, every) as outcome.daemon:
            reply = _checked(messages.receive(control))
            outcome.server_daemon = str(reply.get("daemon", ""))
            on_start(outcome)
            moving = side.directions(plan, connections, is_client=True)
            try:
                edge_s = 0 if plan.buckets else omit
                _move(moving, every_s, edge_s, lambda found: _note(outcome, found, on_interval))
                control.settimeout(RESULTS_S)
                outcome.remote = _reports(control)
            except KeyboardInterrupt:
                outcome.interrupted = True
                for direction in moving:
                    direction.stop()
            skip = omit if plan.buckets else 0
            outcome.client = [side.report(direction, skip) for direction in moving]
            for report in outcome.remote:
                report["iteration_s"] = report["iteration_s"][skip:]
    if not outcome.interrupted:
        _raise_errors(outcome)
    return outcome


def _note(outcome: PerfOutcome, found: list[Interval], on_interval: OnInterval) -> None:
    outcome.intervals.append(found)
    on_interval(found)


def _reports(control: socket.socket) -> list[dict[str, Any]]:
    """Receive the server's reports, whose iteration times come in several messages."""
    times_s: dict[str, list[float]] = {}
    while "reports" not in (message := _checked(messages.receive(control))):
        try:
            times_s.setdefault(message["direction"], []).extend(map(float, message["iteration_s"]))
        except (KeyError, TypeError, ValueError):
            raise _unreadable() from None
    try:
        return [
            {**each, "iteration_s": times_s.get(each["direction"], []) if each["sends"] else []}
            for each in message["reports"]
        ]
    except (KeyError, TypeError):
        raise _unreadable() from None


def _move(moving: list[PerfDirection], every_s: float, edge_s: float, on_interval: OnInterval) -> None:
    """Move all bytes; one interval ends at `edge_s` (if it is not 0), whatever `every_s` is."""
    meter = Meter(moving)
    for direction in moving:
        direction.start()
    began_s = time.monotonic()
    edges = [began_s + edge_s] if edge_s else []
    due_s = began_s + every_s
    while not all(direction.join(0.0) for direction in moving):
        next_s = min([due_s, *edges])
        for direction in moving:
            direction.join(max(0.0, next_s - time.monotonic()))
        if time.monotonic() >= next_s:
            on_interval(meter.read())
            edges = [each for each in edges if each > next_s]
            due_s += every_s if next_s == due_s else 0.0
    if meter.has_more():
        on_interval(meter.read())


def _raise_errors(outcome: PerfOutcome) -> None:
    for whose, reports in (("", outcome.client), ("the server's side: ", outcome.remote)):
        for report in reports:
            if report["error"]:
                raise MltcpError(f"{whose}{report['direction']} {report['error']}")


@contextmanager
def _connected(plan: PerfPlan, host: str, port: int) -> Iterator[tuple[socket.socket, side.Connections]]:
    """The control connection, and the data connections of every direction."""
    with socket.socket() as probe:
        side.set_control(probe, plan.control)  # fail on this host before asking the server
    with ExitStack() as stack:
        control = stack.enter_context(_connect(host, port, ""))
        messages.send(control, {"greeting": GREETING, "plan": plan.document()})
        token = _checked(messages.receive(control)).get("token")
        if not isinstance(token, str):
            raise _unreadable()
        connections: dict[str, list[socket.socket]] = {}
        stack.callback(side.close, connections)
        for name in plan.directions:
            connections[name] = []
            for flow in range(plan.flows):
                connection = _connect(host, port, plan.control)
                connections[name].append(connection)
                greeting = {"greeting": GREETING, "token": token, "direction": name, "flow": flow}
                messages.send(connection, greeting)
                connection.settimeout(None)
        yield control, connections


def _connect(host: str, port: int, control: str) -> socket.socket:
    """Connect under a congestion control that is set before the SYN, because it decides whether to ask for ECN."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(f"{host}: {error.strerror or error}") from None
    failure: OSError | None = None
    for family, kind, protocol, _, address in found:
        connection = socket.socket(family, kind, protocol)
        try:
            side.set_control(connection, control)
            connection.settimeout(CONNECT_S)
            connection.connect(address)
            side.notice_loss(connection)
            return connection
        except OSError as error:
            failure = error
            connection.close()
        except UsageError:
            connection.close()
            raise
    raise MltcpError(
        f"no mltcp-bench perf server answers at {host} port {port}: {failure and (failure.strerror or failure)} "
        "(on that host: mltcp-bench perf -s)"
    )


def _unreadable() -> PeerError:
    return PeerError("the peer is not an mltcp-bench perf of this version: its answer cannot be read")


def _checked(reply: dict[str, Any]) -> dict[str, Any]:
    if not reply.get("ok"):
        raise PeerError(f"the server refuses: {reply.get('error')}")
    return reply
