"""A two-tier lab: racks of servers under a core switch with over-subscribed uplinks (Cassini thesis, Figure 4.10).

The thesis' testbed has 24 servers of one GPU and one NIC each under 13 logical switches, over-subscribed 2:1 (section
4.5.1). Here a rack is a switch with servers of several slots; each server's NIC and each rack's uplink is a trunk of
the lab, shaped, marked and measured in both directions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from bench.lab.link import Link
from bench.lab.topology import LabServer, LabSwitch, Topology, Trunk
from mltcp.core.errors import UsageError
from placement.model import cluster

CORE = "core"
NIC = Link(70_000_000, 150_000, 60_000, mtu=3000)
"""The default NIC: a machine with two processors can fill all uplinks of such a lab at once; see docs/lab.md."""

_LOOPBACK_QUEUE_BYTES = 2_000_000
_MOST_SERVERS = 64
_MOST_SLOTS = 64


@dataclass(frozen=True)
class TwoTier:
    """The shape of a two-tier lab.

    Attributes:
        racks: the number of racks.
        servers: the number of servers in a rack.
        slots: the number of ranks that a server can run at a time.
        nic: the link from each server to its rack's switch.
        oversubscription: the sum of the rates of a rack's NICs, divided by the rate of its uplink.
        inside_bps: of each rank to the next one of a ring that has all slots of a server, in bits per second; None: as
            fast as the processors copy.

    Raises:
        UsageError: a value is outside its range, which the message names.
    """

    racks: int = 4
    servers: int = 3
    slots: int = 2
    nic: Link = NIC
    oversubscription: Fraction = Fraction(2)
    inside_bps: int | None = None

    def __post_init__(self) -> None:
        for name, most in (("racks", _MOST_SERVERS), ("servers", _MOST_SERVERS), ("slots", _MOST_SLOTS)):
            value = getattr(self, name)
            if not 1 <= value <= most:
                raise UsageError(f"two-tier lab: {name}: expected 1 to {most}, got {value}")
        if self.racks * self.servers > _MOST_SERVERS:
            raise UsageError(
                f"two-tier lab: expected at most {_MOST_SERVERS} servers, got {self.racks} racks of {self.servers}"
            )
        if self.oversubscription <= 0:
            raise UsageError(
                f"two-tier lab: oversubscription: expected more than 0, got {self.oversubscription}"
            )

    @property
    def uplink(self) -> Link:
        """The link from each rack's switch to the core switch, with the queue and the threshold of a NIC."""
        return replace(self.nic, rate_bps=int(self.servers * self.nic.rate_bps / self.oversubscription))

    @property
    def loopback(self) -> Link | None:
        """What carries bytes between the ranks of a server: so many times a rank's rate as there are slots."""
        if self.inside_bps is None:
            return None
        return Link(self.slots * self.inside_bps, _LOOPBACK_QUEUE_BYTES, mtu=self.nic.mtu, offloads=True)

    @property
    def capacities_bps(self) -> dict[str, int]:
        """The rate of each link, by the name that it has in the lab and in the cluster."""
        return {trunk.name: trunk.link.rate_bps for trunk in two_tier(self).trunks}


def rack_name(rack: int) -> str:
    """The name of a rack's switch and of its uplink."""
    return f"r{rack}"


def server_name(rack: int, server: int) -> str:
    """The name of a server and of its NIC."""
    return f"{rack_name(rack)}s{server}"


def two_tier(shape: TwoTier) -> Topology:
    """The lab's topology; the trunk of a NIC has the name of its server, that of an uplink the name of its rack."""
    places = [(rack, server) for rack in range(shape.racks) for server in range(shape.servers)]
    servers = tuple(
        LabServer(server_name(*place), number, shape.slots, shape.loopback)
        for number, place in enumerate(places)
    )
    racks = [rack_name(rack) for rack in range(shape.racks)]
    nics = [
        Trunk(server_name(*place), server_name(*place), rack_name(place[0]), shape.nic) for place in places
    ]
    uplinks = [Trunk(rack, rack, CORE, shape.uplink) for rack in racks]
    switches = (*(LabSwitch(rack) for rack in racks), LabSwitch(CORE))
    return Topology((), switches, (*nics, *uplinks), servers)


def two_tier_cluster(shape: TwoTier) -> cluster.Cluster:
    """The same lab as a cluster for placement policies, with the names and the order of its links.

    A slot is a GPU; the speed of a link is relative to a NIC's.
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
