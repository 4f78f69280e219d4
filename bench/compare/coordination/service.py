"""Cassini live: the placement service in a process of its own, to which the jobs of a run are made known.

The service hears from the jobs' agents (`collectives`) when iterations begin, and holds jobs back that are not where
their time shifts have them. Which slots a job has is decided before it comes here: it asks for just those.
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

from bench.compare.coordination.coordination import Coordination, PlacedDemand, Uncoordinated
from bench.compare.coordination.process import serving
from bench.compare.results.runs import Shift
from bench.lab.two_tier import CORE, TwoTier, rack_name, server_name
from mltcp.core.errors import MltcpError
from placement.client.client import Client
from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol.checks import profile_message

VARIABLE = "MLTCP_PLACEMENT"
POLICY = "first-fit+cassini"
_STOP_S = 10.0
_UNLIMITED_BPS = 10**12
"""Of what is no link of the lab's."""


@dataclass(frozen=True)
class Network:
    """Slots, each as a server of its own, and the switches that they hang on, with the capacities of their uplinks."""

    slots: tuple[tuple[str, str], ...]
    uplinks: tuple[tuple[str, str, int], ...]

    def servers(self) -> list[pb.Server]:
        """As the service knows them."""
        return [
            pb.Server(name=slot, cpu_slots=1, nic_bps=_UNLIMITED_BPS, switch=switch)
            for slot, switch in self.slots
        ]

    def links(self) -> list[pb.Link]:
        """As the service knows them."""
        return [pb.Link(switch=below, above=above, capacity_bps=rate) for below, above, rate in self.uplinks]


def dumbbell_network(hosts: Sequence[tuple[str, str]], rate_bps: int) -> Network:
    """Hosts with the switch of each, left or right of one link."""
    return Network(tuple(hosts), (("left", "right", rate_bps),))


def two_tier_network(shape: TwoTier) -> Network:
    """Servers as switches whose uplinks are the NICs, below racks as switches."""
    slots: list[tuple[str, str]] = []
    uplinks: list[tuple[str, str, int]] = []
    for rack in range(shape.racks):
        for server in range(shape.servers):
            name = server_name(rack, server)
            uplinks.append((name, rack_name(rack), shape.nic.rate_bps))
            slots += [(slot_name(name, slot), name) for slot in range(shape.slots)]
        uplinks.append((rack_name(rack), CORE, shape.uplink.rate_bps))
    return Network(tuple(slots), tuple(uplinks))


def slot_name(server: str, slot: int) -> str:
    """What the service calls a slot of a server."""
    return f"{server}.{slot}"


class Served(Uncoordinated):
    """Jobs are known to a service, and their ranks know it."""

    def __init__(self, client: Client) -> None:
        super().__init__(variables=((VARIABLE, client.address),))
        self._client = client
        self._known: set[str] = set()

    def placed(self, job: PlacedDemand) -> None:
        """Have the job placed, and note who is to be shifted by how much now that it is there."""
        profile = profile_message(job.demand) if job.demand.bits else None
        with _said("placing", job.name):
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
            # Not by Submit, which answers before the job has its place, and the others their time shifts.
            self._client.place(job.name)
            took_ns = self._client.explain(job.name).decision_ns
            shifts = self._client.time_shifts()
        self.decisions_s = (*self.decisions_s, took_ns / 1e9)
        now_s = time.monotonic()
        self.shifts = (*self.shifts, *(Shift(each.job_id, now_s, each.shift_ns / 1e9) for each in shifts))

    def released(self, job: str) -> None:
        """Give the job's slots and time shift back."""
        if job in self._known:
            self._known.discard(job)
            with _said("releasing", job):
                self._client.release(job, "finished")


@contextmanager
def served(network: Network) -> Iterator[Coordination]:
    """A service for as long as the block lasts.

    Raises:
        MltcpError: it did not start, or refuses the network.
    """
    with tempfile.TemporaryDirectory(prefix="mltcp-placement-") as directory:
        socket, state = Path(directory) / "socket", Path(directory) / "state"
        with (
            serving("the placement service", _serve, socket, state, stop_s=_STOP_S),
            Client(f"unix:{socket}", token="") as client,
        ):
            with _said("registering", "the network"):
                # A server makes its switch known, and a link the switch above.
                client.register_servers(network.servers())
                client.register_links(network.links())
            yield Served(client)


def _serve(connection: Connection, socket: Path, state: Path) -> None:
    """The life of the service's process."""
    from mltcp.core.address import Address
    from placement.service.context import ServiceRules
    from placement.service.server import ServiceConfiguration, serve

    # Away from the terminal's Ctrl-C: whoever started it ends it.
    os.setsid()
    configuration = ServiceConfiguration(Address(path=socket), state, ServiceRules(policy=POLICY))
    try:
        asyncio.run(serve(configuration, lambda _: connection.send("")))
    except Exception as error:
        with suppress(OSError):
            connection.send(str(error) or type(error).__name__)
        raise SystemExit(1) from None


@contextmanager
def _said(doing: str, what: str) -> Iterator[None]:
    try:
        yield
    except MltcpError as error:
        raise MltcpError(f"the placement service: {doing} {what}: {error}") from None
