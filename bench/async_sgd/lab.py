"""The lab of an asynchronous job: workers and parameter servers on one switch, and captures of packets there."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.lab.link import Link
from bench.lab.network import namespaces
from bench.lab.topology import INTERFACE, MAX_JOBS, LabHost, LabServer, LabSwitch, Topology, Trunk
from mltcp.core.atomic_files import check_writable, write_atomically
from mltcp.core.errors import MltcpError, UsageError

SWITCH = "switch"
MOST_WORKERS = MAX_JOBS


def star(workers: int, servers: int, link: Link) -> Topology:
    """Workers ``w0`` ... and servers ``ps0`` ...; worker k is job k of the lab, so that its bytes are counted apart.

    Raises:
        UsageError: there are too many or too few.
    """
    if not 1 <= workers <= MOST_WORKERS:
        raise UsageError(f"workers: expected 1 to {MOST_WORKERS}, got {workers}")
    names = [server_name(number) for number in range(servers)]
    return Topology(
        hosts=tuple(LabHost(worker_name(number), SWITCH, number, 0) for number in range(workers)),
        switches=(LabSwitch(SWITCH),),
        trunks=tuple(Trunk(name, name, SWITCH, link) for name in names),
        servers=tuple(LabServer(name, number) for number, name in enumerate(names)),
    )


def server_name(number: int) -> str:
    """The name of a parameter server in the lab."""
    return f"ps{number}"


def server_address() -> str:
    """The address of the leading parameter server."""
    return LabServer(server_name(0), 0).address


def worker_name(number: int) -> str:
    """The name of a worker in the lab."""
    return f"w{number}"


_ALL_PROTOCOLS = 3  # ETH_P_ALL
_SO_TIMESTAMPNS = 35
_SNAPSHOT_BYTES = 96
_LONGEST_FRAME = 65536
_BUFFER_BYTES = 16 << 20
_POLL_S = 0.1
_FILE_HEADER = struct.pack("=IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, _SNAPSHOT_BYTES, 1)  # nanoseconds, Ethernet
_PACKET = struct.Struct("=IIII")
_TIMESPEC = struct.Struct("=qq")


@contextmanager
def captured(namespace: str, path: Path, interface: str = INTERFACE) -> Iterator[None]:
    """Record both directions of an interface while the context lasts; the first 96 bytes of each packet.

    Raises:
        UsageError: the file cannot be written.
        MltcpError: the interface cannot be opened, or packets came faster than they were recorded.
    """
    check_writable(path)
    packets = namespaces.inside(namespace, lambda: _opened(interface))
    recorder = _Recorder(packets)
    recorder.start()
    try:
        yield
    finally:
        content = recorder.stop()
    write_atomically(path, content)


def _opened(interface: str) -> socket.socket:
    try:
        packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
        packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        packets.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        packets.bind((interface, 0))
        packets.settimeout(_POLL_S)
    except OSError as error:
        raise MltcpError(f"capture: {interface}: {error.strerror}") from None
    return packets


class _Recorder:
    def __init__(self, packets: socket.socket) -> None:
        self._packets, self._content = packets, [_FILE_HEADER]
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._record, name="capture", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> bytes:
        self._ending.set()
        self._thread.join()
        self._packets.close()
        return b"".join(self._content)

    def _record(self) -> None:
        buffer = bytearray(_LONGEST_FRAME)
        while True:
            try:
                length, ancillary, _, _ = self._packets.recvmsg_into([buffer], 64)
            except TimeoutError:
                if self._ending.is_set():
                    return
                continue
            seconds, nanoseconds = _TIMESPEC.unpack(ancillary[0][2][: _TIMESPEC.size])
            kept = bytes(buffer[: min(length, _SNAPSHOT_BYTES)])
            self._content.append(_PACKET.pack(seconds, nanoseconds, len(kept), length) + kept)
