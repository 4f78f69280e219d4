"""CPU time and memory of ``mltcpd`` with many jobs, the time to register a flow, and how long users wait for others.

Needs root. Every job has 8 flows that send 1 kB every 20 ms. Then one user has a job of thousands of flows, and passes
64 of them again and again, on one connection or several, while another user asks for the status every 10 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.cost.benchmark import Row
from bench.lab.network import namespaces
from bench.lab.network.namespaces import namespace_with_link
from bench.lab.programs import DaemonProcess, running_daemon
from mltcp.core.errors import MltcpError
from mltcp.daemon.client.client import Client, Registration
from mltcp.daemon.client.protocol import MOST_DESCRIPTORS

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
_HELD_UP = (
    ("status of another user, eBPF", 'controls = ["mltcp_cubic"]\n'),
    ("status of another user, paced every 10 ms", _PACED.format(interval=0.01)),
)
_ATTACKERS = (0, 1, 8)
_ASKED_EVERY_S = 0.01
_PASSING_USER, _ASKING_USER = 65534, 65533

Pair = tuple[socket.socket, socket.socket]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's own arguments."""
    add = parser.add_argument
    add("--seconds", type=float, default=5.0, metavar="S", help="of each case (default 5)")
    add(
        "--held-flows",
        type=int,
        default=8000,
        metavar="N",
        help="of the user who passes some again (default 8000)",
    )
    add("--only", default="", metavar="TEXT", help="measure the cases with this in their name only")


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Measure each case with a daemon of its own."""
    for case, configuration, jobs in _CASES:
        if options.only in case:
            yield {"case": case, **load(configuration, jobs, _FLOWS, options.seconds, moving=True)}
    for case, configuration in _HELD_UP:
        for attackers in _ATTACKERS if options.only in case else ():
            found = status_times(configuration, options.held_flows, attackers, options.seconds)
            yield {"case": f"{case}; {attackers} connections pass", **found}


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


def status_times(configuration: str, flows: int, attackers: int, seconds: float) -> dict[str, int | float]:
    """How long a user waits for the daemon's status while another one, with a job of many flows, passes some again.

    Args:
        configuration: TOML of the daemon.
        flows: of the other user's job.
        attackers: connections on which that user passes 64 of them again and again.
        seconds: of asking.

    Raises:
        MltcpError: the daemon does not start, or one of the two users fails.
    """
    everybody = f'group = "no-such-group"\n{configuration}'
    with namespace_with_link() as namespace, running_daemon(namespace, everybody) as daemon:
        return namespaces.inside(namespace, lambda: _waited(daemon, flows, attackers, seconds))


def _waited(daemon: DaemonProcess, flows: int, attackers: int, seconds: float) -> dict[str, int | float]:
    passing = _user(f"pass_again({os.fspath(daemon.socket)!r}, {flows}, {attackers})")
    try:
        _line_of(passing)
        cpu_s, began_s = _cpu_s(daemon.pid), time.monotonic()
        asking = _user(f"ask({os.fspath(daemon.socket)!r}, {seconds})")
        times_ms = sorted(json.loads(_line_of(asking)))
        asking.wait()
        cpu_share = (_cpu_s(daemon.pid) - cpu_s) / (time.monotonic() - began_s)
    finally:
        told, _ = passing.communicate()
    passed, refused = json.loads(told)
    return {
        "flows": flows,
        "median_ms": round(statistics.median(times_ms), 2),
        "p99_ms": round(times_ms[len(times_ms) * 99 // 100], 2),
        "worst_ms": round(times_ms[-1], 2),
        "cpu_share": round(cpu_share, 3),
        "passes": passed,
        "passes_refused": refused,
    }


def _user(call: str) -> subprocess.Popen[str]:
    """A process that calls a function of this module."""
    command = [sys.executable, "-c", f"from bench.cost.daemon import *; {call}"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise MltcpError(f"a user of the daemon ends with {process.wait()}")
    return line


def _become(user: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


def pass_again(path: str, flows: int, attackers: int) -> None:
    """As a user: pass all flows of a job, say so, and then the first ones again until the standard input ends."""
    _become(_PASSING_USER)
    ended = threading.Event()
    counts = [0, 0]

    def passing(client: Client, descriptors: Sequence[int]) -> None:
        client.register(Registration("held"))
        while not ended.is_set():
            try:
                client.add_flows(descriptors)
                counts[0] += 1
            except MltcpError:
                counts[1] += 1

    with ExitStack() as stack:
        pairs = stack.enter_context(connections(flows))
        client = stack.enter_context(Client(Path(path), timeout_s=60))
        client.register(Registration("held"))
        client.add_flows([ours.fileno() for ours, _ in pairs])
        again = [ours.fileno() for ours, _ in pairs[:MOST_DESCRIPTORS]]
        clients = [stack.enter_context(Client(Path(path), timeout_s=60)) for _ in range(attackers)]
        threads = [threading.Thread(target=passing, args=(each, again)) for each in clients]
        for thread in threads:
            thread.start()
        print("ready", flush=True)
        sys.stdin.read()
        ended.set()
        for thread in threads:
            thread.join()
    print(json.dumps(counts), flush=True)


def ask(path: str, seconds: float) -> None:
    """As another user: ask for the status again and again; prints the times in milliseconds."""
    _become(_ASKING_USER)
    times_ms = []
    with Client(Path(path), timeout_s=60) as client:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            began_s = time.perf_counter()
            client.status()
            times_ms.append(round(1000 * (time.perf_counter() - began_s), 3))
            time.sleep(_ASKED_EVERY_S)
    print(json.dumps(times_ms), flush=True)


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
