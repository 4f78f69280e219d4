"""The network of the cluster: trees of servers, switches and links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from placement.model.cluster import links_between


@dataclass(frozen=True)
class TreeLink:
    """A link of the tree; it has the name of the server or switch at its lower end.

    Attributes:
        above: the switch at its upper end.
        capacity_bps: capacity in each direction.
    """

    above: str
    capacity_bps: int


class NetworkTree:
    """Servers and switches with their links.

    A switch without an uplink is a root. The capacity between roots is unlimited.
    """

    def __init__(self) -> None:
        self.links: dict[str, TreeLink] = {}
        self.switches: set[str] = set()
        self._ways: dict[str, tuple[str, ...]] = {}

    def add(self, name: str, above: str, capacity_bps: int) -> None:
        """Connect a server or switch to the switch above it."""
        self.links[name] = TreeLink(above, capacity_bps)
        self.switches.add(above)
        self._ways.clear()

    def remove(self, server: str) -> None:
        """Disconnect a server."""
        del self.links[server]
        self._ways.clear()

    def lies_above(self, switch: str, other: str) -> bool:
        """Whether a switch equals the other one or is above it."""
        return switch == other or switch in self._switches_above(other)

    def between(self, servers: Iterable[str]) -> tuple[str, ...]:
        """The links that traffic among these servers uses: those with some, but not all, of the servers below them."""
        return links_between([self._way(server) for server in dict.fromkeys(servers)])

    def _way(self, server: str) -> tuple[str, ...]:
        """The links on the path from a server to its root."""
        way = self._ways.get(server)
        if way is None:
            above = [switch for switch in self._switches_above(server) if switch in self.links]
            way = self._ways[server] = (server, *above)
        return way

    def _switches_above(self, name: str) -> Iterator[str]:
        link = self.links.get(name)
        while link is not None:
            yield link.above
            link = self.links.get(link.above)
