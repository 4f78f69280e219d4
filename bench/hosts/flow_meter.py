"""Samples how many bytes the connections of each job have sent, on this host, from outside the jobs' processes."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mltcp.pacing.sock_diag import FlowKey, SockDiag
from mltcp.pacing.tcp_info import TCP_ESTABLISHED

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
