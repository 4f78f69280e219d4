"""A link with several transmit queues, the flows of a job over it, and the rate that they get."""

import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.lab.network import namespaces
from bench.lab.network.namespaces import namespace_with_link
from mltcp.daemon.journal import Journal
from mltcp.pacing.tc.htb_qdisc import HtbQdisc
from mltcp.pacing.tc.qdiscs import HANDLE, class_use
from mltcp.pacing.tc.queue_layout import QueueLayout
from tests.lab.moments import at_a_moment, most_between

INTERFACE = "wan"
JOB = 16
_ADDRESSES = ("10.79.0.1", "10.79.0.2")
_LINE_RATE_BPS = 400_000_000_000
"""Many times the rates that are set."""

_TICK_S = 0.002
_WARM_UP_S = 1.0
_CHUNK_BYTES = 1 << 20
_ENOUGH, _PERIODS = 0.9, 3


@dataclass(frozen=True)
class MultiqueueLink:
    """Two network namespaces with a link between them, :data:`INTERFACE` in both."""

    here: str
    there: str


@contextmanager
def multiqueue_link(queues):
    """A veth pair with this many queues, and mq with the handle 1: on this side; removed at the end."""
    with namespace_with_link() as here, namespace_with_link() as there:
        size = f"numtxqueues {queues} numrxqueues {queues}"
        _run(here, f"ip link add {INTERFACE} {size} type veth peer name {INTERFACE} {size} netns {there}")
        for name, address in zip((here, there), _ADDRESSES, strict=True):
            _run(name, f"ip addr add {address}/24 dev {INTERFACE}")
            _run(name, f"ip link set {INTERFACE} up")
        _run(here, f"tc qdisc add dev {INTERFACE} root handle 1: mq")
        yield MultiqueueLink(here, there)


def _run(namespace, command):
    namespaces.inside(namespace, lambda: subprocess.run(command.split(), check=True))


@contextmanager
def flows_of_a_job(link, count):
    """Flows with a job's mark that send all they can; yields the processes of the sender and of the receiver."""
    listener = namespaces.inside(link.there, lambda: socket.create_server((_ADDRESSES[1], 0), backlog=count))
    with listener:
        pairs = namespaces.inside(link.here, lambda: [_connection(listener) for _ in range(count)])
    ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    processes = []
    try:
        processes.append(_forked(lambda: _each(ours, _send)))
        processes.append(_forked(lambda: _each(theirs, _receive)))
        for connection in (*ours, *theirs):
            connection.close()
        yield processes
    finally:
        for process in processes:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _connection(listener):
    ours = socket.socket()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, HANDLE | JOB)
    ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
    ours.connect(listener.getsockname())
    return ours, listener.accept()[0]


def _forked(act):
    process = os.fork()
    if not process:
        try:
            act()
        finally:
            os._exit(1)
    return process


def _each(sockets, act):
    threads = [threading.Thread(target=act, args=(each,)) for each in sockets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _send(connection):
    chunk = bytes(_CHUNK_BYTES)
    while True:
        connection.sendall(chunk)


def _receive(connection):
    while connection.recv(_CHUNK_BYTES, socket.MSG_TRUNC):
        pass


@dataclass(frozen=True)
class PacedRate:
    """The rate of a job over the one that was set, and the number of queues that carried a hundredth of it each."""

    of_rate: float
    queues_used: int


def paced(link, flows, rate_bps, seconds):
    """Pace a job with this many flows, and measure its rate after a second."""
    with flows_of_a_job(link, flows):
        return namespaces.inside(link.here, lambda: _paced(rate_bps, seconds))


def _paced(rate_bps, seconds):
    with _installed() as qdisc:
        qdisc.add_class(JOB, rate_bps)
        return rate_of(qdisc, rate_bps, _WARM_UP_S, seconds)


def rate_of(qdisc, rate_bps, warm_up_s, seconds):
    """The rate of the job on a qdisc that is rebalanced as by the daemon, after a time that does not count.

    The largest of several periods if the first has less than it should: a machine that holds up the sender, the
    receiver or this process makes it less, never more.
    """
    _control(qdisc, warm_up_s)
    found = [_rate_in(qdisc, rate_bps, seconds)]
    while found[-1].of_rate <= _ENOUGH and len(found) < _PERIODS:
        found.append(_rate_in(qdisc, rate_bps, seconds))
    return max(found, key=lambda each: each.of_rate)


def _rate_in(qdisc, rate_bps, seconds):
    first = at_a_moment(lambda: sent_bytes(qdisc, JOB))
    _control(qdisc, seconds)
    last = at_a_moment(lambda: sent_bytes(qdisc, JOB))
    sent = [last.found[queue] - first.found[queue] for queue in last.found]
    of_rate = 8 * sum(sent) / most_between(first, last) / rate_bps
    return PacedRate(of_rate, sum(1 for each in sent if each > 0.01 * sum(sent)))


def sent_bytes(qdisc, minor):
    """The bytes that a job's class in each queue, from 1, has sent since it was added."""
    return {
        (handle - HANDLE) >> 16: use.sent_bytes
        for handle, use in class_use(qdisc.index).items()
        if handle & 0xFFFF == minor and handle & 0xFFFF0000 != HANDLE  # where the queues of mq are
    }


@contextmanager
def _installed():
    with tempfile.TemporaryDirectory() as directory, Journal.locked(Path(directory) / "journal") as journal:
        qdisc = HtbQdisc(INTERFACE, _LINE_RATE_BPS, journal, layout=QueueLayout(INTERFACE))
        qdisc.install()
        try:
            yield qdisc
        finally:
            qdisc.remove()
            qdisc.close()


def _control(qdisc, seconds):
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        qdisc.rebalance()
        time.sleep(_TICK_S)
