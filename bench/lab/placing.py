"""Which servers of a lab the ranks of jobs are on, and the addresses that they have there meanwhile.

Rank R of job J has the address 10.77.J.(R + 1) on the NIC of its server, under the label ``eth0:J``: Gloo takes a label
for the name of an interface, and so binds every rank of the job to an address of that job, however many the NIC has.
The network of a job is 10.77.J.0/24, so that also connections that are bound to nothing leave with its address. Two
ranks on one server reach each other over its loopback, as the kernel does with all that is local.
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
from bench.lab.topology import INTERFACE, MAX_JOBS, MAX_RANKS, NETWORK, Server, Topology
from mltcp.core.errors import UsageError

_PREFIX = 24


def network_of(job: int) -> IPv4Network:
    """The addresses of a job."""
    return IPv4Network((int(NETWORK.network_address) + (job << 8), _PREFIX))


def label_of(job: int) -> str:
    """What the addresses of a job are called on a server's NIC, and Gloo takes for an interface."""
    return f"{INTERFACE}:{job}"


@dataclass(frozen=True)
class _Seat:
    """A rank on a server."""

    server: Server
    address: str


class Placing:
    """The jobs on the servers of a lab that stands; safe to use from several threads.

    Args:
        topology: of the lab.
        name_of: from the name of a server to that of its namespace.
        rto_by_route: whether the least retransmission time-out is set on routes.
    """

    def __init__(self, topology: Topology, name_of: wiring.NameOf, rto_by_route: bool) -> None:
        self._servers: Mapping[str, Server] = {server.name: server for server in topology.servers}
        self._fixed = frozenset(topology.jobs)
        self._name_of, self._rto_by_route = name_of, rto_by_route
        self._seats: dict[int, tuple[_Seat, ...]] = {}
        self._seen: set[int] = set()
        self._lock = Lock()

    @property
    def seen(self) -> tuple[int, ...]:
        """The jobs that were placed at any time since :meth:`forget`, in order."""
        with self._lock:
            return tuple(sorted(self._seen))

    def forget(self) -> None:
        """Have seen only what is placed now."""
        with self._lock:
            self._seen = set(self._seats)

    def place(self, job: int, servers: Sequence[str]) -> tuple[str, ...]:
        """Give the ranks of a job addresses, rank R on ``servers[R]``; gives the addresses, in the same order.

        Raises:
            UsageError: the number is not allowed or in use, a server is unknown, or there are too few or many.
            MltcpError: the kernel refuses a request; the job then is nowhere.
        """
        with self._lock:
            self._check(job, servers)
            seats = tuple(
                _Seat(self._servers[name], str(network_of(job)[rank + 1]))
                for rank, name in enumerate(servers)
            )
            self._seats[job] = seats
            self._seen.add(job)
            try:
                self._on_each_server(job, seats, _add)
            except BaseException:
                self._remove(job)
                raise
            return tuple(seat.address for seat in seats)

    def unplace(self, job: int) -> None:
        """Take the addresses of a job away; what it still sends goes nowhere.

        Raises:
            UsageError: the job is not placed.
        """
        with self._lock:
            if job not in self._seats:
                placed = ", ".join(map(str, sorted(self._seats))) or "none"
                raise UsageError(f"job {job} is not placed on the lab's servers: placed are {placed}")
            self._remove(job)

    def _remove(self, job: int) -> None:
        self._on_each_server(job, self._seats[job], _take)
        del self._seats[job]

    def _check(self, job: int, servers: Sequence[str]) -> None:
        if not 0 <= job < MAX_JOBS:
            raise UsageError(f"place: job {job}: 0 to {MAX_JOBS - 1} are allowed")
        if job in self._seats or job in self._fixed:
            raise UsageError(f"place: job {job} is there already")
        if not 1 <= len(servers) <= MAX_RANKS:
            raise UsageError(f"place: job {job}: {len(servers)} ranks: 1 to {MAX_RANKS} are allowed")
        for name in servers:
            if name not in self._servers:
                known = ", ".join(self._servers) or "none"
                raise UsageError(f"place: job {job}: server {name!r} is unknown: there are {known}")

    def _on_each_server(self, job: int, seats: Sequence[_Seat], action: _Action) -> None:
        for server in dict.fromkeys(seat.server for seat in seats):
            here = [seat for seat in seats if seat.server == server]
            elsewhere = [seat for seat in seats if seat.server != server]
            self._on_server(server, partial(action, job, here, elsewhere))

    def _on_server(self, server: Server, action: Callable[[_Nic], None]) -> None:
        def act(route: Any) -> None:
            action(_Nic(route, route.link_lookup(ifname=INTERFACE)[0], self._rto_by_route))

        namespaces.netlink(self._name_of(server.name), act)


@dataclass(frozen=True)
class _Nic:
    """A server's NIC, as the kernel is told of it."""

    route: Any
    index: int
    rto_by_route: bool


_Action = Callable[[int, Sequence[_Seat], Sequence[_Seat], _Nic], None]
"""What is done for a job about its seats that are on a server, and those elsewhere, at that server's NIC."""


def _add(job: int, here: Sequence[_Seat], elsewhere: Sequence[_Seat], nic: _Nic) -> None:
    for seat in elsewhere:
        wiring.know_neighbour(nic.route, nic.index, seat.address, seat.server.mac)
    for seat in here:
        nic.route.addr("add", index=nic.index, address=seat.address, prefixlen=_PREFIX, label=label_of(job))
    if nic.rto_by_route:
        wiring.limit_rto(nic.route, nic.index, str(network_of(job)), here[0].address)


def _take(job: int, here: Sequence[_Seat], elsewhere: Sequence[_Seat], nic: _Nic) -> None:
    # What is not there any more is no error: the first address may have taken the others and the route with it.
    for seat in reversed(here):
        with suppress(NetlinkError):
            nic.route.addr("del", index=nic.index, address=seat.address, prefixlen=_PREFIX)
    if nic.rto_by_route:
        with suppress(NetlinkError):
            nic.route.route("del", dst=str(network_of(job)), oif=nic.index)
    for seat in elsewhere:
        with suppress(NetlinkError):
            nic.route.neigh("del", ifindex=nic.index, dst=seat.address)
