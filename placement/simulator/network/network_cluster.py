"""A network as the cluster that schedulers, Cassini and the fluid simulation see: its links are those of routes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Self

from placement.model.cluster import Cluster, Gpu, Link, Server, Switch
from placement.simulator.network.laws.network_law import Control, NetworkLaw
from placement.simulator.network.routing import Route, RoutingTable
from placement.simulator.network.topology import ClassQueues, Network
from placement.simulator.network.traffic import IterationStep, Message, NetworkJob, Traffic


@dataclass(frozen=True, kw_only=True)
class NetworkCluster(Cluster):
    """A network whose hosts are servers, each in the rack of the switch that its first NIC leads to.

    A job's links are those of the routes, chosen by ECMP, of its rings of workers in the order of their GPUs.

    Attributes:
        network: hosts, in the order of `servers`, and links, in the order of `links`.
        fingerprint: of the network, which stands for it where clusters are told apart by their text.
        nic_bps: the rate of a link of speed 1.
        seed: of ECMP.
        rings: of a job, where its workers are a multiple of them: every so many-th worker is in the same one.
    """

    network: Network = field(repr=False, compare=False)
    fingerprint: str
    nic_bps: int
    seed: int = 0
    rings: int = 1

    @classmethod
    def of(cls, network: Network, fingerprint: str = "", rings: int = 1) -> Self:
        """The cluster of a network; its fastest NIC has speed 1."""
        hosts = set(network.hosts)
        racks: dict[str, str] = {}
        for link in network.links:
            if link.source in hosts and link.target not in hosts:
                racks.setdefault(link.source, link.target)
        names = dict.fromkeys(racks.values())
        root = "network"
        while root in names or root in hosts:
            root += "-"
        servers = tuple(
            Server(name, (Gpu(),) * network.gpus_of(number), racks.get(name, root))
            for number, name in enumerate(network.hosts)
        )
        fastest_bps = max((link.rate_bps for link in network.links if link.source in hosts), default=1)
        return cls(
            servers,
            (Switch(root), *(Switch(name, root) for name in names)),
            network=network,
            fingerprint=fingerprint,
            nic_bps=round(fastest_bps),
            rings=rings,
        )

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """The links of the network, each of which has one direction."""
        return tuple(Link(link.name, Fraction(link.rate_bps) / self.nic_bps) for link in self.network.links)

    def links_between(self, servers: Iterable[int]) -> tuple[int, ...]:
        """The numbers of the links that a ring of these servers uses."""
        hosts = tuple(dict.fromkeys(servers))
        return self._links_of_ring(NetworkJob("", _ring(len(hosts), 1), hosts, _NO_LAW, 1))

    def links_of(self, job: str, gpus: Sequence[int]) -> tuple[int, ...]:
        """See `Cluster.links_of`: those of the routes of a ring of the job's workers."""
        key = job, tuple(gpus)
        if key not in self._known:
            self._known[key] = self._links_of_ring(
                self.placed(job, _ring(len(gpus), self.rings_of(len(gpus))), gpus)
            )
        return self._known[key]

    def placed(self, job: str, traffic: Traffic, gpus: Sequence[int]) -> NetworkJob:
        """A job with a worker on each of these GPUs."""
        hosts = tuple(self.gpus[gpu][0] for gpu in gpus)
        slots = tuple(gpu - self._first_gpus[host] for gpu, host in zip(gpus, hosts, strict=True))
        return NetworkJob(job, traffic, hosts, _NO_LAW, 1, slots=slots)

    def routes_of(self, job: NetworkJob) -> tuple[Route, ...]:
        """The routes of its messages."""
        return self._table.routes(job, self.seed)

    def ways_of(self, job: NetworkJob) -> tuple[tuple[Route, ...], ...]:
        """All routes that each of its messages could have."""
        return self._table.ways(job)

    def rings_of(self, workers: int) -> int:
        """The rings of a job with so many workers."""
        return self.rings if workers % self.rings == 0 else 1

    def with_priorities(self) -> Self:
        """The same with strict priorities on the links that have no classes."""
        links = (replace(link, classes=link.classes or ClassQueues()) for link in self.network.links)
        return replace(self, network=replace(self.network, links=tuple(links)))

    def _links_of_ring(self, job: NetworkJob) -> tuple[int, ...]:
        return tuple(sorted({link for route in self.routes_of(job) for link in route}))

    @cached_property
    def _table(self) -> RoutingTable:
        return RoutingTable(self.network)

    @cached_property
    def _known(self) -> dict[tuple[str, tuple[int, ...]], tuple[int, ...]]:
        return {}

    @cached_property
    def _first_gpus(self) -> list[int]:
        first, found = 0, []
        for server in self.servers:
            found.append(first)
            first += len(server.gpus)
        return found


_NO_LAW = NetworkLaw(Control.CONSTANT)
"""Routes do not depend on it."""


def _ring(workers: int, rings: int) -> Traffic:
    messages = tuple(Message(each, (each + rings) % workers, 1.0) for each in range(workers))
    return Traffic(workers, (IterationStep(0, messages if workers > 1 else ()),))
