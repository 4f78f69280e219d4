"""The cluster: servers with GPUs, joined by links to switches, as a tree."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

from mltcp.core.errors import UsageError
from mltcp.core.json_files import read_json

GPU_MEMORY_MB = 32768
"""GPU memory in the published simulator (the paper's text says 16 GB)."""

_MOST, _MOST_GPUS = 1_000_000_000, 10_000_000
_LinkKey = TypeVar("_LinkKey", int, str)
_FRACTION = re.compile(r"\d{1,20}(/\d{1,20}|(\.\d{1,20})?(e[+-]?\d{1,2})?)")


@dataclass(frozen=True)
class Gpu:
    """g_{i,j} of Table II.

    Attributes:
        memory_mb: what workers may occupy together.
        performance: P_{i,j}, over that of the GPU on which the models' times were measured.
    """

    memory_mb: int = GPU_MEMORY_MB
    performance: Fraction = Fraction(1)


@dataclass(frozen=True)
class Server:
    """S_i of Table II.

    Attributes:
        name: unique in the cluster.
        gpus: its GPUs.
        switch: the name of the switch that its NIC is connected to.
        nic_speed: of its NIC, over that of the NIC on which the contention was measured.
    """

    name: str
    gpus: tuple[Gpu, ...]
    switch: str = "switch"
    nic_speed: Fraction = Fraction(1)


@dataclass(frozen=True)
class Switch:
    """A switch with its link to the switch above; the root has none.

    Attributes:
        name: unique in the cluster.
        above: the switch above, or None.
        uplink_speed: of the link to it, over that of the NIC on which the contention was measured.
    """

    name: str
    above: str | None = None
    uplink_speed: Fraction = Fraction(1)


@dataclass(frozen=True)
class Link:
    """A link of the cluster, which transfers share.

    Attributes:
        name: that of the server or switch at its lower end.
        speed: over that of the NIC on which the contention was measured.
    """

    name: str
    speed: Fraction


@dataclass(frozen=True)
class Cluster:
    """Servers below switches, a tree.

    Raises:
        UsageError: a name twice, an unknown switch, no or several roots, a circle, a server without GPUs, a speed,
            performance or memory that is not positive.
    """

    servers: tuple[Server, ...]
    switches: tuple[Switch, ...] = (Switch("switch"),)

    def __post_init__(self) -> None:
        _check(self.servers, self.switches)

    @classmethod
    def star(cls, servers: int = 16, gpus: int = 4, gpu: Gpu | None = None) -> Self:
        """`servers` equal servers of `gpus` GPUs around one switch, as in the paper's evaluation (V-A)."""
        if servers < 1 or gpus < 1 or servers * gpus > _MOST_GPUS:
            raise UsageError(
                f"servers and gpus: expected 1 or more, and at most {_MOST_GPUS} GPUs in all, got {servers} and {gpus}"
            )
        return cls(tuple(Server(f"s{number}", (gpu or Gpu(),) * gpus) for number in range(servers)))

    @classmethod
    def of_nodes(cls, nodes: int, gpus: int) -> Self:
        """`nodes` servers of `gpus` GPUs, each below a switch of its own: its rack is the node alone."""
        servers = tuple(Server(f"s{node}", (Gpu(),) * gpus, f"node{node}") for node in range(nodes))
        return cls(servers, (Switch("core"), *(Switch(f"node{node}", "core") for node in range(nodes))))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a cluster from JSON: {"servers": [{"name", "gpus", ...}], "switches": [{"name", "above", ...}]}.

        `gpus` is a number of GPUs, with "memory_mb" and "performance" of the server for all of them, or a list of
        objects with these two.

        Raises:
            UsageError: the file cannot be read, or is no cluster.
        """
        document = read_json(path)
        try:
            return cls.from_document(document)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """Build a cluster from a parsed JSON document; see `load`."""
        try:
            servers = tuple(_server(each) for each in document["servers"])
            default = [{"name": "switch"}]
            switches = tuple(_switch(each) for each in document.get("switches", default))
        except (AttributeError, KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise UsageError(f"not a cluster: {error!r}") from None
        return cls(servers, switches)

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """The NICs, in the order of the servers, and then the uplinks of the switches."""
        nics = [Link(server.name, server.nic_speed) for server in self.servers]
        uplinks = [Link(each.name, each.uplink_speed) for each in self.switches if each.above is not None]
        return tuple(nics + uplinks)

    @cached_property
    def gpus(self) -> tuple[tuple[int, Gpu], ...]:
        """All GPUs, server by server, each with the number of its server."""
        return tuple((number, gpu) for number, server in enumerate(self.servers) for gpu in server.gpus)

    @cached_property
    def racks(self) -> tuple[int, ...]:
        """The number of each server's rack, which are the servers of a switch, in the order of their first servers."""
        numbers: dict[str, int] = {}
        return tuple(numbers.setdefault(server.switch, len(numbers)) for server in self.servers)

    def links_between(self, servers: Iterable[int]) -> tuple[int, ...]:
        """The numbers of the links that a transfer among these servers uses, in the order of `links`; none for one.

        These are the links that have some of the servers, but not all of them, below.
        """
        return tuple(sorted(used_links([self.ways[number] for number in dict.fromkeys(servers)])))

    def links_of(self, job: str, gpus: Sequence[int]) -> tuple[int, ...]:
        """The numbers of the links that a job on these GPUs uses; in a tree they are the same for all jobs."""
        return self.links_between(self.gpus[gpu][0] for gpu in gpus)

    def by_node(self, gpus: Iterable[int]) -> dict[int, int]:
        """How many of these GPUs each server has; servers without any are left out."""
        counts: dict[int, int] = {}
        for gpu in gpus:
            server = self.gpus[gpu][0]
            counts[server] = counts.get(server, 0) + 1
        return counts

    @cached_property
    def ways(self) -> list[tuple[int, ...]]:
        """For each server, the numbers of the links on its path to the root."""
        numbers = {link.name: number for number, link in enumerate(self.links)}
        above = {each.name: each.above for each in self.switches}
        ways = []
        for number, server in enumerate(self.servers):
            way, switch = [number], server.switch
            while (higher := above[switch]) is not None:
                way.append(numbers[switch])
                switch = higher
            ways.append(tuple(way))
        return ways


def used_links(ways: Sequence[Iterable[_LinkKey]]) -> list[_LinkKey]:
    """The links that a transfer among servers uses: those with some of the servers, but not all of them, below.

    Args:
        ways: for each of the servers, the links on its path to its root.
    """
    below = Counter(link for way in ways for link in way)
    return [link for link, count in below.items() if count < len(ways)]


def _server(document: Mapping[str, Any]) -> Server:
    gpus = document["gpus"]
    listed = [document] * _whole(gpus, _MOST_GPUS) if isinstance(gpus, int) else gpus
    return Server(
        str(document["name"]),
        tuple(
            Gpu(_whole(each.get("memory_mb", GPU_MEMORY_MB)), _fraction(each.get("performance", 1)))
            for each in listed
        ),
        str(document.get("switch", "switch")),
        _fraction(document.get("nic_speed", 1)),
    )


def _switch(document: Mapping[str, Any]) -> Switch:
    above = document.get("above")
    speed = _fraction(document.get("uplink_speed", 1))
    return Switch(str(document["name"]), None if above is None else str(above), speed)


def _whole(value: Any, most: int = _MOST) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise UsageError(f"expected a whole number up to {most}, got {value!r}")
    return value


def _fraction(value: Any) -> Fraction:
    """Parse a number such as 2, 0.5, "1/3" or "0.125", of bounded length."""
    text = str(value)
    if isinstance(value, bool) or not _FRACTION.fullmatch(text):
        raise UsageError(f"expected a number or a fraction such as '2/3', got {value!r}")
    return Fraction(text)


def _check(servers: tuple[Server, ...], switches: tuple[Switch, ...]) -> None:
    names = [each.name for each in servers] + [each.name for each in switches]
    twice = {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else set()
    if twice:
        raise UsageError(f"cluster: the name {min(twice)!r} is used more than once")
    if not servers:
        raise UsageError("cluster: servers: expected one or more, got no servers")
    above = {each.name: each.above for each in switches}
    roots = [name for name, parent in above.items() if parent is None]
    if len(roots) != 1:
        raise UsageError(f"cluster: expected one switch without a switch above it, got {len(roots)}")
    for kind, name, parent in [
        *(("server", each.name, each.switch) for each in servers),
        *(("switch", each.name, each.above) for each in switches if each.above is not None),
    ]:
        if parent not in above:
            raise UsageError(f"cluster: {kind} {name!r}: no switch {parent!r}; there are {', '.join(above)}")
    for each in switches:
        _check_no_circle(each.name, above)
        if each.uplink_speed <= 0:
            raise UsageError(
                f"cluster: switch {each.name!r}: uplink_speed: expected more than 0, got {each.uplink_speed}"
            )
    for server in servers:
        _check_server(server)


def _check_no_circle(name: str, above: Mapping[str, str | None]) -> None:
    seen = {name}
    parent = above[name]
    while parent is not None:
        if parent in seen:
            raise UsageError(f"cluster: expected a tree of switches, got {name!r} above itself")
        seen.add(parent)
        parent = above[parent]


def _check_server(server: Server) -> None:
    if not server.gpus:
        raise UsageError(f"cluster: server {server.name!r}: gpus: expected one or more, got no GPUs")
    if server.nic_speed <= 0:
        raise UsageError(
            f"cluster: server {server.name!r}: nic_speed: expected more than 0, got {server.nic_speed}"
        )
    for gpu in server.gpus:
        if gpu.memory_mb <= 0 or gpu.performance <= 0:
            raise UsageError(
                f"cluster: server {server.name!r}: memory_mb and performance of a GPU: expected more than 0"
            )
