"""The time of a compatibility score of jobs on one link, and of the choice among candidate placements.

The first rows are of 200 random sets of jobs. The others choose among 10 candidates for 300 jobs on 1,000 servers of 4
GPUs in 50 racks, of which some jobs are scattered over all racks; they are medians of five runs.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator
from typing import Literal

from bench.cost.benchmark import Row
from mltcp.core.demand import Demand, Phase
from placement.cassini import circle, placement_selection
from placement.cassini.circle import unified
from placement.cassini.compatibility import compatibility
from placement.cassini.placement_selection import choose_placement

_INSTANCES, _RUNS = 200, 5
_SERVERS, _RACKS, _GPUS, _JOBS, _CANDIDATES = 1000, 50, 4, 300, 10
_NIC_GBPS, _UPLINK_GBPS = 50, 500
_GPUS_OF_A_JOB = (1, 1, 1, 2, 2, 4, 4, 8, 16, 32)
# A dozen models: compute ms, communication ms, Gbit/s.
_MODELS = (
    (120, 130, 40), (140, 100, 42), (100, 170, 45), (30, 60, 20), (90, 160, 48), (200, 20, 10),
    (150, 80, 30), (60, 60, 25), (170, 210, 50), (110, 40, 45), (250, 300, 40), (90, 20, 20),
)  # fmt: skip
_SCORED = ((2, 360), (3, 72), (4, 72), (8, 72))
_SCATTERED = (0, 0.1, 0.3, 1)
_LOOPS: tuple[Literal["discard", "joint"], ...] = ("discard", "joint")
_NS_PER_MS = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's own arguments: none."""


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Measure scores, then choices."""
    _score_ms(8, 72)  # compiles
    _choose_s(0.1, "joint", seed=0)
    for jobs, angles in _SCORED:
        times_ms, gaps = _score_ms(jobs, angles)
        yield {
            "case": f"{jobs} jobs, {360 / angles:g} degrees",
            "median_ms": statistics.median(times_ms),
            "slowest_ms": max(times_ms),
            "proven": sum(gap <= 0 for gap in gaps),
            "instances": len(gaps),
            "largest_gap": max(gaps),
        }
    for scattered in _SCATTERED:
        for loops in _LOOPS:
            runs = [_choose_s(scattered, loops, seed) for seed in range(_RUNS)]
            yield {
                "case": f"{scattered:.0%} of jobs scattered, loops {loops}",
                "median_s": statistics.median(seconds for seconds, _ in runs),
                "slowest_s": max(seconds for seconds, _ in runs),
                "shared_links": statistics.median(links for _, links in runs),
            }


def _score_ms(jobs: int, angles: int) -> tuple[list[float], list[float]]:
    """The times of the scores of random jobs on one link, and how far each score is below its proven bound."""
    numbers = random.Random(0)
    times_ms, gaps = [], []
    for _ in range(_INSTANCES):
        same = numbers.random() < 0.5
        demands = [
            _random_demand(
                numbers, 300 if same else numbers.choice((100, 150, 200, 300)), numbers.uniform(0.3, 2) / jobs
            )
            for _ in range(jobs)
        ]
        start_s = time.perf_counter()
        found = compatibility(unified(demands, angles=angles), 50)
        times_ms.append((time.perf_counter() - start_s) * 1e3)
        gaps.append(found.bound - found.score)
    return times_ms, gaps


def _random_demand(numbers: random.Random, iteration_ms: int, busy: float) -> Demand:
    """One to three phases that send for the share ``busy`` of an iteration."""
    ups = numbers.randint(1, 3)
    phases: list[tuple[float, int]] = []
    for _ in range(ups):
        up_ms = busy * iteration_ms / ups
        phases += [(iteration_ms / ups - up_ms, 0), (up_ms, numbers.randint(30, 50))]
    return _demand(*phases)


def _demand(*phases: tuple[float, int]) -> Demand:
    return Demand(tuple(Phase(round(duration_ms * _NS_PER_MS), gbps) for duration_ms, gbps in phases))


def _choose_s(scattered: float, loops: Literal["discard", "joint"], seed: int) -> tuple[float, int]:
    """The time of a choice, and the number of links that jobs share in the placement that was chosen."""
    numbers = random.Random(seed)
    shapes = [_demand((compute_ms, 0), (send_ms, gbps)) for compute_ms, send_ms, gbps in _MODELS]
    demands = {f"job{job}": numbers.choice(shapes) for job in range(_JOBS)}
    capacities = {f"server{server}": _NIC_GBPS for server in range(_SERVERS)}
    capacities |= {f"rack{rack}": _UPLINK_GBPS for rack in range(_RACKS)}
    candidates = [_placed(numbers, scattered) for _ in range(_CANDIDATES)]
    # Start without what an earlier choice has left in the caches.
    for cached in (placement_selection._fit, circle._commensurable, circle._sampled):
        cached.cache_clear()
    start_s = time.perf_counter()
    found = choose_placement(candidates, demands, capacities, loops=loops)
    return time.perf_counter() - start_s, len(found.links)


def _placed(numbers: random.Random, scattered: float) -> dict[str, list[str]]:
    """The jobs on each link, of jobs placed one after the other; the share ``scattered`` of them in all racks."""
    servers_a_rack = _SERVERS // _RACKS
    free = {
        rack: [(rack * servers_a_rack + server) for server in range(servers_a_rack) for _ in range(_GPUS)]
        for rack in range(_RACKS)
    }
    traffic: dict[str, list[str]] = {}
    for job in range(_JOBS):
        wanted = numbers.choice(_GPUS_OF_A_JOB)
        servers: list[int] = []
        anywhere = numbers.random() < scattered
        rack = numbers.randrange(_RACKS)
        while len(servers) < wanted:
            if free[rack]:
                servers.append(free[rack].pop(numbers.randrange(len(free[rack])) if anywhere else 0))
            if anywhere or not free[rack]:
                rack = numbers.randrange(_RACKS)
        for link in _links_of(set(servers), servers_a_rack):
            traffic.setdefault(link, []).append(f"job{job}")
    return traffic


def _links_of(servers: set[int], servers_a_rack: int) -> list[str]:
    if len(servers) < 2:
        return []
    racks = {server // servers_a_rack for server in servers}
    links = [f"server{server}" for server in servers]
    return links + ([f"rack{rack}" for rack in racks] if len(racks) > 1 else [])
