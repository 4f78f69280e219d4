"""Two jobs on a link of the lab, one with four connections: four shares of five, or one of two under `fair`."""

import socket
import struct
import threading
import time
from contextlib import ExitStack, closing, suppress
from itertools import islice

import pytest

from bench.lab.lab import Lab
from bench.lab.link import Link
from bench.lab.topology import dumbbell
from mltcp.control.aggressiveness import Aggressiveness, Shape
from mltcp.ebpf.jobs import entered
from mltcp.ebpf.layout import Action, KernelJob
from mltcp.pacing.tcp_info import tcp_info
from tests.lab.controls_under_test import own_controls
from tests.lab.test_lab import PATIENCE_S, connection
from tests.lab.test_traffic_classes import drain

pytestmark = pytest.mark.lab

LINK = Link(200_000_000, 100_000, 40_000)
"""With marks: where a queue is full, those lose most that grow most, and the job of four has 0.65."""
SETTLES_BYTES, MEASURED_BYTES = 25_000_000, 75_000_000


@pytest.fixture(scope="module")
def controls():
    with own_controls() as own:
        own.load(own.names)
        yield own


def feed(sock):
    with suppress(OSError):  # closed
        while True:
            sock.sendall(bytes(1 << 18))


def acked(senders):
    return sum(tcp_info(each.fileno()).acked_bytes for each in senders)


def shares_of_four(controls, control, fair):
    """The part that a job with four connections has of what it and a job with one send, again and again."""
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(dumbbell(2, 2, LINK)))
        tags = stack.enter_context(controls.shared_map("mltcp_tags"))
        senders = []
        for index, count in enumerate((1, 4)):
            job = KernelJob(f"of-{count}", Aggressiveness(Shape.ONE), Action(fair=fair))
            number = stack.enter_context(entered(job, controls))
            pairs = [connection(lab, f"j{index}r0", f"j{index}r1") for _ in range(count)]
            for one, other in pairs:
                stack.callback(other.close)
                stack.callback(one.close)
                tags.update(struct.pack("=i", one.fileno()), struct.pack("=II", number, 0))
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, controls.own[control].encode())
                threading.Thread(target=drain, args=(other,), daemon=True).start()
            senders.append([one for one, _ in pairs])
        for one in (each for of_job in senders for each in of_job):
            threading.Thread(target=feed, args=(one,), daemon=True).start()
        before = _wait(senders, SETTLES_BYTES)
        while True:
            after = _wait(senders, sum(before) + MEASURED_BYTES)
            one, four = (last - first for first, last in zip(before, after, strict=True))
            yield four / (one + four)
            before = after


def _wait(senders, total):
    """What each job has sent once both have sent so much."""
    deadline = time.monotonic() + PATIENCE_S
    while sum(found := [acked(each) for each in senders]) < total:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


@pytest.mark.parametrize("control", ["mltcp_reno", "mltcp_cubic"])
def test_a_job_of_four_connections_has_one_share(controls, control):
    with closing(shares_of_four(controls, control, fair=True)) as shares:
        assert next(shares) < 0.6
    with closing(shares_of_four(controls, control, fair=False)) as shares:
        # Four shares of five, which a busy machine takes longer to divide: CUBIC's windows converge slowly.
        assert any(share > 0.65 for share in islice(shares, 5))
