"""What the network simulator costs: ``python -m tests.network.speed 24 --control dcqcn --seconds 5``.

Processor time, the least of `--repeat` runs, of a drawn set of jobs that share links: 60 jobs of 2 to 4 of 24 servers,
or 200 jobs of 2 to 12 of 256 servers, 4:1; each a ring that sends for 5 to 15 % of its iteration alone, at 50 Gbit/s.
``python -m tests.network.speed sizes`` takes equal jobs on 24 to 2,048 servers instead.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np

from placement.simulator.network.control_names import parse_control
from placement.simulator.network.laws.network_law import NetworkLaw
from placement.simulator.network.routing import RoutingTable
from placement.simulator.network.shares import ShareSettings, advanced, begun
from placement.simulator.network.steps.build import build
from placement.simulator.network.steps.iterations import FLOW_STEPS
from placement.simulator.network.steps.loop import TO_TIME, advance, begin_jobs
from placement.simulator.network.topologies import network_named
from placement.simulator.network.topology import Network
from placement.simulator.network.traffic import IterationStep, Message, NetworkJob, Routes, Traffic

RATE_BPS = 50e9
STEP_NS = 5000
SHORT_NS = 10_000_000
"""A run before those that are timed, so that the code is compiled."""
SIZES = {24: "3x8", 64: "8x8", 256: "16x16", 1024: "32x32", 2048: "32x64"}


def ring(name: str, hosts: list[int], sending_s: float, compute_s: float, law: NetworkLaw) -> NetworkJob:
    """A job whose workers send to the next one for so long at line rate."""
    size = sending_s * RATE_BPS / 8
    count = len(hosts)
    messages = tuple(Message(k, (k + 1) % count, size) for k in range(count))
    traffic = Traffic(count, (IterationStep(round(compute_s * 1e9), messages),))
    return NetworkJob(name, traffic, tuple(hosts), law, 100_000, noise_ns=2_000_000)


def drawn_jobs(servers: int, law: NetworkLaw) -> tuple[Network, list[NetworkJob]]:
    """The network, and the jobs that are drawn for it; servers are shared."""
    draws = np.random.default_rng(7)
    shape, count, most = ("4x6:2:1", 60, 4) if servers == 24 else ("16x16:4:1", 200, 12)
    jobs = []
    for k in range(count):
        hosts = sorted(
            int(each) for each in draws.choice(servers, draws.integers(2, most + 1), replace=False)
        )
        took_s, share = draws.uniform(0.2, 0.4), draws.uniform(0.05, 0.15)
        jobs.append(ring(f"job{k}", hosts, took_s * share, took_s * (1 - share), law))
    return network_named(f"leaf-spine:{shape}"), jobs


def spread_jobs(servers: int, law: NetworkLaw) -> tuple[Network, list[NetworkJob]]:
    """Jobs of 8 on three quarters of the servers, each on servers that are far apart."""
    count = servers * 3 // 4 // 8
    jobs = [
        ring(f"job{k}", [k + count * worker for worker in range(8)], 0.08, 0.16, law) for k in range(count)
    ]
    return network_named(f"leaf-spine:{SIZES[servers]}:4:1"), jobs


def _timed(repeat: int, begin: Callable[[], Callable[[], float]]) -> tuple[float, float]:
    """The least processor time of several runs, and what one returned."""
    took, found = np.inf, 0.0
    for _ in range(repeat):
        run = begin()
        began = time.process_time()
        found = run()
        took = min(took, time.process_time() - began)
    return took, found


def time_steps(
    network: Network, jobs: list[NetworkJob], routes: Routes, duration_ns: int, repeat: int
) -> tuple[float, float]:
    """Processor seconds, and steps of flows."""

    def begin(until: int = duration_ns) -> Callable[[], float]:
        state = build(network, jobs, routes, 0)
        begin_jobs(state)

        def run() -> float:
            advance(state, STEP_NS, until, TO_TIME)
            return float(state.counts[FLOW_STEPS])

        return run

    begin(SHORT_NS)()
    return _timed(repeat, begin)


def time_shares(
    network: Network, jobs: list[NetworkJob], routes: Routes, duration_ns: int, repeat: int
) -> tuple[float, float]:
    """Processor seconds, and iterations."""

    def begin(until: int = duration_ns) -> Callable[[], float]:
        state = begun(network, jobs, routes, ShareSettings(duration_ns=until))
        return lambda: float(len(advanced(state, until * 1000)[1]))

    begin(SHORT_NS)()
    return _timed(repeat, begin)


def main(arguments: list[str] | None = None) -> int:
    """Measure."""
    parser = argparse.ArgumentParser(prog="python -m tests.network.speed", description=__doc__)
    parser.add_argument("what", choices=("24", "256", "sizes"))
    parser.add_argument("--mode", choices=("steps", "shares"), default="steps")
    parser.add_argument("--control", default="dcqcn,mltcp_dcqcn")
    parser.add_argument("--seconds", type=float, default=2.0, help="simulated")
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args(arguments)
    duration_ns = round(given.seconds * 1e9)
    print("| servers | flows | control | mode | CPU-s | a minute | ns a flow-step, or iterations |")
    print("|---:|---:|---|---|---:|---:|---:|")
    for servers in SIZES if given.what == "sizes" else [int(given.what)]:
        for control in given.control.split(","):
            make = spread_jobs if given.what == "sizes" else drawn_jobs
            network, jobs = make(servers, parse_control(control))
            table = RoutingTable(network)
            routes = [table.routes(job) for job in jobs]
            timed = time_steps if given.mode == "steps" else time_shares
            took, found = timed(network, jobs, routes, duration_ns, given.repeat)
            each = f"{took / max(found, 1) * 1e9:.1f}" if given.mode == "steps" else f"{found:.0f}"
            flows = sum(len(job.hosts) for job in jobs)
            print(
                f"| {servers} | {flows} | {control} | {given.mode} | {took:.2f} "
                f"| {took * 60 / given.seconds:.1f} | {each} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
