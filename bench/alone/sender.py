"""The sending end of a job alone: pauses, sends its bytes over its flows, and waits until they have been received.

``python -m bench.alone.sender`` with one JSON argument (`SenderTask`) writes one line of JSON an iteration
(`SentIteration`). It begins with a line on standard input, when it is in its cgroup, and ends with another one: with
the last connection of a job the kernel ends its iteration.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.workloads.place import RankPlace
from mltcp.core.errors import MltcpError

_NO_INTERFACE = (
    "none"  # only Gloo needs one; to import the lab for its name would take longer than an iteration
)
_FIRST_BYTES = 1 << 15
"""Sent before the window at the beginning of an iteration is read: the kernel reduces it when sending begins."""

# Offsets into struct tcp_info (include/uapi/linux/tcp.h), all of 32 bits.
_RTT, _SSTHRESH, _CWND, _RETRANSMITS, _MIN_RTT, _DELIVERED_CE = 68, 76, 80, 100, 148, 196
_INFO_BYTES = 232
_IDLE, _WAITING = 3, 4  # of a processor in /proc/stat


@dataclass(frozen=True)
class SenderTask:
    """What a sender does.

    Attributes:
        namespace: its own; None: the caller's.
        address: its own.
        processor: that it runs on.
        peer, port: of the receiver.
        flows: connections; `share` bytes of each an iteration.
        pause_s: from the end of an iteration to the beginning of the next.
        iterations: how many.
    """

    namespace: str | None
    address: str
    processor: int
    peer: str
    port: int
    flows: int
    share: int
    pause_s: float
    iterations: int


@dataclass(frozen=True)
class SentIteration:
    """One iteration.

    Attributes:
        seconds: from the first write until the answers of all flows have arrived.
        cwnd, ssthresh: of the first flow, just after it began to send.
        rtt_us: its smoothed round trip at the end.
        min_rtt_us: its shortest round trip of late.
        retransmits, marks: segments of all flows that were sent again, and that were marked, in this iteration.
        busy: the share of the time of each processor that was not idle while this iteration was sent.
    """

    seconds: float
    cwnd: int
    ssthresh: int
    rtt_us: int
    min_rtt_us: int
    retransmits: int
    marks: int
    busy: tuple[float, ...]


def main(arguments: Sequence[str]) -> int:
    """Send; returns the exit status."""
    task = SenderTask(**json.loads(arguments[0]))
    try:
        _send(task)
    except (MltcpError, OSError) as error:
        print(f"the sender of {task.peer}: {error}", file=sys.stderr)
        return 1
    return 0


def _send(task: SenderTask) -> None:
    sys.stdin.readline()
    RankPlace(task.namespace, _NO_INTERFACE, task.address).enter()
    os.sched_setaffinity(0, {task.processor})
    connections = [_connect(task) for _ in range(task.flows)]
    _Sender(task, connections).run()
    sys.stdin.readline()
    for connection in connections:
        connection.close()


def _connect(task: SenderTask) -> socket.socket:
    connection = socket.create_connection((task.peer, task.port), source_address=(task.address, 0))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class _Sender:
    def __init__(self, task: SenderTask, connections: Sequence[socket.socket]) -> None:
        self._task = task
        self._connections = connections
        # Zero pages that were never written are one page of memory: copying from it costs the least.
        self._block = memoryview(bytes(task.share))
        self._barrier = threading.Barrier(task.flows, self._between)
        self._done: list[SentIteration] = []
        self._first = bytes(_INFO_BYTES)
        self._counted = self._counts()
        self._began_s = 0.0
        self._ticks: list[tuple[int, int]] = []

    def run(self) -> None:
        threads = [threading.Thread(target=self._move, args=(each,)) for each in self._connections[1:]]
        for thread in threads:
            thread.start()
        self._move(self._connections[0])
        for thread in threads:
            thread.join()

    def _move(self, connection: socket.socket) -> None:
        self._barrier.wait()
        for _ in range(self._task.iterations):
            sent = connection.send(self._block[:_FIRST_BYTES])
            if connection is self._connections[0]:
                self._first = _info(connection)
            connection.sendall(self._block[sent:])
            if not connection.recv(1):
                raise OSError("the receiver is gone")
            self._barrier.wait()

    def _between(self) -> None:
        """Run by the last flow to arrive, while the others wait: count the iteration, and pause."""
        if self._began_s:
            self._finish(time.monotonic() - self._began_s)
            if len(self._done) == self._task.iterations:
                return
        time.sleep(self._task.pause_s)
        self._ticks = _processor_ticks()
        self._began_s = time.monotonic()

    def _finish(self, seconds: float) -> None:
        last = _info(self._connections[0])
        before, self._counted = self._counted, self._counts()
        busy = tuple(
            (after[0] - earlier[0]) / max(1, after[1] - earlier[1])
            for earlier, after in zip(self._ticks, _processor_ticks(), strict=True)
        )
        iteration = SentIteration(
            seconds,
            _field(self._first, _CWND),
            _field(self._first, _SSTHRESH),
            _field(last, _RTT),
            _field(last, _MIN_RTT),
            self._counted[0] - before[0],
            self._counted[1] - before[1],
            busy,
        )
        self._done.append(iteration)
        print(json.dumps(asdict(iteration)), flush=True)

    def _counts(self) -> tuple[int, int]:
        found = [_info(connection) for connection in self._connections]
        return sum(_field(each, _RETRANSMITS) for each in found), sum(
            _field(each, _DELIVERED_CE) for each in found
        )


def _info(connection: socket.socket) -> bytes:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)


def _field(info: bytes, offset: int) -> int:
    value: int = struct.unpack_from("=I", info, offset)[0]
    return value


def _processor_ticks() -> list[tuple[int, int]]:
    """The busy time and the whole time of each processor, in clock ticks."""
    found = []
    for line in Path("/proc/stat").read_text().splitlines()[1:]:
        if not line.startswith("cpu"):
            break
        ticks = [int(each) for each in line.split()[1:9]]
        found.append((sum(ticks) - ticks[_IDLE] - ticks[_WAITING], sum(ticks)))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
