"""The coordination of the jobs of one run: a placement service with Cassini's time shifts, a gate, both, or neither.

The agents of the jobs (`collectives`) report to the service when iterations begin, and the service delays jobs that
have drifted off their time shift. The slots of a job are chosen before it is registered: it asks for exactly those.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.compare.approach import Approach
from bench.compare.results.runs import Shift
from bench.workloads.profile import HEADER_OVERHEAD
from mltcp.core.address import Address
from mltcp.core.demand import Demand
from mltcp.core.errors import MltcpError
from mltcp.core.signals import signals_held
from placement.client.client import Client
from placement.gate import messages
from placement.gate.messages import GateJob, GateLinks, job_document
from placement.model.cluster import Cluster
from placement.model.job import Contention
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import profile_message


@dataclass(frozen=True)
class PlacedDemand:
    """A job that starts.

    Attributes:
        name: of the job.
        slots: the slot of each rank.
        links: the links that it uses.
        demand: on these links, in the times and rates of the lab.
        iterations: how many it runs.
    """

    name: str
    slots: tuple[str, ...]
    links: tuple[str, ...]
    demand: Demand
    iterations: int


@dataclass
class Coordinator:
    """Coordinates the jobs of one run; this base class does nothing.

    Attributes:
        variables: environment variables of every rank.
        decisions_s: the duration of each decision so far.
        shifts: the time shifts so far; times by CLOCK_MONOTONIC.
    """

    variables: tuple[tuple[str, str], ...] = ()
    decisions_s: tuple[float, ...] = ()
    shifts: tuple[Shift, ...] = ()

    def placed(self, job: PlacedDemand) -> None:
        """Take note of a job before its ranks start."""

    def released(self, job: str) -> None:
        """Take note that the ranks of a job have ended."""


_START_S = 120.0


@contextmanager
def server_process(
    what: str, main: Callable[..., None], *arguments: Any, stop_s: float = 0.0
) -> Iterator[None]:
    """Run `main` with a connection and the arguments in a process, for as long as the block lasts.

    Over the connection, `main` sends "" when it is ready, or the reason for which it failed to start.

    Args:
        what: the name of the server in error messages.
        main: the main function of the process.
        arguments: further arguments of `main`.
        stop_s: how long it may take to end after SIGTERM before it is killed; with 0 it is killed at once.

    Raises:
        MltcpError: it did not start.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=main, args=(theirs, *arguments), name=what, daemon=True)
    with signals_held():  # interrupted half way, it would leave a process that ends in a traceback
        process.start()
    theirs.close()
    try:
        _await_start(what, ours)
        yield
    finally:
        if stop_s:
            process.terminate()
            process.join(stop_s)
        process.kill()
        process.join()
        ours.close()


def _await_start(what: str, connection: Connection) -> None:
    if not connection.poll(_START_S):
        raise MltcpError(f"{what} did not start within {_START_S:.0f} s")
    try:
        said = connection.recv()
    except EOFError:
        said = "its process has ended"
    if said:
        raise MltcpError(f"{what} did not start: {said}")


GATE_VARIABLE, BYTES_VARIABLE = "MLTCP_GATE", "MLTCP_GATE_BYTES"
GATE_SOCKET = "gate"
_ANSWER_S = 10.0
_CHUNK = 65536


class Gated(Coordinator):
    """Makes every rank ask the gate for admission, and describes each job to the gate before it starts."""

    def __init__(self, path: Path) -> None:
        super().__init__(variables=((GATE_VARIABLE, f"unix:{path}"), (BYTES_VARIABLE, "4096")))
        self._path = path

    def placed(self, job: PlacedDemand) -> None:
        """Describe the job to the gate: its links, its iterations and its compute time."""
        silent_ns = sum(phase.duration_ns for phase in job.demand.phases if not phase.bandwidth_bps)
        _describe(self._path, GateJob(job.name, job.links, job.iterations, silent_ns, len(job.slots)))


@contextmanager
def gated(
    policy: str, rate_bps: int, directory: Path, speeds: Mapping[str, Fraction] | None = None
) -> Iterator[Gated]:
    """Run a gate with this policy, for as long as the block lasts.

    Its contention model is that of the lab: the time of a byte is that at `rate_bps`, and transfers that share a link
    pay no penalty beyond their shares (docs/results.md).

    Args:
        policy: one of `placement.policies.catalogue.GATE_NAMES`.
        rate_bps: the rate of a link of speed 1.
        directory: where its socket is.
        speeds: of links that have another speed.

    Raises:
        MltcpError: the gate did not start.
    """
    contention = Contention(Fraction(0), Fraction(8 * HEADER_OVERHEAD * 1e9 / rate_bps), Fraction(0))
    path = directory / GATE_SOCKET
    path.unlink(missing_ok=True)  # of a run before
    served_links = GateLinks(speeds=dict(speeds or {}))
    with server_process("the gate", _serve_gate, path, policy, contention, served_links):
        yield Gated(path)


def _serve_gate(
    connection: Connection, path: Path, policy: str, contention: Contention, links: GateLinks
) -> None:
    """The main function of the gate's process."""
    from placement.gate.server import GateConfiguration, GateServer

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        server = GateServer(GateConfiguration(Address(path=path), policy, contention, links))
    except Exception as error:
        connection.send(str(error) or type(error).__name__)
        raise SystemExit(1) from None
    connection.send("")
    server.run()


def _describe(path: Path, job: GateJob) -> None:
    """Describe a job to the gate; raises MltcpError if the gate refuses it or has ended."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(_ANSWER_S)
            peer.connect(str(path))
            peer.sendall(messages.json_message(messages.DESCRIBE, job_document(job)))
            kind, body = _answer(peer)
    except OSError as error:
        raise MltcpError(f"job {job.name} cannot be described to the gate: {error}") from None
    if kind != messages.WELCOME:
        raise MltcpError(f"the gate refuses job {job.name}: {body.decode(errors='replace')}")


def _answer(peer: socket.socket) -> tuple[int, bytes]:
    received = bytearray()
    while True:
        chunk = peer.recv(_CHUNK)
        if not chunk:
            raise OSError("the gate closed the connection")
        received += chunk
        for answer in messages.take_messages(received):
            return answer


SERVICE_VARIABLE = "MLTCP_PLACEMENT"
SERVICE_SOCKET = "placement"
POLICY = "first-fit+cassini"
_STOP_S = 10.0
_UNLIMITED_BPS = 10**12
"""The capacity of interfaces that are not a link of the lab."""


@dataclass(frozen=True)
class Network:
    """The network that the service places jobs on.

    Attributes:
        slots: the name of each, a server of its own for the service, and of its switch.
        uplinks: the switch below, the switch above, and the capacity of each link.
    """

    slots: tuple[tuple[str, str], ...]
    uplinks: tuple[tuple[str, str, int], ...]

    def servers(self) -> list[pb.Server]:
        """The slots, as messages to the service."""
        return [
            pb.Server(name=slot, cpu_slots=1, nic_bps=_UNLIMITED_BPS, switch=switch)
            for slot, switch in self.slots
        ]

    def links(self) -> list[pb.Link]:
        """The links, as messages to the service."""
        return [pb.Link(switch=below, above=above, capacity_bps=rate) for below, above, rate in self.uplinks]


def dumbbell_network(hosts: Sequence[tuple[str, str]], rate_bps: int) -> Network:
    """The network of hosts on both sides of one link; `hosts` has the name and the switch of each."""
    return Network(tuple(hosts), (("left", "right", rate_bps),))


def cluster_network(cluster: Cluster, rate_bps: int) -> Network:
    """The network of a cluster whose GPUs are slots: servers are switches, and their uplinks are the NICs.

    Args:
        cluster: the servers and switches.
        rate_bps: of a link of speed 1.
    """
    slots = [
        (slot_name(server.name, slot), server.name)
        for server in cluster.servers
        for slot in range(len(server.gpus))
    ]
    nics = [(each.name, each.switch, int(each.nic_speed * rate_bps)) for each in cluster.servers]
    uplinks = [
        (each.name, each.above, int(each.uplink_speed * rate_bps))
        for each in cluster.switches
        if each.above is not None
    ]
    return Network(tuple(slots), (*nics, *uplinks))


def slot_name(server: str, slot: int) -> str:
    """The name of a slot of a server in the service."""
    return f"{server}.{slot}"


class Served(Coordinator):
    """Registers jobs with a placement service, whose address their ranks are given."""

    def __init__(self, client: Client) -> None:
        super().__init__(variables=((SERVICE_VARIABLE, client.address),))
        self._client = client
        self._known: set[str] = set()

    def placed(self, job: PlacedDemand) -> None:
        """Have the job placed, and record the time shifts of all jobs from then on."""
        profile = profile_message(job.demand) if job.demand.bits else None
        with _named_errors("placing", job.name):
            self._client.register_job(
                pb.Job(
                    id=job.name,
                    cpu_slots=len(job.slots),
                    iterations=job.iterations,
                    profile=profile,
                    policy=POLICY,
                    servers=job.slots,
                )
            )
            self._known.add(job.name)
            # Not by Submit, which answers before the job is placed and the others have their time shifts.
            self._client.place(job.name)
            took_ns = self._client.explain(job.name).decision_ns
            shifts = self._client.time_shifts()
        self.decisions_s = (*self.decisions_s, took_ns / 1e9)
        now_s = time.monotonic()
        self.shifts = (*self.shifts, *(Shift(each.job_id, now_s, each.shift_ns / 1e9) for each in shifts))

    def released(self, job: str) -> None:
        """Release the slots and the time shift of the job."""
        if job in self._known:
            self._known.discard(job)
            with _named_errors("releasing", job):
                self._client.release(job, "finished")


@contextmanager
def served(network: Network, directory: Path) -> Iterator[Served]:
    """Run a placement service for as long as the block lasts; its socket is in the directory.

    Raises:
        MltcpError: it did not start, or refused the network.
    """
    socket = directory / SERVICE_SOCKET
    socket.unlink(missing_ok=True)  # of a run before
    with tempfile.TemporaryDirectory(prefix="mltcp-placement-") as private:
        state = Path(private) / "state"
        with (
            server_process("the placement service", _serve_placement, socket, state, stop_s=_STOP_S),
            Client(f"unix:{socket}", token="") as client,
        ):
            with _named_errors("registering", "the network"):
                # Registering a server creates its switch; registering a link creates the switch above it.
                client.register_servers(network.servers())
                client.register_links(network.links())
            yield Served(client)


def _serve_placement(connection: Connection, socket: Path, state: Path) -> None:
    """The main function of the service's process."""
    from mltcp.core.address import Address
    from placement.service.context import ServiceRules
    from placement.service.server import ServiceConfiguration, serve

    # Its own session does not get the terminal's SIGINT: the process that started it ends it.
    os.setsid()
    configuration = ServiceConfiguration(Address(path=socket), state, ServiceRules(policy=POLICY))
    try:
        asyncio.run(serve(configuration, lambda _: connection.send("")))
    except Exception as error:
        with suppress(OSError):
            connection.send(str(error) or type(error).__name__)
        raise SystemExit(1) from None


@contextmanager
def _named_errors(doing: str, what: str) -> Iterator[None]:
    """Prefix errors with the request that failed."""
    try:
        yield
    except MltcpError as error:
        raise MltcpError(f"the placement service: {doing} {what}: {error}") from None


class Coordination:
    """The coordinators of a run, as one."""

    def __init__(self, coordinators: Sequence[Coordinator]) -> None:
        self.coordinators = tuple(coordinators)

    def placed(self, job: PlacedDemand) -> None:
        """Tell the coordinators of a job before its ranks start."""
        for each in self.coordinators:
            each.placed(job)

    def released(self, job: str) -> None:
        """Tell the coordinators that the ranks of a job have ended."""
        for each in self.coordinators:
            each.released(job)

    @property
    def variables(self) -> tuple[tuple[str, str], ...]:
        """Environment variables of every rank."""
        return tuple(variable for each in self.coordinators for variable in each.variables)

    @property
    def decisions_s(self) -> tuple[float, ...]:
        """The duration of each decision so far."""
        return tuple(taken_s for each in self.coordinators for taken_s in each.decisions_s)

    def shifts(self, epoch_s: float) -> tuple[Shift, ...]:
        """The time shifts so far; times are from a moment of CLOCK_MONOTONIC on."""
        found = [shift for each in self.coordinators for shift in each.shifts]
        return tuple(replace(shift, at_s=max(0.0, shift.at_s - epoch_s)) for shift in found)


def sockets_of(approach: Approach) -> tuple[str, ...]:
    """The names of the sockets at which ranks reach the coordinators of an approach."""
    gate = () if approach.gate is None else (GATE_SOCKET,)
    return (*gate, *((SERVICE_SOCKET,) if approach.cassini else ()))


@contextmanager
def coordinated(
    approach: Approach,
    network: Network,
    rate_bps: int,
    speeds: Mapping[str, Fraction] | None = None,
    directory: Path | None = None,
) -> Iterator[Coordination]:
    """Run the gate and the placement service that an approach needs, for as long as the block lasts.

    Args:
        approach: the approach.
        network: of the placement service.
        rate_bps: the rate of a link of speed 1.
        speeds: of links that have another speed.
        directory: where their sockets are, as `sockets_of` names them; None: in one of its own.

    Raises:
        MltcpError: one of them did not start.
    """
    with ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mltcp-coordination-")))
        coordinators: list[Coordinator] = []
        if approach.gate is not None:
            coordinators.append(stack.enter_context(gated(approach.gate, rate_bps, directory, speeds)))
        if approach.cassini:
            coordinators.append(stack.enter_context(served(network, directory)))
        yield Coordination(coordinators)
