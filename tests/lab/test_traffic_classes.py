"""The traffic class that the kernel gives to the bursts of a job, read from the packets at the other host."""

import fcntl
import socket
import struct
import termios
import threading
import time
from contextlib import suppress

import pytest

from bench.lab.lab import Lab
from bench.lab.link import Link
from bench.lab.topology import dumbbell
from mltcp.control.aggressiveness import Aggressiveness
from mltcp.control.traffic_classes import bounds_between
from mltcp.ebpf.jobs import entered
from mltcp.ebpf.layout import Action, KernelJob, Tracker
from tests.lab.controls_under_test import own_controls
from tests.lab.test_lab import ETH_P_IP, PATIENCE_S, connection, packet_socket

pytestmark = pytest.mark.lab

TOTAL, LAST = 500_000, 1_000  # bytes of an iteration, and of its second burst
RATE_BPS, BOUNDS = 100_000_000, (TOTAL // 2, 1e12)
GAPS_S = (0.8, 2.4)  # longer than a busy machine pauses, mostly
CLASSES = 4
SECOND, HIGHEST = 2 << 5, 3 << 5
CS7 = 7 << 5


class Watch:
    """The class selectors of data that arrive at a host, burst by burst."""

    def __init__(self, sock):
        self._sock, self._seen = sock, []
        self._enough = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        while True:
            try:
                packet = self._sock.recv(65535)[14:]
            except OSError:
                return
            tos, length, protocol = packet[1], int.from_bytes(packet[2:4]), packet[9]
            header = 4 * (packet[0] & 15)
            size = length - header - 4 * (packet[header + 12] >> 4) if protocol == socket.IPPROTO_TCP else 0
            with self._enough:
                self._seen += [(tos & ~3, size)] if size else []
                self._enough.notify()

    def total(self):
        """All bytes of data so far, by type of service."""
        with self._enough:
            found = dict.fromkeys((tos for tos, _ in self._seen), 0)
            for tos, size in self._seen:
                found[tos] += size
            return found

    def take(self, size):
        """The type of service of each packet of the next `size` bytes."""
        with self._enough:
            assert self._enough.wait_for(lambda: sum(each for _, each in self._seen) >= size, PATIENCE_S)
            taken = []
            while size > 0:
                tos, length = self._seen.pop(0)
                taken.append(tos)
                size -= length
        return taken


def send(sock, size, change=None):
    """Send a burst, until all of it has been acknowledged; `change` is called when half of it has been written."""
    sock.sendall(bytes(size // 2))
    if change is not None:
        change()
    sock.sendall(bytes(size - size // 2))
    deadline = time.monotonic() + PATIENCE_S
    while struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))[0]:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def drain(sock):
    with suppress(OSError):  # closed
        while sock.recv(1 << 18):
            pass


@pytest.fixture(scope="module")
def controls():
    with own_controls() as own:
        own.load(own.names)
        yield own


def iterations_of(controls, gap_s):
    """Three iterations of two bursts each with a pause after which the job's next one begins.

    The class selectors of their packets, that of the sender in the end, the job, and the longest iteration in s.
    """
    name = controls.own["mltcp_reno"]
    action = Action(classes=CLASSES, class_bounds_bytes=BOUNDS)
    tracker = Tracker.given_values(TOTAL, round(gap_s * 1e9))
    job = KernelJob("classed", Aggressiveness(), action, tracker)
    with (
        Lab(dumbbell(1, 2, Link(RATE_BPS, 200_000))) as lab,
        entered(job, controls) as number,
        packet_socket(lab, "j0r1", ETH_P_IP) as at_receiver,
    ):
        at_receiver.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)  # SO_RCVBUFFORCE
        watch = Watch(at_receiver)
        one, other = connection(lab, "j0r0", "j0r1")
        with one, other, controls.shared_map("mltcp_tags") as tags:
            tags.update(struct.pack("=i", one.fileno()), struct.pack("=II", number, 0))
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
            threading.Thread(target=drain, args=(other,), daemon=True).start()

            def raise_itself():
                one.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, CS7)

            bursts, longest_s = [], 0.0
            for change in (None, None, raise_itself):
                time.sleep(1.5 * gap_s)  # computing
                began_s = time.monotonic()
                send(one, TOTAL - LAST, change)
                send(one, LAST)
                longest_s = max(longest_s, time.monotonic() - began_s)
                said = one.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) & ~3
                bursts += [watch.take(TOTAL - LAST), watch.take(LAST)]
            with controls.job_entries() as entries:
                entries.set_class_bounds()
                known = entries.get(number)
            one.shutdown(socket.SHUT_WR)
        return bursts, said, known, longest_s


def test_a_burst_says_the_class_of_what_remains_whatever_its_program_says(controls):
    for gap_s in GAPS_S:
        bursts, said, known, longest_s = iterations_of(controls, gap_s)
        # Else the machine may have held it up between the bursts of an iteration: a pause to the kernel.
        if longest_s < gap_s:
            break
    unknown, unknown_end, first, last, disobedient, _ = bursts
    assert set(unknown) == set(unknown_end) == {0}, "nothing is known in the first iteration"
    assert (first[0], *set(first[1:]) - {HIGHEST}) == (SECOND, SECOND), "where it takes long it is raised"
    assert set(last) == {HIGHEST}
    assert said == HIGHEST, "what it acknowledges meanwhile goes first"
    assert disobedient[0] == SECOND
    assert disobedient[-1] in (SECOND, HIGHEST)
    assert known.tracker.total_bytes == TOTAL
    assert known.acts.class_bounds_bytes == pytest.approx(bounds_between([TOTAL], CLASSES), abs=512)
