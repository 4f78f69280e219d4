"""The placement of jobs on the servers of a lab, and the addresses of their ranks there.

Rank R of job J has the address 10.77.J.(R + 1) on the NIC of its server, with the label ``eth0:J``. Gloo accepts a
label as the name of an interface, and so binds every rank of the job to an address of that job. The network of a job is
10.77.J.0/24, so that unbound connections get the job's source address too. Two ranks on one server reach each other
over its loopback, like all local addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Network
from threading import Lock
from typing import Any

from pyroute2.netlink.exceptions import NetlinkError

from bench.lab.network import namespaces, wiring
from bench.lab.topology import INTERFACE, MAX_JOBS, MAX_RANKS, NETWORK, LabServer, Topology
from mltcp.core.errors import UsageError

_PREFIX = 24


def network_of(job: int) -> IPv4Network:
    """The addresses of a job."""
    return IPv4Network((int(NETWORK.network_address) + (job << 8), _PREFIX))


def label_of(job: int) -> str:
    """The label of a job's addresses on a server's NIC, which Gloo accepts as an interface name."""
    return f"{INTERFACE}:{job}"


@dataclass(frozen=True)
class _PlacedRank:
    """A rank on a server."""

    server: LabServer
    address: str


class ServerPlacement:
    """The jobs on the servers of a running lab; thread-safe.

    Args:
        topology: of the lab.
        name_of: maps the name of a server to that of its namespace.
        rto_by_route: whether the minimum retransmission time-out is set on routes.
    """

    def __init__(self, topology: Topology, name_of: wiring.NameOf, rto_by_route: bool) -> None:
        self._servers: Mapping[str, LabServer] = {server.name: server for server in topology.servers}
        self._fixed = frozenset(topology.jobs)
        self._name_of, self._rto_by_route = name_of, rto_by_route
        self._ranks: dict[int, tuple[_PlacedRank, ...]] = {}
        self._seen: set[int] = set()
        self._lock = Lock()

    @property
    def seen(self) -> tuple[int, ...]:
        """The jobs that were placed at any time since :meth:`forget`, in order."""
        with self._lock:
            return tuple(sorted(self._seen))

    def forget(self) -> None:
        """Reset :attr:`seen` to the jobs that are placed now."""
        with self._lock:
            self._seen = set(self._ranks)

    def place(self, job: int, servers: Sequence[str]) -> tuple[str, ...]:
        """Add the addresses of a job's ranks, rank R on ``servers[R]``; returns them in the same order.

        Raises:
            UsageError: the number is out of range or in use, a server is unknown, or there are too few or many.
            MltcpError: the kernel refuses a request; the job is not placed.
        """
        with self._lock:
            self._check(job, servers)
            ranks = tuple(
                _PlacedRank(self._servers[name], str(network_of(job)[rank + 1]))
                for rank, name in enumerate(servers)
            )
            self._ranks[job] = ranks
            self._seen.add(job)
            try:
                self._on_each_server(job, ranks, _add)
            except BaseException:
                self._remove(job)
                raise
            return tuple(rank.address for rank in ranks)

    def unplace(self, job: int) -> None:
        """Remove the addresses of a job; packets that it still sends are lost.

        Raises:
            UsageError: the job is not placed.
        """
        with self._lock:
            if job not in self._ranks:
                placed = ", ".join(map(str, sorted(self._ranks))) or "none"
                raise UsageError(f"unplace: expected a placed job ({placed}), got {job}")
            self._remove(job)

    def _remove(self, job: int) -> None:
        self._on_each_server(job, self._ranks[job], _take)
        del self._ranks[job]

    def _check(self, job: int, servers: Sequence[str]) -> None:
        if not 0 <= job < MAX_JOBS:
            raise UsageError(f"place: job: expected 0 to {MAX_JOBS - 1}, got {job}")
        if job in self._ranks or job in self._fixed:
            raise UsageError(f"place: job {job} is placed already")
        if not 1 <= len(servers) <= MAX_RANKS:
            raise UsageError(f"place: job {job}: expected 1 to {MAX_RANKS} ranks, got {len(servers)}")
        for name in servers:
            if name not in self._servers:
                known = ", ".join(self._servers) or "none"
                raise UsageError(f"place: job {job}: server: expected one of {known}, got {name!r}")

    def _on_each_server(self, job: int, ranks: Sequence[_PlacedRank], action: _Action) -> None:
        for server in dict.fromkeys(rank.server for rank in ranks):
            here = [rank for rank in ranks if rank.server == server]
            elsewhere = [rank for rank in ranks if rank.server != server]
            self._on_server(server, partial(action, job, here, elsewhere))

    def _on_server(self, server: LabServer, action: Callable[[_Nic], None]) -> None:
        def act(route: Any) -> None:
            action(_Nic(route, route.link_lookup(ifname=INTERFACE)[0], self._rto_by_route))

        namespaces.netlink(self._name_of(server.name), act)


@dataclass(frozen=True)
class _Nic:
    """A server's NIC: a netlink socket in its namespace, and the index of the interface."""

    route: Any
    index: int
    rto_by_route: bool


_Action = Callable[[int, Sequence[_PlacedRank], Sequence[_PlacedRank], _Nic], None]
"""A change at one server's NIC for a job: its ranks on that server, and its ranks elsewhere."""


def _add(job: int, here: Sequence[_PlacedRank], elsewhere: Sequence[_PlacedRank], nic: _Nic) -> None:
    for rank in elsewhere:
        wiring.know_neighbour(nic.route, nic.index, rank.address, rank.server.mac)
    for rank in here:
        nic.route.addr("add", index=nic.index, address=rank.address, prefixlen=_PREFIX, label=label_of(job))
    if nic.rto_by_route:
        wiring.limit_rto(nic.route, nic.index, str(network_of(job)), here[0].address)


def _take(job: int, here: Sequence[_PlacedRank], elsewhere: Sequence[_PlacedRank], nic: _Nic) -> None:
    # The kernel may have removed the other addresses and the route together with the first address.
    for rank in reversed(here):
        with suppress(NetlinkError):
            nic.route.addr("del", index=nic.index, address=rank.address, prefixlen=_PREFIX)
    if nic.rto_by_route:
        with suppress(NetlinkError):
            nic.route.route("del", dst=str(network_of(job)), oif=nic.index)
    for rank in elsewhere:
        with suppress(NetlinkError):
            nic.route.neigh("del", ifindex=nic.index, dst=rank.address)
