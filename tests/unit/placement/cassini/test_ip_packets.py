"""The IP packets of captures: tags, extensions, link types and forms of files; damage ends in one line."""

import gzip
import struct
from ipaddress import ip_address

import pytest

from mltcp.core.errors import UsageError
from placement.cassini.capture import captured
from placement.cassini.ip_packets import IpPackets, address_text
from placement.experiments.service_profile import tcp_packets

ETHERNET, COOKED, COOKED_2, RAW = 1, 113, 276, 101
MACS = b"\2\0\0\0\0\1" + b"\2\0\0\0\0\2"
TCP = struct.pack("!HHIIBBHHH", 5, 6, 100, 200, 5 << 4, 0x10, 0, 0, 0)


def v4(inner=TCP + b"x" * 80, fragment=0, protocol=6):
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(inner), 0, fragment, 64, protocol, 0)
    return header + ip_address("10.0.0.1").packed + ip_address("10.0.0.2").packed + inner


def v6(inner=TCP + b"x" * 80, following=6):
    header = struct.pack("!IHBB", 6 << 28, len(inner), following, 64)
    return header + ip_address("fd00::1").packed + ip_address("fd00::2").packed + inner


def ethernet(packet, *tags, kind=0x0800):
    return MACS + b"".join(tags) + struct.pack("!H", kind) + packet


def vlan(kind=0x8100):
    return struct.pack("!HH", kind, 7)


def pcap(*frames, link=ETHERNET, snaplen=65535):
    head = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, snaplen, link)
    return head + b"".join(
        struct.pack(
            "<IIII", 1000 + number // 1000, number % 1000 * 1000, min(len(frame), snaplen), len(frame)
        )
        + frame[:snaplen]
        for number, frame in enumerate(frames)
    )


def block(kind, body):
    body += b"\0" * (-len(body) % 4)
    return struct.pack("<II", kind, len(body) + 12) + body + struct.pack("<I", len(body) + 12)


def pcapng(*of_interfaces):
    """One interface for each (link, resolution, frames); their packets are mixed."""
    found = block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    for link, resolution, _ in of_interfaces:
        found += block(1, struct.pack("<HHI", link, 0, 0) + struct.pack("<HHBxxxHH", 9, 1, resolution, 0, 0))
    for number, (_, resolution, frames) in enumerate(of_interfaces):
        for at, frame in enumerate(frames):
            ticks = (1000 * 1000 + at) * 10 ** (resolution - 3)
            head = struct.pack("<IIIII", number, ticks >> 32, ticks & 0xFFFFFFFF, len(frame), len(frame))
            found += block(6, head + frame)
    return found


def read(tmp_path, content):
    path = tmp_path / "capture"
    path.write_bytes(content)
    packets = IpPackets(path)
    return packets, list(packets)


MPLS = struct.pack("!IIII", 16 << 12, 17 << 12, 18 << 12, 19 << 12 | 1 << 8)
HOP_BY_HOP = struct.pack("!BBHI", 60, 0, 0, 0)
DESTINATION = struct.pack("!BB14x", 44, 1)


@pytest.mark.parametrize(
    ("frame", "link"),
    [
        (ethernet(v4()), ETHERNET),
        (ethernet(v4(), vlan()), ETHERNET),
        (ethernet(v4(), vlan(0x88A8), vlan()), ETHERNET),
        (ethernet(v4(), vlan(0x9100), vlan(), vlan()), ETHERNET),
        (ethernet(v6(), vlan(), kind=0x86DD), ETHERNET),
        (ethernet(MPLS + v4(), kind=0x8847), ETHERNET),
        (ethernet(MPLS + v6(), vlan(), kind=0x8847), ETHERNET),
        (ethernet(struct.pack("!BBHHH", 0x11, 0, 1, 102, 0x21) + v4(), kind=0x8864), ETHERNET),
        (struct.pack("!HHHHII", 0, 1, 6, 0, 0, 0x0800)[:14] + struct.pack("!H", 0x0800) + v4(), COOKED),
        (b"\0" * 14 + struct.pack("!HHH", 0x8100, 7, 0x0800) + v4(), COOKED),
        (struct.pack("!H", 0x0800) + b"\0" * 18 + v4(), COOKED_2),
        (v4(), RAW),
        (struct.pack("<I", 2) + v4(), 0),
        (ethernet(v6(HOP_BY_HOP + struct.pack("!BB6x", 6, 0) + TCP + b"x" * 80, 0), kind=0x86DD), ETHERNET),
    ],
)
def test_what_carries_ip_is_read(tmp_path, frame, link):
    packets, (packet,) = read(tmp_path, pcap(frame, link=link))
    assert address_text(packet.source) in ("10.0.0.1", "fd00::1")
    assert packet.frame[packet.begin :] == TCP + b"x" * 80
    assert (packet.protocol, packet.payload_bytes, packet.wire_bytes) == (6, 100, len(frame))
    assert packet.at_ns == 1000 * 10**9
    (segment,) = tcp_packets(tmp_path / "capture")
    assert (segment.payload_bytes, segment.sequence, segment.acknowledged) == (80, 100, 200)
    assert packets.cut == 0


@pytest.mark.parametrize(
    ("packet", "protocol"),
    [
        (v4(fragment=0x2000), 6),
        (v4(fragment=0x2010), None),
        (v6(HOP_BY_HOP + DESTINATION + struct.pack("!BBHI", 6, 0, 1, 9) + TCP, 0), 6),
        (v6(struct.pack("!BBHI", 6, 0, 0x51, 9) + TCP, 44), None),
        (v6(b"\x06", 43), None),
    ],
)
def test_fragments_count_with_their_bytes_and_only_the_first_has_a_header(tmp_path, packet, protocol):
    kind = 0x0800 if packet[0] >> 4 == 4 else 0x86DD
    _, (found,) = read(tmp_path, pcap(ethernet(packet, kind=kind)))
    assert found.protocol == protocol
    assert found.wire_bytes == 14 + len(packet)


@pytest.mark.parametrize("frame", [ethernet(b"x" * 40, kind=0x0806), ethernet(b"", kind=0x88CC), b"", b"\1"])
def test_other_packets_are_passed_over(tmp_path, frame):
    packets, found = read(tmp_path, pcap(frame, ethernet(v4())))
    assert (len(found), packets.count) == (1, 2)


@pytest.mark.parametrize("snaplen", [14, 20, 30, 33])
@pytest.mark.parametrize("read_all", [captured, lambda path: list(tcp_packets(path))])
def test_a_capture_that_cuts_headers_says_so(tmp_path, snaplen, read_all):
    path = tmp_path / "capture"
    path.write_bytes(pcap(*[ethernet(v4(), vlan())] * 5, snaplen=snaplen))
    with pytest.raises(
        UsageError, match="the headers of its 5 packets are cut; capture 96 bytes or more of each"
    ):
        read_all(path)


@pytest.mark.parametrize("packed", [False, True])
def test_a_pcapng_of_several_interfaces(tmp_path, packed):
    content = pcapng((ETHERNET, 6, [ethernet(v4())] * 3), (RAW, 9, [v6()] * 2), (COOKED, 3, [b"\0" * 14]))
    _, found = read(tmp_path, gzip.compress(content) if packed else content)
    assert [packet.at_ns - 1000 * 10**9 for packet in found] == [0, 10**6, 2 * 10**6, 0, 10**6]
    assert [len(packet.source) for packet in found] == [4, 4, 4, 16, 16]


@pytest.mark.parametrize("cut", [1, 20, 60, 114])
def test_a_packet_that_is_cut_by_the_end_of_the_file_is_the_end(tmp_path, cut):
    content = pcap(*[ethernet(v4())] * 3)
    _, found = read(tmp_path, content[:-cut])
    assert len(found) in (2, 3)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xd4\xc3\xb2\xa1",
        b"text",
        gzip.compress(b""),
        gzip.compress(pcap(ethernet(v4())))[:40],
        pcap(ethernet(v4()), link=147),
        block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)) + struct.pack("<II", 6, 0xFFFFFFF0),
    ],
    ids=["empty", "begun", "text", "packed-empty", "packed-begun", "unknown-link", "huge-block"],
)
def test_what_is_no_capture_is_refused_in_one_line(tmp_path, content, capfd):
    path = tmp_path / "capture"
    path.write_bytes(content)
    with pytest.raises(UsageError) as error:
        captured(path)
    assert str(error.value).startswith(f"{path}: ")
    assert str(error.value).isprintable()
    assert capfd.readouterr().err == ""


def test_a_packet_of_gigabytes_does_not_take_them(tmp_path):
    content = pcap(ethernet(v4()))
    claimed = content[:32] + struct.pack("<II", 0xFFFFFFFF, 0xFFFFFFFF) + content[40:]
    _, (packet,) = read(tmp_path, claimed)
    assert packet.wire_bytes == 0xFFFFFFFF


def test_senders_have_a_limit(tmp_path, monkeypatch):
    path = tmp_path / "capture"
    frames = [ethernet(v4()[:12] + struct.pack("!I", number) + v4()[16:]) for number in range(5000)]
    path.write_bytes(pcap(*frames))
    with pytest.raises(UsageError, match="expected at most 4096 senders"):
        captured(path)
    with pytest.raises(UsageError, match=r"no packets from 10\.9\.9\.9; there are some from 0\.0\.0\.0"):
        captured(path, sender="10.9.9.9")
    with pytest.raises(UsageError, match="sender: expected an IPv4 or IPv6 address, got 'x'"):
        captured(path, sender="x")
