"""Facts and counters of a network interface of this process's namespace, and of the namespace's TCP.

They are read by ioctl(2) and from /proc, because /sys shows the interfaces of the namespace in which it was mounted.
"""

from __future__ import annotations

import fcntl
import os
import platform
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.compare.results.runs import HostFacts
from bench.lab.processors import count
from mltcp.core.errors import UsageError
from mltcp.pacing.device_features import ask_ethtool

_SIOCGIFMTU = 0x8921
_ETHTOOL_GSET, _ETHTOOL_GDRVINFO = 1, 3
_UNKNOWN_SPEEDS = (0, 0xFFFF, 0xFFFFFFFF)
_NET = Path("/proc/thread-self/net")


@dataclass(frozen=True)
class HostCounters:
    """Counters since boot: of the interface its bytes, packets and drops; of the host its marks and retransmissions."""

    sent_bytes: int
    received_bytes: int
    packets: int
    drops: int
    ce_packets: int
    retransmits: int


def read_counters(interface: str) -> HostCounters:
    """The counters of the interface and of its namespace."""
    received, sent = parse_interface((_NET / "dev").read_text(), interface)
    ip = parse_paired_lines((_NET / "netstat").read_text(), "IpExt")
    tcp = parse_paired_lines((_NET / "snmp").read_text(), "Tcp")
    return HostCounters(
        sent_bytes=sent[0],
        received_bytes=received[0],
        packets=sent[1],
        drops=sent[3] + received[3],
        ce_packets=ip.get("InCEPkts", 0),
        retransmits=tcp.get("RetransSegs", 0),
    )


def parse_interface(text: str, interface: str) -> tuple[list[int], list[int]]:
    """The eight receive and the eight transmit counters of an interface in /proc/net/dev.

    Raises:
        UsageError: there is no such interface.
    """
    for line in text.splitlines()[2:]:
        name, _, values = line.partition(":")
        if name.strip() == interface:
            numbers = [int(each) for each in values.split()]
            return numbers[:8], numbers[8:]
    raise UsageError(f"interface: expected one of this host, got {interface!r}")


def parse_paired_lines(text: str, name: str) -> Mapping[str, int]:
    """The counters of a protocol in /proc/net/snmp or /proc/net/netstat: a line of names, and one of values."""
    lines = [line.split()[1:] for line in text.splitlines() if line.startswith(f"{name}:")]
    if len(lines) != 2:
        return {}
    return dict(zip(lines[0], map(int, lines[1]), strict=False))


def host_facts(name: str, address: str, interface: str, gpus: tuple[str, ...]) -> HostFacts:
    """The facts of this host.

    Raises:
        UsageError: it has no such interface.
    """
    known = [each for _, each in socket.if_nameindex()]
    if interface not in known:
        raise UsageError(f"interface: expected one of {', '.join(known)}, got {interface!r}")
    system = os.uname()
    return HostFacts(
        name,
        address,
        interface,
        system.nodename,
        system.release,
        platform.machine(),
        count(),
        _driver(interface),
        _mtu(interface),
        _speed_bps(interface),
        gpus,
        "cgroup" if os.geteuid() == 0 else "socket",
    )


def _mtu(interface: str) -> int:
    request = struct.pack("16si12x", interface.encode(), 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket, _SIOCGIFMTU, request)
    return int(struct.unpack("16si12x", answer)[1])


def _driver(interface: str) -> str | None:
    answer = _ethtool(interface, _ETHTOOL_GDRVINFO, 196)
    return answer[4:36].split(b"\0")[0].decode(errors="replace") or None if answer else None


def _speed_bps(interface: str) -> int | None:
    answer = _ethtool(interface, _ETHTOOL_GSET, 44)
    if answer is None:
        return None
    low, high = struct.unpack_from("=H", answer, 12)[0], struct.unpack_from("=H", answer, 28)[0]
    megabits = high << 16 | low
    return None if megabits in _UNKNOWN_SPEEDS else megabits * 1_000_000


def _ethtool(interface: str, command: int, size: int) -> bytes | None:
    """The answer of the interface's driver to an ethtool command; None if it does not know it."""
    asked = struct.pack("=I", command)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            return ask_ethtool(any_socket, interface, asked, size - len(asked))
        except OSError:
            return None
