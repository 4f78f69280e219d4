"""What an agent reads on its host: its interface, counters of TCP, and the bytes that connections have sent.

They are read by ioctl(2) and from /proc, because /sys shows the interfaces of the namespace in which it was mounted.
"""

from __future__ import annotations

import fcntl
import os
import platform
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.compare.results.runs import HostFacts
from bench.lab.processors import count
from mltcp.core.errors import UsageError
from mltcp.pacing.device_features import ask_ethtool
from mltcp.pacing.sock_diag import FlowKey, SockDiag
from mltcp.pacing.tcp_info import TCP_ESTABLISHED

# -- facts and counters of an interface and of its namespace's TCP -----------------------------------------------------

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


# -- the bytes that the connections of each job have sent --------------------------------------------------------------

INTERVAL_S = 0.01
_ANY_COOKIE = 0xFFFFFFFFFFFFFFFF  # INET_DIAG_NOCOOKIE, in both halves


@dataclass(frozen=True)
class Connection:
    """A line of /proc/net/tcp: the addresses of an established connection, and the inode of its socket."""

    local: tuple[str, int]
    remote: tuple[str, int]
    inode: int


def parse_connections(text: str) -> Iterator[Connection]:
    """The established connections in /proc/net/tcp."""
    for line in text.splitlines()[1:]:
        fields = line.split()
        if int(fields[3], 16) == TCP_ESTABLISHED:
            yield Connection(_endpoint(fields[1]), _endpoint(fields[2]), int(fields[9]))


def _endpoint(text: str) -> tuple[str, int]:
    host, _, port = text.partition(":")
    return socket.inet_ntoa(struct.pack("=I", int(host, 16))), int(port, 16)


def flows_of(pid: int, peers: Iterable[str], store_ports: Iterable[int]) -> list[FlowKey]:
    """The connections of a process of this network namespace to these peers; those of stores are left out."""
    wanted, ports, inodes = set(peers), set(store_ports), set(_socket_inodes(pid))
    found = parse_connections(Path("/proc/thread-self/net/tcp").read_text())
    return [
        FlowKey(socket.AF_INET, each.local, each.remote, _ANY_COOKIE)
        for each in found
        if each.inode in inodes and each.remote[0] in wanted and not ports & {each.local[1], each.remote[1]}
    ]


def _socket_inodes(pid: int) -> Iterator[int]:
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with suppress(OSError):  # it was closed since
            target = os.readlink(entry.path)
            if target.startswith("socket:["):
                yield int(target[8:-1])


class FlowMeter:
    """Samples the acknowledged bytes of each job's connections every 10 ms on a thread, until it is stopped."""

    def __init__(self, flows: Mapping[int, list[FlowKey]]) -> None:
        self.jobs = tuple(sorted(flows))
        self._flows = [(position, flow) for position, job in enumerate(self.jobs) for flow in flows[job]]
        self._last = [0] * len(self._flows)
        self._samples: list[tuple[int, tuple[int, ...]]] = []
        self._stop = threading.Event()
        self._diag = SockDiag()
        self._take()
        self._thread = threading.Thread(target=self._run, name="flow-meter", daemon=True)
        self._thread.start()

    def stop(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Stop; returns the samples: a time (CLOCK_MONOTONIC, nanoseconds) and the bytes of each of `jobs`."""
        self._stop.set()
        self._thread.join()
        self._diag.close()
        return tuple(self._samples)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self._take()
        self._take()

    def _take(self) -> None:
        samples = self._diag.sample([flow for _, flow in self._flows])
        now_ns = time.monotonic_ns()
        totals = [0] * len(self.jobs)
        for at, ((position, _), sample) in enumerate(zip(self._flows, samples, strict=True)):
            # A connection that has closed keeps the bytes that it had.
            self._last[at] = max(self._last[at], sample.acked_bytes if sample else 0)
            totals[position] += self._last[at]
        if not self._samples or self._samples[-1][1] != tuple(totals) or self._stop.is_set():
            self._samples.append((now_ns, tuple(totals)))
        else:
            self._still_since(now_ns)

    def _still_since(self, now_ns: int) -> None:
        """Nothing was sent: of a time without change only the first and the last sample are kept."""
        if len(self._samples) > 1 and self._samples[-2][1] == self._samples[-1][1]:
            self._samples[-1] = (now_ns, self._samples[-1][1])
        else:
            self._samples.append((now_ns, self._samples[-1][1]))
