"""Writes captures of a parameter server and its workers, with exact times."""

import socket
import struct

MS = 1_000_000
SERVER, WORKER = ("10.0.0.1", 29500), ("10.0.0.2", 40000)
MSS = 1000


class Capture:
    """A pcap file of TCP packets with nanosecond times and only their headers; payload is not stored."""

    def __init__(self, path, link=1, resolution_ns=1):
        self.resolution_ns = resolution_ns
        self.link = link
        self.next = {}
        self.path = path
        self.records = []

    def packet(self, at_ns, source, destination, payload=0, *, acknowledged=0, flags=0x10, sequence=None):
        """Add a packet; the sequence number continues where the connection was."""
        key = source, destination
        number = self.next.get(key, 2**32 - 5000) if sequence is None else sequence
        if sequence is None:
            self.next[key] = (number + payload) % 2**32
        tcp = struct.pack(
            "!HHIIBBHHH", source[1], destination[1], number, acknowledged, 5 << 4, flags, 1000, 0, 0
        )
        ip = _ip(source[0], destination[0], tcp, payload)
        self.records.append((at_ns, _link(self.link, ip[0] >> 4) + ip, payload))

    def transfer(self, begin_ns, duration_ns, source, destination, packets, payload=MSS):
        """Packets at equal distances, the first at the beginning and the last at the end."""
        for number in range(packets):
            at_ns = begin_ns + (duration_ns * number // (packets - 1) if packets > 1 else 0)
            self.packet(at_ns, source, destination, payload)

    def acknowledge(self, at_ns, source, destination):
        """Acknowledge everything that the other side sent so far."""
        self.packet(at_ns, source, destination, acknowledged=self.next.get((destination, source), 0))

    def write(self):
        """Write the packets in their order of time."""
        magic = 0xA1B23C4D if self.resolution_ns == 1 else 0xA1B2C3D4
        out = [struct.pack("<IHHiIII", magic, 2, 4, 0, 0, 96, self.link)]
        for at_ns, frame, payload in sorted(self.records, key=lambda record: record[0]):
            at_ns += 10**18
            part = at_ns % 10**9 // self.resolution_ns
            out.append(struct.pack("<IIII", at_ns // 10**9, part, len(frame), len(frame) + payload))
            out.append(frame)
        self.path.write_bytes(b"".join(out))
        return self.path


def _ip(source, destination, tcp, payload):
    if ":" in source:
        addresses = socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, destination)
        return struct.pack("!IHBB", 6 << 28, len(tcp) + payload, 6, 64) + addresses + tcp
    addresses = socket.inet_aton(source) + socket.inet_aton(destination)
    return struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp) + payload, 0, 0, 64, 6, 0) + addresses + tcp


def _link(link, version):
    kind = struct.pack("!H", 0x0800 if version == 4 else 0x86DD)
    return {
        0: struct.pack("<I", 2 if version == 4 else 24),
        1: bytes(12) + kind,
        101: b"",
        113: bytes(14) + kind,
        276: kind + bytes(18),
    }[link]


def training(
    path,
    *,
    cycles=10,
    worker_ms=30,
    uplink_ms=70,
    server_ms=20,
    downlink_ms=80,
    packets=200,
    server=SERVER,
    worker=WORKER,
    opened=True,
    **options,
):
    """A capture of that many full cycles, and of the next gradient; weights end with their acknowledgement."""
    capture = Capture(path, **options)
    at_ns = 0
    if opened:
        capture.packet(at_ns, worker, server, flags=0x02)
        capture.packet(at_ns, server, worker, flags=0x12)
    for _ in range(cycles):
        at_ns += worker_ms * MS
        capture.transfer(at_ns, uplink_ms * MS, worker, server, packets)
        at_ns += uplink_ms * MS
        capture.acknowledge(at_ns, server, worker)
        at_ns += server_ms * MS
        # The last packet is sent before it is through the queue.
        capture.transfer(at_ns, downlink_ms * MS // 2, server, worker, packets)
        at_ns += downlink_ms * MS
        capture.acknowledge(at_ns, worker, server)
    at_ns += worker_ms * MS
    capture.transfer(at_ns, uplink_ms * MS, worker, server, packets)
    return capture
