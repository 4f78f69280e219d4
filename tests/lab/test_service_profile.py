"""Service times from packets of a real TCP connection over a slow link."""

import contextlib
import socket
import struct
import threading
import time

import pytest

from bench.lab.lab import Lab
from bench.lab.link import Link
from bench.lab.network import namespaces
from bench.lab.topology import INTERFACE, dumbbell
from placement.experiments.service_profile import profile

pytestmark = pytest.mark.lab

RATE_BPS = 40_000_000
SIZE_BYTES = 250_000
SERVER_S, WORKER_S = 0.03, 0.06
WARM_UP, CYCLES = 3, 8
PORT = 5001
PATIENCE_S = 30

ETH_P_ALL = 3
SO_TIMESTAMPNS = 35
PAYLOAD_BYTES, FRAME_BYTES = 1448, 1514
SO_RCVBUFFORCE = 33


class Sniffer(threading.Thread):
    """Writes the headers of all packets on an interface of a host, with the kernel's time stamps, to a pcap file."""

    def __init__(self, lab, host, path):
        super().__init__()
        self.path = path
        self.frames = []
        self.done = threading.Event()
        kind = socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)
        self.socket = namespaces.inside(lab.namespace(host), lambda: socket.socket(*kind))
        self.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
        self.socket.bind((INTERFACE, 0))
        self.socket.settimeout(0.1)

    def run(self):
        while not self.done.is_set():
            with contextlib.suppress(TimeoutError):
                frame, ancillary, _, _ = self.socket.recvmsg(96, 64)
                seconds, nanoseconds = struct.unpack("=qq", ancillary[0][2][:16])
                self.frames.append((seconds, nanoseconds, frame))

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.join()
        self.socket.close()
        header = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 96, 1)
        records = (
            struct.pack("<IIII", seconds, nanoseconds, len(frame), len(frame)) + frame
            for seconds, nanoseconds, frame in self.frames
        )
        self.path.write_bytes(header + b"".join(records))


def connected(lab):
    """A connection from the worker, on the second host, to the server, on the first."""
    server, worker = lab.topology.hosts[:2]
    with contextlib.closing(namespaces.inside(lab.namespace(server.name), socket.socket)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((server.address, PORT))
        listener.listen()
        one = namespaces.inside(lab.namespace(worker.name), socket.socket)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        one.settimeout(PATIENCE_S)
        one.connect((server.address, PORT))
        other, _ = listener.accept()
        other.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        other.settimeout(PATIENCE_S)
        return one, other


def receive(sock, size):
    while size:
        chunk = sock.recv(size)
        assert chunk
        size -= len(chunk)


def serve(sock, cycles):
    for _ in range(cycles):
        receive(sock, SIZE_BYTES)
        time.sleep(SERVER_S)
        sock.sendall(bytes(SIZE_BYTES))


def test_a_training_worker_is_measured(tmp_path):
    path = tmp_path / "trace.pcap"
    rounds = WARM_UP + CYCLES + 1
    begins = []
    with Lab(dumbbell(1, 2, Link(RATE_BPS, 100_000))) as lab:
        server = lab.topology.hosts[0]
        with Sniffer(lab, server.name, path):
            worker_side, server_side = connected(lab)
            with worker_side, server_side:
                thread = threading.Thread(target=serve, args=(server_side, rounds))
                thread.start()
                for _ in range(rounds):
                    begins.append(time.monotonic())
                    worker_side.sendall(bytes(SIZE_BYTES))
                    receive(worker_side, SIZE_BYTES)
                    time.sleep(WORKER_S)
                thread.join()
    found = profile(path, warm_up=WARM_UP)
    cycle_s = (begins[WARM_UP + CYCLES] - begins[WARM_UP]) / CYCLES
    assert (found.cycles, found.server) == (CYCLES, server.address)
    assert found.service.cycle_s == pytest.approx(cycle_s, rel=0.01)
    link_s = SIZE_BYTES / PAYLOAD_BYTES * FRAME_BYTES * 8 / RATE_BPS
    # A busy machine makes all of them longer, but none shorter: together by as much as the cycle is longer.
    held_up_s = max(0.0, cycle_s - (SERVER_S + WORKER_S + 2 * link_s))
    assert 0.97 * link_s < found.service.uplink_s < 1.5 * link_s + held_up_s
    assert 0.97 * link_s < found.service.downlink_s < 1.5 * link_s + held_up_s
    assert SERVER_S <= found.service.server_s < 2 * SERVER_S + held_up_s
    assert 0.9 * WORKER_S < found.service.worker_s < 2 * WORKER_S + held_up_s
    assert found.gradient_bytes == pytest.approx(SIZE_BYTES, rel=0.05)
