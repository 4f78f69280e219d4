"""CPU time and memory of ``mltcpd`` with many jobs, and the time to register a flow.

Needs root. Every job has 8 flows that send 1 kB every 20 ms.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.cost.benchmark import Row
from bench.lab.daemon_process import DaemonProcess, running_daemon
from bench.lab.network import namespaces
from bench.lab.network.single_link import namespace_with_link
from mltcp.core.errors import MltcpError
from mltcp.daemon.client.client import Client, Registration

_FLOWS = 8
_SEND_EVERY_S = 0.02
_SENT_BYTES = 1000
_PACED = 'interfaces = ["eth0"]\n[pacing]\ninterval = {interval}\nline_rate = "10gbit"\n'
_CASES = (
    ("registered, eBPF", "", 200),
    ("paced every 10 ms", _PACED.format(interval=0.01), 10),
    ("paced every 5 ms", _PACED.format(interval=0.005), 10),
    ("paced every 2 ms", _PACED.format(interval=0.002), 10),
    ("paced every 2 ms, 2 jobs", _PACED.format(interval=0.002), 2),
)

Pair = tuple[socket.socket, socket.socket]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's own arguments."""
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="of each case (default 5)")


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Measure each case with a daemon of its own."""
    for case, configuration, jobs in _CASES:
        yield {"case": case, **load(configuration, jobs, _FLOWS, options.seconds, moving=True)}


def load(configuration: str, jobs: int, flows: int, seconds: float, moving: bool) -> dict[str, int | float]:
    """Register jobs with flows at a new daemon; returns the daemon's costs by name.

    Args:
        configuration: TOML of the daemon.
        jobs: their number.
        flows: of each job.
        seconds: time over which CPU time is counted.
        moving: whether the flows send meanwhile.

    Raises:
        MltcpError: the daemon does not start, or refuses a flow.
    """
    with namespace_with_link() as namespace, running_daemon(namespace, configuration) as daemon:
        return namespaces.inside(namespace, lambda: _costs(daemon, jobs, flows, seconds, moving))


@contextmanager
def connections(count: int) -> Iterator[list[Pair]]:
    """Both ends of TCP connections over the loopback of the calling thread's namespace."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1024))
        pairs = []
        for _ in range(count):
            client = stack.enter_context(socket.create_connection(listener.getsockname()))
            pairs.append((client, stack.enter_context(listener.accept()[0])))
        yield pairs


def _costs(
    daemon: DaemonProcess, jobs: int, flows: int, seconds: float, moving: bool
) -> dict[str, int | float]:
    with ExitStack() as stack:
        pairs = stack.enter_context(connections(jobs * flows))
        clients, times_s = [], []
        for job in range(jobs):
            client = stack.enter_context(Client(daemon.socket))
            client.register(Registration(f"job-{job}", total_bytes=10**6, gap_s=0.05))
            clients.append(client)
            times_s += [_add_flow_s(client, ours) for ours, _ in pairs[job * flows : (job + 1) * flows]]
        cpu_share = _cpu_share(daemon.pid, pairs if moving else (), seconds)
        return {
            "jobs": jobs,
            "flows": jobs * flows,
            "cpu_share": round(cpu_share, 4),
            "resident_mb": round(_resident_mb(daemon.pid), 1),
            "mean_flow_ms": round(1000 * sum(times_s) / len(times_s), 3),
            "slowest_flow_ms": round(1000 * max(times_s), 3),
            "jobs_seen": len(clients[0].status().jobs),
        }


def _add_flow_s(client: Client, connection: socket.socket) -> float:
    began_s = time.perf_counter()
    refused = client.add_flows([connection.fileno()])
    if refused:
        raise MltcpError(f"the daemon refuses a flow: {refused[0].why}")
    return time.perf_counter() - began_s


def _cpu_share(pid: int, pairs: Sequence[Pair], seconds: float) -> float:
    before_s, began_s = _cpu_s(pid), time.monotonic()
    while time.monotonic() - began_s < seconds:
        for ours, theirs in pairs:
            ours.send(b"x" * _SENT_BYTES)
            theirs.recv(_SENT_BYTES)
        time.sleep(_SEND_EVERY_S)
    return (_cpu_s(pid) - before_s) / (time.monotonic() - began_s)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mb(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in line)
    return int(line.split()[1]) / 1024
