"""The topology of a lab as data: hosts, servers, switches, and the trunks between them.

:func:`dumbbell` and :func:`bench.lab.two_tier.two_tier` build topologies.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from bench.lab.link import Link
from mltcp.core.errors import UsageError

# virtual_queue.bpf.c reads the job from the third octet of 10.77.JOB.x: the two must agree.
NETWORK = IPv4Network("10.77.0.0/16")
MAX_JOBS = 24
MAX_RANKS = 254
INTERFACE = "eth0"  # of every host and server; Gloo ignores interfaces with one-letter names
# The third octet of the servers' own addresses, which belong to no job.
OF_NO_JOB = 255
MAX_SERVERS = 254
_DEFAULT_MTU = 1500
_NAME = re.compile(r"[a-z][a-z0-9]{0,14}")


@dataclass(frozen=True)
class LabHost:
    """A machine with one interface, for rank ``rank`` of job ``job``, attached to the switch named ``switch``."""

    name: str
    switch: str
    job: int
    rank: int

    @property
    def address(self) -> str:
        """Its IPv4 address, 10.77.JOB.(RANK + 1)."""
        return str(NETWORK.network_address + (self.job << 8) + self.rank + 1)

    @property
    def mac(self) -> str:
        """Its Ethernet address, derived from the IPv4 address, so that neighbours can be configured beforehand."""
        return _mac(self.address)


@dataclass(frozen=True)
class LabServer:
    """A machine for ranks of any jobs, several at a time; they have addresses while they are placed there.

    Its NIC is the trunk that has the server at its left end, shaped and measured like any other trunk.

    Attributes:
        name: of the server.
        number: from 0, for its own address.
        slots: the number of ranks that it can run at a time.
        loopback: what carries bytes between its ranks; None: as fast as the processors copy.
    """

    name: str
    number: int
    slots: int = 1
    loopback: Link | None = None

    @property
    def address(self) -> str:
        """Its own IPv4 address, 10.77.255.(NUMBER + 1), whose bytes count for the job of the receiver, if any."""
        return str(NETWORK.network_address + (OF_NO_JOB << 8) + self.number + 1)

    @property
    def mac(self) -> str:
        """Its Ethernet address, derived from its own IPv4 address; the jobs' addresses share it."""
        return _mac(self.address)


@dataclass(frozen=True)
class LabSwitch:
    """A switch (a bridge in a namespace of its own)."""

    name: str


@dataclass(frozen=True)
class Trunk:
    """A cable with the bottleneck ``link`` in each direction: between two switches, or from a server to a switch.

    A trunk may have the name of the node at its left end: a NIC that of its server, an uplink that of its switch.
    """

    name: str
    left: str
    right: str
    link: Link


@dataclass(frozen=True)
class Direction:
    """One direction of a trunk, with the names of its interfaces at both ends."""

    trunk: Trunk
    source: str
    target: str
    source_port: str
    target_port: str


@dataclass(frozen=True)
class Topology:
    """Hosts, servers, switches and trunks that form one tree. The bridges run no spanning tree, so loops are an error.

    Raises:
        UsageError: a name, or a rank of a job, occurs twice; a switch does not exist; the trunks form a loop or do
            not connect everything; a server is not at the left end of one trunk; or trunks have different MTUs.
    """

    hosts: tuple[LabHost, ...]
    switches: tuple[LabSwitch, ...]
    trunks: tuple[Trunk, ...] = ()
    servers: tuple[LabServer, ...] = ()

    def __post_init__(self) -> None:
        _check_names([trunk.name for trunk in self.trunks])
        _check_names([*self.places, *(trunk.name for trunk in self.trunks if trunk.name != trunk.left)])
        _check_places(self.hosts)
        _check_references(self)
        _check_servers(self)
        _check_tree(self)
        if len({trunk.link.mtu for trunk in self.trunks}) > 1:
            raise UsageError(
                "topology: mtu: expected the same for every trunk, because the hosts share one network"
            )

    @property
    def mtu(self) -> int:
        """The MTU of every interface, in bytes."""
        return self.trunks[0].link.mtu if self.trunks else _DEFAULT_MTU

    @property
    def marks_ecn(self) -> bool:
        """Whether any trunk marks."""
        return any(trunk.link.ecn_threshold_bytes is not None for trunk in self.trunks)

    @property
    def offloads(self) -> bool:
        """Whether interfaces keep their segmentation offloads: every trunk's link has them."""
        return bool(self.trunks) and all(trunk.link.offloads for trunk in self.trunks)

    @property
    def machines(self) -> tuple[LabHost | LabServer, ...]:
        """The hosts, and then the servers."""
        return (*self.hosts, *self.servers)

    @property
    def places(self) -> tuple[str, ...]:
        """The names of all hosts, servers and switches, each of which has a namespace."""
        return (*(machine.name for machine in self.machines), *(switch.name for switch in self.switches))

    @property
    def jobs(self) -> tuple[int, ...]:
        """The numbers of the jobs that have hosts of their own, in order."""
        return tuple(sorted({host.job for host in self.hosts}))

    def hosts_of(self, job: int) -> tuple[LabHost, ...]:
        """The hosts of a job, in the order of their ranks."""
        return tuple(sorted((host for host in self.hosts if host.job == job), key=lambda host: host.rank))

    def directions(self) -> Iterator[Direction]:
        """Each trunk from left to right, then from right to left."""
        servers = {server.name for server in self.servers}
        for trunk in self.trunks:
            left_port = INTERFACE if trunk.left in servers else trunk.name
            yield Direction(trunk, trunk.left, trunk.right, left_port, trunk.name)
            yield Direction(trunk, trunk.right, trunk.left, trunk.name, left_port)

    def nic_of(self, server: str) -> Trunk:
        """The trunk that has ``server`` at its left end."""
        return next(trunk for trunk in self.trunks if trunk.left == server)

    def ports_of(self, switch: str) -> dict[str, tuple[LabHost | LabServer, ...]]:
        """The machines reached through each port of ``switch``; a port has the name of its host or trunk."""
        ports: dict[str, tuple[LabHost | LabServer, ...]] = {
            host.name: (host,) for host in self.hosts if host.switch == switch
        }
        for direction in self.directions():
            if direction.source == switch:
                beyond = _reachable(self.trunks, direction.target, without=direction.trunk)
                ports[direction.trunk.name] = tuple(
                    machine for machine in self.machines if _is_at(machine, beyond)
                )
        return ports


def dumbbell(jobs: int, ranks: int | Sequence[int], link: Link) -> Topology:
    """Two switches with ``link`` between them: the first half of each job's ranks is on the left, the rest right.

    Args:
        jobs: how many.
        ranks: of every job, or of each.
        link: the bottleneck.

    Raises:
        UsageError: ``jobs`` or ``ranks`` is out of range.
    """
    if not 1 <= jobs <= MAX_JOBS:
        raise UsageError(f"dumbbell: jobs: expected 1 to {MAX_JOBS}, got {jobs}")
    of_each = [ranks] * jobs if isinstance(ranks, int) else list(ranks)
    for number in of_each:
        if not 2 <= number <= MAX_RANKS:
            raise UsageError(f"dumbbell: ranks: expected 2 to {MAX_RANKS}, got {number}")
    hosts = tuple(
        LabHost(f"j{job}r{rank}", "left" if rank < number // 2 else "right", job, rank)
        for job, number in enumerate(of_each)
        for rank in range(number)
    )
    return Topology(hosts, (LabSwitch("left"), LabSwitch("right")), (Trunk("trunk", "left", "right", link),))


def _is_at(machine: LabHost | LabServer, places: set[str]) -> bool:
    return (machine.switch if isinstance(machine, LabHost) else machine.name) in places


def _mac(address: str) -> str:
    return ":".join(f"{octet:02x}" for octet in (0x02, 0x4D, *IPv4Address(address).packed))


def _check_names(names: list[str]) -> None:
    for name in names:
        if _NAME.fullmatch(name) is None:
            raise UsageError(f"topology: name: expected 1 to 15 of a-z and 0-9, a letter first, got {name!r}")
        if names.count(name) > 1:
            raise UsageError(f"topology: the name {name!r} occurs more than once")


def _check_places(hosts: tuple[LabHost, ...]) -> None:
    taken: dict[tuple[int, int], str] = {}
    for host in hosts:
        if not (0 <= host.job < MAX_JOBS and 0 <= host.rank < MAX_RANKS):
            ranges = f"job 0 to {MAX_JOBS - 1} and rank 0 to {MAX_RANKS - 1}"
            raise UsageError(f"topology: host {host.name}: expected {ranges}, got {host.job} and {host.rank}")
        other = taken.setdefault((host.job, host.rank), host.name)
        if other != host.name:
            raise UsageError(f"topology: {other} and {host.name} are both rank {host.rank} of job {host.job}")


def _check_references(topology: Topology) -> None:
    known = {switch.name for switch in topology.switches}
    servers = {server.name for server in topology.servers}
    wanted = [(host.name, host.switch) for host in topology.hosts]
    wanted += [(trunk.name, trunk.left) for trunk in topology.trunks if trunk.left not in servers]
    wanted += [(trunk.name, trunk.right) for trunk in topology.trunks]
    for name, switch in wanted:
        if switch not in known:
            raise UsageError(
                f"topology: {name}: switch: expected one of {', '.join(sorted(known))}, got {switch!r}"
            )


def _check_servers(topology: Topology) -> None:
    numbers: dict[int, str] = {}
    for server in topology.servers:
        if not 0 <= server.number < MAX_SERVERS or server.slots < 1:
            ranges = f"number 0 to {MAX_SERVERS - 1} and 1 or more slots"
            raise UsageError(
                f"topology: server {server.name}: expected {ranges}, got {server.number} and {server.slots}"
            )
        other = numbers.setdefault(server.number, server.name)
        if other != server.name:
            raise UsageError(f"topology: {other} and {server.name} both have the number {server.number}")
        nics = sum(trunk.left == server.name for trunk in topology.trunks)
        if nics != 1:
            raise UsageError(
                f"topology: server {server.name}: expected one trunk with it at the left end, got {nics}"
            )


def _check_tree(topology: Topology) -> None:
    if not topology.switches:
        raise UsageError("topology: expected at least one switch, got none")
    reached = _reachable(topology.trunks, topology.switches[0].name)
    if not reached.issuperset(switch.name for switch in topology.switches):
        lost = sorted({switch.name for switch in topology.switches} - reached)
        raise UsageError(f"topology: no trunk leads from {topology.switches[0].name} to {', '.join(lost)}")
    if len(topology.trunks) >= len(topology.switches) + len(topology.servers):
        raise UsageError("topology: the trunks form a loop")


def _reachable(trunks: Iterable[Trunk], start: str, without: Trunk | None = None) -> set[str]:
    usable = [trunk for trunk in trunks if trunk != without]
    reached, waiting = {start}, deque([start])
    while waiting:
        here = waiting.popleft()
        for trunk in usable:
            if here in (trunk.left, trunk.right):
                there = trunk.right if here == trunk.left else trunk.left
                if there not in reached:
                    reached.add(there)
                    waiting.append(there)
    return reached
