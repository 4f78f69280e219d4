"""The TCP packets of a capture (pcap or pcapng): times, endpoints, sequence numbers and payload sizes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from mltcp.core.errors import UsageError
from placement.cassini.ip_packets import IpPacket, IpPackets

Endpoint = tuple[bytes, int]
"""A packed IPv4 or IPv6 address and a port."""

_TCP = 6
_SYN, _ACK = 0x02, 0x10


class TcpPacket(NamedTuple):
    """A TCP segment as it was captured.

    Attributes:
        at_ns: since the epoch.
        source: of the packet.
        destination: of the packet.
        sequence: the number of the first byte of payload.
        acknowledged: the number of the next byte that its sender expects; None without the ACK flag.
        payload_bytes: without headers, also of a capture that holds only the headers.
        opens: whether it is the first packet of a connection (SYN without ACK).
    """

    at_ns: int
    source: Endpoint
    destination: Endpoint
    sequence: int
    acknowledged: int | None
    payload_bytes: int
    opens: bool


def tcp_packets(path: Path, on_packets: Callable[[int], None] = lambda _: None) -> Iterator[TcpPacket]:
    """Yield the TCP packets of a capture in its order; other packets are passed over.

    Args:
        path: of the capture; see `IpPackets`.
        on_packets: called periodically with the number of packets read so far.

    Raises:
        UsageError: no capture, or one of another link type, or one whose packets are all cut in their headers.
    """
    packets = IpPackets(path, on_packets)
    some = False
    for packet in packets:
        some = True
        if packet.protocol == _TCP and len(packet.frame) >= packet.begin + 20:
            yield _segment(packet)
    if not some and packets.cut:
        raise UsageError(f"{path}: {packets.none_found()}")


def _segment(packet: IpPacket) -> TcpPacket:
    source_port, port, sequence, acknowledged, offset, flags = struct.unpack_from(
        "!HHIIBB", packet.frame, packet.begin
    )
    return TcpPacket(
        packet.at_ns,
        (packet.source, source_port),
        (packet.destination, port),
        sequence,
        acknowledged if flags & _ACK else None,
        max(0, packet.payload_bytes - 4 * (offset >> 4)),
        flags & (_SYN | _ACK) == _SYN,
    )
