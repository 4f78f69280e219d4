"""Throughput of one bulk flow of ``mltcp-bench perf`` beside iperf3, in turns.

Needs root and iperf3. It runs over the loopback and over two links of the lab, under CUBIC. A row has the medians of
what was received.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from bench.cost.benchmark import Row
from bench.lab.lab import Lab
from bench.lab.link import Link
from bench.lab.network import namespaces
from bench.lab.topology import dumbbell
from mltcp.core.errors import MltcpError, NotAvailableError

T = TypeVar("T")

_PERF = (sys.executable, "-m", "bench.cli", "perf")
_IPERF3_PORT, _PERF_PORT = "5398", "5399"
_CONTROL = "cubic"
_LINKS = ((300_000_000, 300_000), (5_000_000_000, 4_000_000))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's own arguments."""
    parser.add_argument("--seconds", type=int, default=2, metavar="S", help="of a run (default 2)")
    parser.add_argument("--turns", type=int, default=7, metavar="N", help="runs of each tool (default 7)")


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Measure over the loopback, then over each link."""
    if shutil.which("iperf3") is None:
        raise NotAvailableError("iperf3 is not installed: apt-get install iperf3")
    yield {"case": "loopback", **_compared(None, None, "127.0.0.1", options)}
    for rate_bps, queue_bytes in _LINKS:
        with Lab(dumbbell(1, 2, Link(rate_bps, queue_bytes, None))) as lab:
            left, right = lab.topology.hosts_of(0)[:2]
            server, client = lab.namespace(right.name), lab.namespace(left.name)
            figures = _compared(server, client, right.address, options)
        yield {"case": f"lab, {rate_bps / 1e6:g} Mbit/s", **figures}


def _compared(
    server: str | None, client: str | None, address: str, options: argparse.Namespace
) -> dict[str, float]:
    common = ["-c", address, "-t", str(options.seconds), "-C", _CONTROL, "--json"]
    iperf3_bps: list[float] = []
    perf_bps: list[float] = []
    with (
        _server(server, ["iperf3", "-s", "-p", _IPERF3_PORT, "--forceflush"]) as iperf3,
        _server(server, [*_PERF, "-s", "-p", _PERF_PORT]) as perf,
    ):
        _await_listening(perf)
        for _ in range(options.turns):
            _await_listening(iperf3)
            end = _document(client, ["iperf3", "-p", _IPERF3_PORT, *common])["end"]
            iperf3_bps.append(end["sum_received"]["bits_per_second"])
            end = _document(client, [*_PERF, "-p", _PERF_PORT, *common])["end"]
            perf_bps.append(end["directions"][0]["receiver"]["bits_per_second"])
    iperf3_median, perf_median = statistics.median(iperf3_bps), statistics.median(perf_bps)
    return {
        "iperf3_bps": round(iperf3_median),
        "perf_bps": round(perf_median),
        "ratio": round(perf_median / iperf3_median, 4),
        "iperf3_min_bps": round(min(iperf3_bps)),
        "iperf3_max_bps": round(max(iperf3_bps)),
        "perf_min_bps": round(min(perf_bps)),
        "perf_max_bps": round(max(perf_bps)),
    }


@contextmanager
def _server(namespace: str | None, command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    process = _in(
        namespace,
        lambda: subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _await_listening(server: subprocess.Popen[str]) -> None:
    """Read the server's output up to the line in which it says that it listens; iperf3 does so before each test."""
    assert server.stdout is not None
    line = ""
    while "listening" not in line:
        before, line = line, server.stdout.readline()
        if not line:
            raise MltcpError(f"{server.args!r} does not listen: {before.strip() or 'it wrote nothing'}")


def _document(namespace: str | None, command: Sequence[str]) -> Any:
    done = _in(namespace, lambda: subprocess.run(command, capture_output=True, text=True, check=False))
    if done.returncode != 0:
        raise MltcpError(f"{command[0]} failed: {(done.stderr or done.stdout).strip()[-200:]}")
    return json.loads(done.stdout)


def _in(namespace: str | None, action: Callable[[], T]) -> T:
    return action() if namespace is None else namespaces.inside(namespace, action)
