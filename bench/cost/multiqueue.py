"""Pacing of a job on an interface with several transmit queues: its rate beside the one that was set, and CPU a byte.

Needs root. A veth pair between two namespaces has as many queues as asked for, and mq. In a rate case the job's flows
send all they can, and `of_rate` is what its classes let through over the rate that was set. In a CPU case as many flows
as queues send without a limit that matters, through plain mq, one HTB qdisc, and mq with an HTB qdisc for each
queue in turn; the figure is the CPU time of sender and receiver, and `control_loop` the share of a core besides.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from bench.cost.benchmark import Row
from bench.lab.network import namespaces
from bench.lab.network.single_link import namespace_with_link
from mltcp.daemon.journal import Journal
from mltcp.pacing.tc.htb_qdisc import HtbQdisc
from mltcp.pacing.tc.mq_htb_qdisc import MqHtbQdisc
from mltcp.pacing.tc.qdiscs import HANDLE

Q = TypeVar("Q", bound=HtbQdisc)

INTERFACE = "wan"
_ADD_MQ = f"tc qdisc add dev {INTERFACE} root handle 1: mq"
_ADDRESSES = ("10.79.0.1", "10.79.0.2")
JOB = 16
_LINE_RATE_BPS = 400_000_000_000
"""Many times what the flows of the CPU cases send: a queue's share of a lower one would hold back their bursts."""
_TICK_S = 0.002
_WARM_UP_S = 1.0
_CHUNK_BYTES = 1 << 20
_TRUNCATE = socket.MSG_TRUNC


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's own arguments."""
    parser.add_argument("--queues", type=int, nargs="+", default=[4, 8], metavar="N", help="(default 4 8)")
    parser.add_argument(
        "--flows", type=int, nargs="+", default=[1, 2, 4, 8, 16], metavar="N", help="(default 1 2 4 8 16)"
    )
    parser.add_argument("--rate", type=float, default=200.0, metavar="MBIT", help="of the job (default 200)")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="of each case (default 3)")
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="of the CPU cases (default 5)")


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Measure the rates over each number of flows, then the CPU time, for each number of queues."""
    for queues in options.queues:
        with multiqueue_link(queues) as link:
            for flows in options.flows:
                found = paced(link, flows, options.rate * 1e6, options.seconds)
                name = f"{queues} queues, {flows} flows"
                yield {"case": name, "of_rate": found.of_rate, "queues_used": found.queues_used}
            yield {"case": f"{queues} queues, CPU", **_cpu(link, queues, options.seconds, options.repeat)}


# -- the link and its flows --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MultiqueueLink:
    """Two network namespaces with a link between them, :data:`INTERFACE` in both."""

    here: str
    there: str


@contextmanager
def multiqueue_link(queues: int) -> Iterator[MultiqueueLink]:
    """A veth pair with this many queues, and mq with the handle 1: on this side; removed at the end."""
    with namespace_with_link() as here, namespace_with_link() as there:
        size = f"numtxqueues {queues} numrxqueues {queues}"
        _run(here, f"ip link add {INTERFACE} {size} type veth peer name {INTERFACE} {size} netns {there}")
        for name, address in zip((here, there), _ADDRESSES, strict=True):
            _run(name, f"ip addr add {address}/24 dev {INTERFACE}")
            _run(name, f"ip link set {INTERFACE} up")
        _run(here, _ADD_MQ)
        yield MultiqueueLink(here, there)


def _run(namespace: str, command: str) -> None:
    namespaces.inside(namespace, lambda: subprocess.run(command.split(), check=True))


@contextmanager
def flows_of_a_job(link: MultiqueueLink, count: int) -> Iterator[list[int]]:
    """Flows with a job's mark that send all they can; yields the processes of the sender and of the receiver."""
    listener = namespaces.inside(link.there, lambda: socket.create_server((_ADDRESSES[1], 0), backlog=count))
    with listener:
        pairs = namespaces.inside(link.here, lambda: [_connection(listener) for _ in range(count)])
    ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    processes = []
    try:
        processes.append(_forked(lambda: _each(ours, _send)))
        processes.append(_forked(lambda: _each(theirs, _receive)))
        for each in (*ours, *theirs):
            each.close()
        yield processes
    finally:
        for process in processes:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _connection(listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    ours = socket.socket()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, HANDLE | JOB)
    ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
    ours.connect(listener.getsockname())
    return ours, listener.accept()[0]


def _forked(act: Callable[[], None]) -> int:
    process = os.fork()
    if not process:
        try:
            act()
        finally:
            os._exit(1)
    return process


def _each(sockets: list[socket.socket], act: Callable[[socket.socket], None]) -> None:
    threads = [threading.Thread(target=act, args=(each,)) for each in sockets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _send(connection: socket.socket) -> None:
    chunk = bytes(_CHUNK_BYTES)
    while True:
        connection.sendall(chunk)


def _receive(connection: socket.socket) -> None:
    while connection.recv(_CHUNK_BYTES, _TRUNCATE):
        pass


# -- rates -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PacedRate:
    """The rate of a job over the one that was set, and the number of queues that carried a hundredth of it each."""

    of_rate: float
    queues_used: int


def paced(link: MultiqueueLink, flows: int, rate_bps: float, seconds: float) -> PacedRate:
    """Pace a job with this many flows, and measure its rate after a second."""
    with flows_of_a_job(link, flows):
        return namespaces.inside(link.here, lambda: _paced(rate_bps, seconds))


def _paced(rate_bps: float, seconds: float) -> PacedRate:
    with _installed(MqHtbQdisc) as qdisc:
        qdisc.add_class(JOB, rate_bps)
        return rate_of(qdisc, rate_bps, _WARM_UP_S, seconds)


def rate_of(qdisc: MqHtbQdisc, rate_bps: float, warm_up_s: float, seconds: float) -> PacedRate:
    """The rate of the job on a qdisc that is rebalanced as by the daemon, after a time that does not count."""
    _control(qdisc, warm_up_s)
    began_s, before = time.monotonic(), qdisc.sent_bytes(JOB)
    _control(qdisc, seconds)
    after, elapsed_s = qdisc.sent_bytes(JOB), time.monotonic() - began_s
    sent = [after[queue] - before[queue] for queue in after]
    return PacedRate(8 * sum(sent) / elapsed_s / rate_bps, sum(1 for each in sent if each > 0.01 * sum(sent)))


@contextmanager
def _installed(kind: type[Q]) -> Iterator[Q]:
    with tempfile.TemporaryDirectory() as directory, Journal.locked(Path(directory) / "journal") as journal:
        qdisc = kind(INTERFACE, _LINE_RATE_BPS, journal)
        qdisc.install()
        try:
            yield qdisc
        finally:
            qdisc.remove()
            qdisc.close()


def _control(qdisc: HtbQdisc, seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        qdisc.rebalance()
        time.sleep(_TICK_S)


# -- CPU ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CpuCost:
    """CPU time of sender and receiver a byte, the rate of the bytes, and the control loop's share of one core."""

    ns_per_byte: float
    gbps: float
    control_share: float


def _cpu(link: MultiqueueLink, flows: int, seconds: float, repeat: int) -> dict[str, float]:
    """The same connections, and so the same queues, through plain mq and through ours in turn."""
    plain, one, ours = [], [], []
    with flows_of_a_job(link, flows) as processes:
        time.sleep(_WARM_UP_S)
        for _ in range(repeat):
            plain.append(_cpu_cost(link, processes, lambda: time.sleep(seconds)))
            cost = partial(_cost_of, MqHtbQdisc, link, processes, seconds)
            ours.append(namespaces.inside(link.here, cost))
            # A chosen mq is never replaced by one HTB qdisc.
            _run(link.here, f"tc qdisc del dev {INTERFACE} root")
            cost = partial(_cost_of, HtbQdisc, link, processes, seconds)
            one.append(namespaces.inside(link.here, cost))
            _run(link.here, _ADD_MQ)
    found = _medians("mq", plain) | _medians("one_htb", one) | _medians("mq_htb", ours)
    ratios = sorted(mine.ns_per_byte / theirs.ns_per_byte for mine, theirs in zip(ours, plain, strict=True))
    return found | {
        "ratio_to_mq": statistics.median(ratios),
        "least": ratios[0],
        "largest": ratios[-1],
        "control_loop": statistics.median(each.control_share for each in ours),
    }


def _medians(name: str, costs: list[CpuCost]) -> dict[str, float]:
    return {
        f"{name}_gbps": statistics.median(each.gbps for each in costs),
        f"{name}_ns_per_byte": statistics.median(each.ns_per_byte for each in costs),
    }


def _cost_of(kind: type[HtbQdisc], link: MultiqueueLink, processes: list[int], seconds: float) -> CpuCost:
    with _installed(kind) as qdisc:
        qdisc.add_class(JOB, _LINE_RATE_BPS)
        _control(qdisc, _WARM_UP_S / 4)
        return _cpu_cost(link, processes, lambda: _control(qdisc, seconds))


def _cpu_cost(link: MultiqueueLink, processes: list[int], meanwhile: Callable[[], None]) -> CpuCost:
    own_before_s, began_s = time.process_time(), time.monotonic()
    cpu_before_s, bytes_before = _cpu_s(processes), _received_bytes(link)
    meanwhile()
    spent_s, sent = _cpu_s(processes) - cpu_before_s, _received_bytes(link) - bytes_before
    elapsed_s = time.monotonic() - began_s
    own_share = (time.process_time() - own_before_s) / elapsed_s
    return CpuCost(1e9 * spent_s / sent, 8 * sent / elapsed_s / 1e9, own_share)


def _cpu_s(processes: list[int]) -> float:
    # The clock of another process (clock_getcpuclockid(3)): scheduler time, in nanoseconds.
    return sum(time.clock_gettime(~process << 3 | 2) for process in processes)


def _received_bytes(link: MultiqueueLink) -> int:
    def read() -> int:
        lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
        (fields,) = (line.split(":")[1].split() for line in lines if line.strip().startswith(f"{INTERFACE}:"))
        return int(fields[0])

    return namespaces.inside(link.there, read)
