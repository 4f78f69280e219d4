"""The measured use of the lab's trunks: bytes of each job over time, marks and drops."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass

from mltcp.core.errors import UsageError


@dataclass(frozen=True)
class DirectionUse:
    """The use of one direction of a trunk.

    Bytes include Ethernet headers, and count packets that the link carried, not those that it dropped.

    Attributes:
        trunk: name of the trunk.
        source: the sending switch or server.
        target: the receiving switch or server.
        rate_bps: rate of the link.
        bytes_by_job: for each job of the topology or placed meanwhile, bytes carried in each bin of ``LinkUse.bin_ns``.
        packets: packets carried.
        bytes: bytes carried; the sum of all bins and ``unbinned_bytes``.
        unbinned_bytes: bytes that belong to no job (ARP), or were carried after the last bin.
        marks: packets marked CE at the sending end.
        drops: packets dropped because the queue was full.
    """

    trunk: str
    source: str
    target: str
    rate_bps: int
    bytes_by_job: Mapping[int, array[int]]
    packets: int
    bytes: int
    unbinned_bytes: int
    marks: int
    drops: int


@dataclass(frozen=True)
class LinkUse:
    """Every direction of every trunk since the measurement was started.

    Attributes:
        epoch_ns: start of the measurement and of the first bin, CLOCK_MONOTONIC.
        duration_ns: time from the start to this reading.
        bin_ns: length of a bin.
        directions: the directions, in the order of ``Topology.directions``.
    """

    epoch_ns: int
    duration_ns: int
    bin_ns: int
    directions: tuple[DirectionUse, ...]

    @property
    def marks(self) -> int:
        """Marks of all directions."""
        return sum(direction.marks for direction in self.directions)

    @property
    def drops(self) -> int:
        """Drops of all directions."""
        return sum(direction.drops for direction in self.directions)

    def direction(self, source: str, target: str) -> DirectionUse:
        """The direction from ``source`` to ``target``, switches or a server and its switch.

        Raises:
            UsageError: no trunk leads from one to the other.
        """
        for direction in self.directions:
            if (direction.source, direction.target) == (source, target):
                return direction
        known = ", ".join(f"{direction.source}->{direction.target}" for direction in self.directions)
        raise UsageError(f"trunk: expected one of {known}, got {source}->{target}")

    def utilisation(self, direction: DirectionUse) -> float:
        """The share of what the link could have carried that it has carried."""
        return direction.bytes * 8 * 1e9 / (direction.rate_bps * self.duration_ns)
