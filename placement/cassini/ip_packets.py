"""The IP packets of a capture (pcap or pcapng, also packed by gzip): times, addresses and sizes.

scapy reads the file. Its dissection of a packet takes 0.2 ms, which is minutes for a capture of this kind, so the few
header fields that are needed are unpacked here.
"""

from __future__ import annotations

import gzip
import logging
import socket
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from mltcp.core.errors import UsageError
from mltcp.core.quantities import NS_PER_S

_MOST_READ_BYTES = 16 << 20
_LATEST_NS = 1 << 62
_PROGRESS_PACKETS = 4096
_GZIP = b"\x1f\x8b"

_IPV4, _IPV6 = 0x0800, 0x86DD
_VLANS = (0x8100, 0x88A8, 0x9100, 0x9200)
_MPLS = (0x8847, 0x8848)
_PPPOE, _PPPOE_BYTES = 0x8864, 8

_LINK_ETHERNET, _LINK_NULL, _LINK_COOKED, _LINK_COOKED_2 = 1, (0, 108), 113, 276
_LINK_RAW = (12, 14, 101, 228, 229)

_HOP_BY_HOP, _ROUTING, _FRAGMENT, _AUTHENTICATION, _DESTINATION = 0, 43, 44, 51, 60
_EXTENSIONS = (_HOP_BY_HOP, _ROUTING, _FRAGMENT, _AUTHENTICATION, _DESTINATION)
_ANY_IP = -1


class IpPacket(NamedTuple):
    """A packet as it was captured.

    Attributes:
        at_ns: since the epoch.
        source: its packed IPv4 or IPv6 address.
        destination: the same.
        protocol: that follows IP and its extensions; None where that is not to be seen, as in later fragments.
        begin: where it begins in the frame.
        payload_bytes: from there on, also of a capture that holds only the headers.
        wire_bytes: of the whole frame.
        frame: what was captured of it.
    """

    at_ns: int
    source: bytes
    destination: bytes
    protocol: int | None
    begin: int
    payload_bytes: int
    wire_bytes: int
    frame: bytes


class IpPackets:
    """The IP packets of a capture in its order; iterate once.

    Link headers may be Ethernet with VLAN tags, MPLS labels or PPPoE, Linux cooked (``tcpdump -i any``), loopback or
    none. A capture that ends in the middle of a packet ends before it.

    Attributes:
        path: of the capture.
        count: packets read so far, of all kinds.
        cut: of these, without all of their IP header.

    Raises:
        UsageError: while iterating: no capture, or one of another link type.
    """

    def __init__(self, path: Path, on_packets: Callable[[int], None] = lambda _: None) -> None:
        self.path, self._on_packets = path, on_packets
        self.count = self.cut = 0

    def __iter__(self) -> Iterator[IpPacket]:
        from scapy.error import Scapy_Exception
        from scapy.utils import RawPcapReader

        logging.getLogger("scapy").setLevel(logging.CRITICAL)  # its warnings are no lines of ours
        # scapy raises errors of any type for a file that is damaged in its headers.
        damaged = (OSError, EOFError, Scapy_Exception, struct.error, ValueError, zlib.error, MemoryError)
        try:
            with _opened(self.path) as file:
                reader = RawPcapReader(file)
                for frame, metadata in reader:
                    if self.count % _PROGRESS_PACKETS == 0:
                        self._on_packets(self.count)
                    self.count += 1
                    found = self._packet(frame, *_time_and_link(reader, metadata), metadata.wirelen)
                    if found is not None:
                        yield found
        except damaged as error:
            why = getattr(error, "strerror", None) or str(error) or "ends in the middle of a packet"
            raise UsageError(f"{self.path}: {' '.join(why.split())}") from None

    def none_found(self) -> str:
        """Why there was no packet, for a message."""
        if self.cut:
            return f"the headers of its {self.cut} packets are cut; capture 96 bytes or more of each (tcpdump -s 96)"
        return f"no IPv4 or IPv6 packets in it, of {self.count}"

    def _packet(self, frame: bytes, at_ns: int | None, link: int, wire_bytes: int) -> IpPacket | None:
        if at_ns is None:
            return None
        kind, at = self._network_layer(frame, link)
        version = frame[at] >> 4 if len(frame) > at else 0
        if kind is None or (version and version != kind and kind != _ANY_IP):
            return None
        if len(frame) < at + (40 if version == 6 else 20):
            self.cut += 1
            return None
        found = _ipv4(frame, at) if version == 4 else _ipv6(frame, at) if version == 6 else None
        if found is None:
            return None
        addresses, protocol, begin, payload_bytes = found
        return IpPacket(at_ns, *addresses, protocol, begin, payload_bytes, wire_bytes or len(frame), frame)

    def _network_layer(self, frame: bytes, link: int) -> tuple[int | None, int]:
        """The version of IP that follows the link header (None: another protocol), and where it begins."""
        if link in _LINK_RAW:
            return _ANY_IP, 0
        if link in _LINK_NULL:
            return _ANY_IP, 4
        if link == _LINK_COOKED_2:
            return _after_tags(frame, _type_at(frame, 0), 20)
        if link == _LINK_COOKED:
            return _after_tags(frame, _type_at(frame, 14), 16)
        if link != _LINK_ETHERNET:
            expected = "Ethernet, Linux cooked, loopback or raw IP packets"
            raise UsageError(f"{self.path}: expected {expected}, got type {link}")
        return _after_tags(frame, _type_at(frame, 12), 14)


def address_text(address: bytes) -> str:
    """The usual form of a packed address."""
    return socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address)


@contextmanager
def _opened(path: Path) -> Iterator[_Bounded]:
    """The file, unpacked if gzip has written it."""
    with open(path, "rb") as file:
        if file.peek(2)[:2] != _GZIP:
            yield _Bounded(path, file)
            return
        with gzip.open(file) as unpacked:
            yield _Bounded(path, unpacked)


class _Bounded:
    """A file of which no packet can make the process read gigabytes at once."""

    def __init__(self, path: Path, file: IO[bytes] | gzip.GzipFile) -> None:
        self.name, self._file = str(path), file

    def read(self, size: int) -> bytes:
        """Read like a file, but no more than a packet can have."""
        if size > _MOST_READ_BYTES:
            limit = f"{_MOST_READ_BYTES >> 20} MiB"
            raise UsageError(f"{self.name}: expected blocks of at most {limit}, got one of {size} bytes")
        return self._file.read(max(0, size))

    def close(self) -> None:
        """Do nothing: who has opened the file closes it."""


def _time_and_link(reader: Any, metadata: Any) -> tuple[int | None, int]:
    if not hasattr(metadata, "tshigh"):
        return metadata.sec * NS_PER_S + metadata.usec * (1 if reader.nano else 1000), reader.linktype
    if metadata.tshigh is None:  # a simple packet block has no time
        return None, metadata.linktype
    at_ns = ((metadata.tshigh << 32) + metadata.tslow) * NS_PER_S // metadata.tsresol
    return at_ns if at_ns < _LATEST_NS else None, metadata.linktype


def _type_at(frame: bytes, at: int) -> int:
    return int.from_bytes(frame[at : at + 2]) if len(frame) >= at + 2 else _IPV4


def _after_tags(frame: bytes, kind: int, at: int) -> tuple[int | None, int]:
    """The version of IP behind any tags, and where it begins; a frame that ends in its tags is taken for a cut one."""
    while kind in _VLANS:
        kind, at = _type_at(frame, at + 2), at + 4
    if kind in _MPLS:
        while len(frame) >= at + 4 and not frame[at + 2] & 1:
            at += 4
        return _ANY_IP, at + 4
    if kind == _PPPOE:
        return _ANY_IP, at + _PPPOE_BYTES
    return {_IPV4: 4, _IPV6: 6}.get(kind), at


def _ipv4(frame: bytes, at: int) -> tuple[tuple[bytes, bytes], int | None, int, int]:
    header = max(20, 4 * (frame[at] & 15))
    length, _, fragment = struct.unpack_from("!HHH", frame, at + 2)
    # A segment that the kernel did not split yet can be too long for the field.
    length = length or len(frame) - at
    protocol = None if fragment & 0x1FFF else frame[at + 9]
    return (
        (frame[at + 12 : at + 16], frame[at + 16 : at + 20]),
        protocol,
        at + header,
        max(0, length - header),
    )


def _ipv6(frame: bytes, at: int) -> tuple[tuple[bytes, bytes], int | None, int, int]:
    (length,) = struct.unpack_from("!H", frame, at + 4)
    end = at + 40 + (length or len(frame) - at - 40)
    protocol: int | None = frame[at + 6]
    begin = at + 40
    while protocol in _EXTENSIONS:
        if len(frame) < begin + 8:
            protocol = None
        elif protocol == _FRAGMENT:
            later = struct.unpack_from("!H", frame, begin + 2)[0] & 0xFFF8
            protocol, begin = None if later else frame[begin], begin + 8
        else:
            size = 4 * (frame[begin + 1] + 2) if protocol == _AUTHENTICATION else 8 * (frame[begin + 1] + 1)
            protocol, begin = frame[begin], begin + size
    return (frame[at + 8 : at + 24], frame[at + 24 : at + 40]), protocol, begin, max(0, end - begin)
