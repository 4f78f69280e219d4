"""The TCP packets of a capture (pcap or pcapng): times, endpoints, sequence numbers and payload sizes.

scapy reads the file. Its dissection of a packet takes 0.2 ms, which is minutes for a capture of this kind, so the few
header fields that are needed are unpacked here.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mltcp.core.errors import UsageError

Endpoint = tuple[bytes, int]
"""A packed IPv4 or IPv6 address and a port."""

_IPV4, _IPV6, _VLAN_TYPES = 0x0800, 0x86DD, (0x8100, 0x88A8)
_TCP = 6
_SYN, _ACK = 0x02, 0x10
_NS_PER_S = 10**9
_PROGRESS_PACKETS = 4096

_LINK_ETHERNET, _LINK_NULL, _LINK_COOKED, _LINK_COOKED_2 = 1, (0, 108), 113, 276
_LINK_RAW = (12, 101, 228, 229)


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
        path: of the capture, of Ethernet, Linux cooked (``tcpdump -i any``), loopback or raw IP packets.
        on_packets: called periodically with the number of packets read so far.

    Raises:
        UsageError: no capture, or one of another link type.
    """
    from scapy.error import Scapy_Exception
    from scapy.utils import RawPcapReader

    # scapy raises errors of any type for a file that is damaged in its headers.
    try:
        reader = RawPcapReader(str(path))
    except (OSError, EOFError, Scapy_Exception, struct.error, ValueError) as error:
        raise UsageError(f"{path}: {str(error) or 'no capture'}") from None
    with reader:
        try:
            for number, (frame, metadata) in enumerate(reader):
                if number % _PROGRESS_PACKETS == 0:
                    on_packets(number)
                found = _packet(path, frame, *_time_and_link(reader, metadata))
                if found is not None:
                    yield found
        except (OSError, EOFError, Scapy_Exception, struct.error, ValueError) as error:
            raise UsageError(f"{path}: {str(error) or 'ends in the middle of a packet'}") from None


def _time_and_link(reader: Any, metadata: Any) -> tuple[int, int]:
    if hasattr(metadata, "tshigh"):
        ticks = (metadata.tshigh << 32) + metadata.tslow
        return ticks * _NS_PER_S // metadata.tsresol, metadata.linktype
    return metadata.sec * _NS_PER_S + metadata.usec * (1 if reader.nano else 1000), reader.linktype


def _packet(path: Path, frame: bytes, at_ns: int, link: int) -> TcpPacket | None:
    network = _network_layer(path, frame, link)
    if network is None:
        return None
    addresses, begin, payload = network
    if len(frame) < begin + 20:
        return None
    source_port, port, sequence, acknowledged, offset, flags = struct.unpack_from("!HHIIBB", frame, begin)
    return TcpPacket(
        at_ns,
        (addresses[0], source_port),
        (addresses[1], port),
        sequence,
        acknowledged if flags & _ACK else None,
        max(0, payload - 4 * (offset >> 4)),
        flags & (_SYN | _ACK) == _SYN,
    )


def _network_layer(path: Path, frame: bytes, link: int) -> tuple[tuple[bytes, bytes], int, int] | None:
    """The addresses, the beginning of the TCP header, and the length from there; None if it is no TCP."""
    at = _link_header_bytes(path, frame, link)
    version = frame[at] >> 4 if len(frame) > at else 0
    if version == 4 and len(frame) >= at + 20 and frame[at + 9] == _TCP:
        header = 4 * (frame[at] & 15)
        (length,) = struct.unpack_from("!H", frame, at + 2)
        # A segment that the kernel did not split yet can be too long for the field.
        length = length or len(frame) - at
        return (frame[at + 12 : at + 16], frame[at + 16 : at + 20]), at + header, length - header
    if version == 6 and len(frame) >= at + 40 and frame[at + 6] == _TCP:
        (length,) = struct.unpack_from("!H", frame, at + 4)
        return (frame[at + 8 : at + 24], frame[at + 24 : at + 40]), at + 40, length or len(frame) - at - 40
    return None


def _link_header_bytes(path: Path, frame: bytes, link: int) -> int:
    """The length of the link header, or of the frame if it carries no IP."""
    if link in _LINK_RAW:
        return 0
    if link in _LINK_NULL:
        return 4
    if link == _LINK_COOKED_2:
        return 20
    if link == _LINK_COOKED:
        return 16
    if link != _LINK_ETHERNET:
        raise UsageError(
            f"{path}: expected Ethernet, Linux cooked, loopback or raw IP packets, got type {link}"
        )
    at = 12
    while frame[at : at + 2] and int.from_bytes(frame[at : at + 2]) in _VLAN_TYPES:
        at += 4
    return at + 2 if int.from_bytes(frame[at : at + 2]) in (_IPV4, _IPV6) else len(frame)


def address_text(address: bytes) -> str:
    """The usual form of a packed address."""
    return socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address)
