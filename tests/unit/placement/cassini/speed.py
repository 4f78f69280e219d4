"""How long scores take: ``python -m tests.unit.placement.cassini.speed``, with nothing else running."""

import random
import statistics
import time

from placement.cassini import circle
from placement.cassini import placement_selection as module
from placement.cassini.circle import unified
from placement.cassini.compatibility import compatibility
from placement.cassini.placement_selection import choose
from tests.unit.placement.cassini.demands import demand

INSTANCES = 200
SERVERS, RACKS, GPUS, JOBS, CANDIDATES = 1000, 50, 4, 300, 10
NIC_BPS, UPLINK_BPS = 50, 500
SIZES = (1, 1, 1, 2, 2, 4, 4, 8, 16, 32)
# a dozen models: compute ms, communication ms, Gbit/s
MODELS = (
    (120, 130, 40), (140, 100, 42), (100, 170, 45), (30, 60, 20), (90, 160, 48), (200, 20, 10),
    (150, 80, 30), (60, 60, 25), (170, 210, 50), (110, 40, 45), (250, 300, 40), (90, 20, 20),
)  # fmt: skip


def random_demand(numbers, iteration_ms, fill):
    """Some Up phases that take up the given share of an iteration."""
    ups = numbers.randint(1, 3)
    phases = []
    for _ in range(ups):
        up = fill * iteration_ms / ups
        phases += [(iteration_ms / ups - up, 0), (up, numbers.randint(30, 50))]
    return demand(*phases)


def solved(jobs, angles, seed=0):
    """Milliseconds, bounds minus scores, and how many were proven, of random jobs on one link."""
    numbers = random.Random(seed)
    times, gaps = [], []
    for _ in range(INSTANCES):
        same = numbers.random() < 0.5
        shapes = [
            random_demand(
                numbers, 300 if same else numbers.choice((100, 150, 200, 300)), numbers.uniform(0.3, 2) / jobs
            )
            for _ in range(jobs)
        ]
        start = time.perf_counter()
        found = compatibility(unified(shapes, angles=angles), 50)
        times.append((time.perf_counter() - start) * 1e3)
        gaps.append(found.bound - found.score)
    return times, gaps


def placed(numbers, scattered):
    """Which jobs use which link when they are placed one after the other, some of them all over the cluster."""
    a_rack = SERVERS // RACKS
    free = {
        rack: [(rack * a_rack + server) for server in range(a_rack) for _ in range(GPUS)]
        for rack in range(RACKS)
    }
    traffic = {}
    for job in range(JOBS):
        wanted, servers = numbers.choice(SIZES), []
        anywhere = numbers.random() < scattered
        rack = numbers.randrange(RACKS)
        while len(servers) < wanted:
            if free[rack]:
                servers.append(free[rack].pop(numbers.randrange(len(free[rack])) if anywhere else 0))
            if anywhere or not free[rack]:
                rack = numbers.randrange(RACKS)
        used = set(servers)
        if len(used) > 1:
            racks = {server // a_rack for server in used}
            links = [f"server{server}" for server in used]
            links += [f"rack{each}" for each in racks] if len(racks) > 1 else []
            for link in links:
                traffic.setdefault(link, []).append(f"job{job}")
    return traffic


def chosen(scattered, loops, seed=0):
    """Seconds for a choice, and its outcome."""
    numbers = random.Random(seed)
    shapes = [demand((compute, 0), (communication, gbps)) for compute, communication, gbps in MODELS]
    demands = {f"job{job}": numbers.choice(shapes) for job in range(JOBS)}
    capacities = {f"server{server}": NIC_BPS for server in range(SERVERS)}
    capacities |= {f"rack{rack}": UPLINK_BPS for rack in range(RACKS)}
    candidates = [placed(numbers, scattered) for _ in range(CANDIDATES)]
    # as if no placement had been looked at before
    for kept in (module._fit, circle._commensurable, circle._sampled):
        kept.cache_clear()
    start = time.perf_counter()
    found = choose(candidates, demands, capacities, loops=loops)
    return time.perf_counter() - start, found


def main():
    solved(8, 72)  # compiles
    chosen(0.1, "joint")
    for jobs, angles in ((2, 360), (3, 72), (4, 72), (8, 72)):
        times, gaps = solved(jobs, angles)
        print(
            f"{jobs} jobs, {360 / angles:g} degrees: median {statistics.median(times):.2f} ms, slowest "
            f"{max(times):.2f} ms; proven {sum(gap <= 0 for gap in gaps)} of {len(gaps)}, largest gap {max(gaps):.3f}"
        )
    for scattered in (0, 0.1, 0.3, 1):
        for loops in ("discard", "joint"):
            runs = [chosen(scattered, loops, seed) for seed in range(5)]
            times = sorted(seconds for seconds, _ in runs)
            shared = statistics.median(len(found.links) for _, found in runs)
            print(
                f"{SERVERS} servers, {JOBS} jobs, {CANDIDATES} candidates, {scattered:.0%} of jobs scattered, loops "
                f"{loops}: median {times[2]:.2f} s, slowest {times[-1]:.2f} s; {shared:.0f} shared links"
            )


if __name__ == "__main__":
    main()
