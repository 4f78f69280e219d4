"""Start and stop of the placement service: store, recovery, gRPC server, signals."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from mltcp.core.address import Address
from mltcp.core.demand import Demand, Phase
from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.one_line import one_line
from mltcp.core.processes import raise_descriptor_limit
from mltcp.core.signals import stop_signals
from mltcp.core.trusted_directory import make_trusted_directory
from placement.cassini.placement_selection import choose_placement
from placement.engines.engine import Engine
from placement.policies.catalogue import PLACEMENT_RULES
from placement.policies.slot_pool import SlotPool, SlotRequest
from placement.service.contention import ContentionState, table_named
from placement.service.context import Clock, ServiceContext, ServiceRules
from placement.service.decision_records import DecisionRecords
from placement.service.decisions.policy import check_rules
from placement.service.embedded_gate import SOCKET_OWNER as GATE_SOCKET_OWNER
from placement.service.embedded_gate import VARIABLE as GATE_VARIABLE
from placement.service.embedded_gate import EmbeddedGate
from placement.service.engine_jobs import EngineRunner
from placement.service.operations import ServiceOperations
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol import placement_pb2_grpc as pb_grpc
from placement.service.protocol.checks import RequestError
from placement.service.protocol.connection import (
    PING_S,
    PLAIN_TEXT_TOKENS,
    SOCKET_OWNER,
    VARIABLE,
    connection_options,
    keepalive_options,
)
from placement.service.protocol.security import AcceptedTokens, Security, TokenInterceptor
from placement.service.servicer import PlacementServicer
from placement.service.state.persistence import recovered, saved_decisions
from placement.service.state.store import Store

NAME = pb.DESCRIPTOR.services_by_name["Placement"].full_name
HEALTH_S = 1.0
GRACE_S = 2.0
"""How long calls in progress may take when the service is stopped."""

_log = logging.getLogger("mltcp.placement")


@dataclass(frozen=True)
class ServiceConfiguration:
    """The configuration of a placement service.

    Attributes:
        address: the address to listen at.
        state: the database file.
        rules: parameters of its decisions.
        security: TLS and token settings.
        socket_mode: permissions of a Unix socket.
        servers: servers to register at the start.
        links: uplinks to register at the start.
        engine: runs the jobs that have a command; None: jobs are placed only.
        gate: the embedded all-reduce gate; None: none.
        metrics: HOST:PORT to serve Prometheus metrics at; None: they are not served.
        ping_s: the time between two pings of a connection; see `protocol.connection`.
    """

    address: Address
    state: Path
    rules: ServiceRules = field(default_factory=ServiceRules)
    security: Security = field(default_factory=Security)
    socket_mode: int = 0o600
    servers: tuple[pb.Server, ...] = ()
    links: tuple[pb.Link, ...] = ()
    engine: Engine | None = None
    gate: EmbeddedGate | None = None
    ping_s: float = PING_S
    metrics: str | None = None

    def check(self) -> None:
        """Raise `MltcpError` if a value is invalid; has no side effects."""
        self.security.check(self.address)
        self.security.accepted_tokens()
        if self.engine is not None:
            self.security.check_engine(self.address, self.socket_mode)
        try:
            check_rules(self.rules)
        except RequestError as error:
            raise UsageError(str(error)) from None


async def serve(configuration: ServiceConfiguration, ready: Callable[[Address], None]) -> None:
    """Run a service until SIGTERM or SIGINT.

    Args:
        configuration: the service's configuration.
        ready: called with the address once the service decides. It answers calls before.

    Raises:
        MltcpError: the service cannot start, or its store failed.
    """
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[None] = loop.create_future()
    with stop_signals(lambda _: _stop(stopped), loop):
        async with running_service(configuration, stopped) as address:
            if not stopped.done():
                ready(address)
            await stopped


@asynccontextmanager
async def running_service(
    configuration: ServiceConfiguration, stopped: asyncio.Future[None]
) -> AsyncIterator[Address]:
    """Run a service within the context, and yield the address at which it answers once it decides.

    Args:
        configuration: the service's configuration.
        stopped: receives the error if the store fails; if it is done, nothing is waited for.

    Raises:
        MltcpError: the service cannot start.
    """
    configuration.check()
    raise_descriptor_limit()
    if configuration.address.path is not None:
        make_trusted_directory(configuration.address.path.parent)  # before a job is started
    loop = asyncio.get_running_loop()

    def failed(message: str) -> None:
        loop.call_soon_threadsafe(_stop, stopped, MltcpError(message))

    warm_up()
    store = Store(configuration.state, failed)
    try:
        rules = configuration.rules
        start_ns = round(rules.restart_cost_s * 1e9)
        contention = None
        if rules.table:
            contention = ContentionState(table_named(rules.table), store, start_ns, rules.combination)
        tokens = configuration.security.accepted_tokens(store.key("tokens of agents"))
        context = ServiceContext(
            *(recovered(store), store, Clock(), rules, saved_decisions(store)),
            contention=contention,
            epoch=store.next_epoch(),
            records=DecisionRecords.saved(store, rules.policy, rules.shadow),
        )
        store.start(loop)
        service = ServiceOperations(context, _engine(configuration, tokens), configuration.gate)
        await service.cluster.register_servers(configuration.servers)
        await service.cluster.register_links(configuration.links)
        try:
            with _metrics(configuration, service):
                service.start()
                async with _listening(configuration, service, tokens) as address:
                    await _deciding(service, stopped)
                    yield address
        finally:
            await service.close()
    finally:
        store.close()


async def _deciding(service: ServiceOperations, stopped: asyncio.Future[None]) -> None:
    """Wait until a service decides, or is stopped."""
    beginning = asyncio.ensure_future(service.decide())
    await asyncio.wait({beginning, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not beginning.done():
        beginning.cancel()
        await asyncio.gather(beginning, return_exceptions=True)
        return
    beginning.result()


def warm_up() -> None:
    """Compile the placement policies and Cassini's search before the first job needs them."""
    pool = SlotPool()
    pool.add([4, 4], [0, 0])
    for rule in PLACEMENT_RULES.values():
        pool.choose(rule, 1, SlotRequest(2))
        pool.choose(rule, 1, SlotRequest(1))
    demand = Demand((Phase(50_000_000, 0), Phase(50_000_000, 1_000_000)))
    other = Demand((Phase(40_000_000, 0), Phase(60_000_000, 1_000_000)))
    choose_placement(
        [{"a": ["j", "k"], "b": ["k", "l"]}],
        {"j": demand, "k": other, "l": demand},
        {"a": 1_000_000, "b": 1_000_000},
    )


@contextmanager
def _metrics(configuration: ServiceConfiguration, service: ServiceOperations) -> Iterator[None]:
    if configuration.metrics is None:
        yield
        return
    from placement.service.metrics import ServiceMetrics

    with closing(ServiceMetrics(service, configuration.metrics)):
        yield


@asynccontextmanager
async def _listening(
    configuration: ServiceConfiguration, service: ServiceOperations, tokens: AcceptedTokens | None
) -> AsyncIterator[Address]:
    refused = service.context.counts.refused
    count = partial(refused.update, ("unauthenticated",))
    interceptors = [TokenInterceptor(tokens, count)] if tokens is not None else []
    options = [("grpc.so_reuseport", 0), *keepalive_options(configuration.ping_s), *connection_options()]
    server = grpc.aio.server(interceptors=interceptors, options=options)
    pb_grpc.add_PlacementServicer_to_server(PlacementServicer(service, tokens), server)
    health_servicer = health.aio.HealthServicer()  # type: ignore[attr-defined]
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    reflection.enable_server_reflection((NAME, "grpc.health.v1.Health", reflection.SERVICE_NAME), server)
    address = _bind(server, configuration)
    await server.start()
    reporting = asyncio.ensure_future(_report_health(service, health_servicer))
    try:
        yield address
    finally:
        reporting.cancel()
        await health_servicer.enter_graceful_shutdown()
        service.agents.sessions.close()
        await server.stop(GRACE_S)
        if address.path is not None:
            address.path.unlink(missing_ok=True)


async def _report_health(service: ServiceOperations, servicer: health.aio.HealthServicer) -> None:  # type: ignore[name-defined]
    """Report whether the service decides and accepts new jobs as its health; never returns."""
    serving, told, statuses = None, False, health_pb2.HealthCheckResponse
    for name in (NAME, ""):
        await servicer.set(name, statuses.NOT_SERVING)
    await service.decides.wait()
    while True:
        refusal = service.context.store.refusal()
        if serving != (not refusal):
            serving = not refusal
            for name in (NAME, ""):
                await servicer.set(name, statuses.SERVING if serving else statuses.NOT_SERVING)
            if refusal:
                _log.error("no new jobs are accepted: %s", one_line(refusal))
            elif told:
                _log.warning("new jobs are accepted again")
            told = True
        await asyncio.sleep(HEALTH_S)


def _bind(server: grpc.aio.Server, configuration: ServiceConfiguration) -> Address:
    address, credentials = configuration.address, configuration.security.credentials()
    address.check_free()
    before = os.umask(0o777 & ~configuration.socket_mode)
    try:
        if credentials is not None:
            port = server.add_secure_port(str(address), credentials)
        else:
            port = server.add_insecure_port(str(address))
    except RuntimeError:
        port = 0
    finally:
        os.umask(before)
    if not port:
        raise MltcpError(f"cannot listen at {address}: the address is in use or not one of this host")
    return address if address.path is not None else Address(host=address.host, port=port)


def _engine(configuration: ServiceConfiguration, tokens: AcceptedTokens | None) -> EngineRunner | None:
    if configuration.engine is None:
        return None
    account = str(os.geteuid())  # a host may be entered as another account
    environment = {VARIABLE: str(configuration.address), SOCKET_OWNER: account}
    if configuration.security.plain_text_tokens:
        environment[PLAIN_TEXT_TOKENS] = "1"
    if configuration.gate is not None:
        environment[GATE_VARIABLE] = str(configuration.gate.address)
        environment[GATE_SOCKET_OWNER] = account
    return EngineRunner(configuration.engine, environment, tokens, configuration.rules.classes)


def _stop(stopped: asyncio.Future[None], error: MltcpError | None = None) -> None:
    if stopped.done():
        return
    if error is None:
        stopped.set_result(None)
    else:
        stopped.set_exception(error)
