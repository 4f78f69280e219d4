"""Racks of servers under a core switch, their uplinks over-subscribed: Figure 4.10 of the Cassini thesis in small.

The thesis' testbed has 24 servers of one GPU and one NIC each under 13 logical switches, over-subscribed 2:1 (section
4.5.1). Here a rack is a switch with servers of several slots; each server's NIC and each rack's uplink is a trunk of
the lab, shaped, marked and measured in both directions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from bench.lab.link import Link
from bench.lab.topology import Server, Switch, Topology, Trunk
from mltcp.core.errors import UsageError
from placement.model import cluster

CORE = "core"
NIC = Link(70_000_000, 150_000, 60_000, mtu=3000)
"""That of a lab whose uplinks a machine with two processors can fill all at once; see docs/lab.md."""

_MOST_SERVERS = 64
_MOST_SLOTS = 64


@dataclass(frozen=True)
class TwoTier:
    """The shape of a two-tier lab.

    Attributes:
        racks: how many racks hang on the core switch.
        servers: how many servers a rack has.
        slots: how many ranks a server takes at a time.
        nic: the link from each server to its rack's switch.
        oversubscription: the rate of all NICs of a rack together, over that of the rack's uplink.

    Raises:
        UsageError: a value is outside its range, which the message names.
    """

    racks: int = 4
    servers: int = 3
    slots: int = 2
    nic: Link = NIC
    oversubscription: Fraction = Fraction(2)

    def __post_init__(self) -> None:
        for name, most in (("racks", _MOST_SERVERS), ("servers", _MOST_SERVERS), ("slots", _MOST_SLOTS)):
            value = getattr(self, name)
            if not 1 <= value <= most:
                raise UsageError(f"two-tier lab: {name} is {value}: 1 to {most} are allowed")
        if self.racks * self.servers > _MOST_SERVERS:
            raise UsageError(
                f"two-tier lab: {self.racks} racks of {self.servers} servers: {_MOST_SERVERS} servers are allowed"
            )
        if self.oversubscription <= 0:
            raise UsageError(
                f"two-tier lab: oversubscription is {self.oversubscription}: more than 0 is allowed"
            )

    @property
    def uplink(self) -> Link:
        """The link from each rack's switch to the core switch; it queues and marks as a NIC does."""
        return replace(self.nic, rate_bps=int(self.servers * self.nic.rate_bps / self.oversubscription))

    @property
    def capacities_bps(self) -> dict[str, int]:
        """What each link carries, by the names that it has both in the lab and in the cluster."""
        return {trunk.name: trunk.link.rate_bps for trunk in two_tier(self).trunks}


def rack_name(rack: int) -> str:
    """The name of a rack's switch and of its uplink."""
    return f"r{rack}"


def server_name(rack: int, server: int) -> str:
    """The name of a server and of its NIC."""
    return f"{rack_name(rack)}s{server}"


def two_tier(shape: TwoTier) -> Topology:
    """The lab: a NIC's trunk is named like its server, an uplink's like its rack."""
    places = [(rack, server) for rack in range(shape.racks) for server in range(shape.servers)]
    servers = tuple(Server(server_name(*place), number, shape.slots) for number, place in enumerate(places))
    racks = [rack_name(rack) for rack in range(shape.racks)]
    nics = [
        Trunk(server_name(*place), server_name(*place), rack_name(place[0]), shape.nic) for place in places
    ]
    uplinks = [Trunk(rack, rack, CORE, shape.uplink) for rack in racks]
    switches = (*(Switch(rack) for rack in racks), Switch(CORE))
    return Topology((), switches, (*nics, *uplinks), servers)


def two_tier_cluster(shape: TwoTier) -> cluster.Cluster:
    """The same lab as policies see it: its links are those of :func:`two_tier`, by the same names and in that order.

    A slot is a GPU, and the speed of a link is that over a NIC's.
    """
    speed = Fraction(shape.uplink.rate_bps, shape.nic.rate_bps)
    return cluster.Cluster(
        tuple(
            cluster.Server(server_name(rack, server), (cluster.Gpu(),) * shape.slots, rack_name(rack))
            for rack in range(shape.racks)
            for server in range(shape.servers)
        ),
        (
            *(cluster.Switch(rack_name(rack), CORE, speed) for rack in range(shape.racks)),
            cluster.Switch(CORE),
        ),
    )
