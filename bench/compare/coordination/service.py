"""The placement service of a run, in a process of its own: Cassini shifts its jobs in time.

The agents of the jobs (`collectives`) report to the service when iterations begin, and the service delays jobs that
have drifted off their time shift. The slots of a job are chosen before it is registered: it asks for exactly those.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from bench.compare.coordination.coordinator import Coordinator, PlacedDemand
from bench.compare.coordination.server_process import server_process
from bench.compare.results.runs import Shift
from mltcp.core.errors import MltcpError
from placement.client.client import Client
from placement.model.cluster import Cluster
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import profile_message

VARIABLE = "MLTCP_PLACEMENT"
SOCKET = "placement"
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
        super().__init__(variables=((VARIABLE, client.address),))
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
    socket = directory / SOCKET
    socket.unlink(missing_ok=True)  # of a run before
    with tempfile.TemporaryDirectory(prefix="mltcp-placement-") as private:
        state = Path(private) / "state"
        with (
            server_process("the placement service", _serve, socket, state, stop_s=_STOP_S),
            Client(f"unix:{socket}", token="") as client,
        ):
            with _named_errors("registering", "the network"):
                # Registering a server creates its switch; registering a link creates the switch above it.
                client.register_servers(network.servers())
                client.register_links(network.links())
            yield Served(client)


def _serve(connection: Connection, socket: Path, state: Path) -> None:
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
