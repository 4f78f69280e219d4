"""Traces of large jobs in whole servers, whose all-reduces fill the NICs: what over-subscribed networks are bought for.

Sizes, times and shares are drawn evenly (iteration times and durations on a logarithmic scale): 2 to 8 servers, an
iteration of 2 to 8 s, of which 15 to 45 % go to an all-reduce at the rate of a NIC, and 5 to 40 minutes in all, alone.
Arrivals are a Poisson process, as in `poisson`.
"""

from __future__ import annotations

import random
from dataclasses import replace

from mltcp.core.demand import Demand, Phase
from mltcp.core.errors import UsageError
from mltcp.core.quantities import NS_PER_MS, NS_PER_S
from placement.traces.sets import JobSet, TracedJob

SERVERS = (2, 8)
ITERATION_S = (2.0, 8.0)
SENDING = (0.15, 0.45)
DURATION_S = (300.0, 2400.0)

_MOST_JOBS = 100_000


def large_jobs(seed: int, *, jobs: int, load: float, gpus: int, server_gpus: int, nic_bps: int) -> JobSet:
    """Generate a trace.

    Args:
        seed: from 0 on.
        jobs: how many.
        load: the share of the GPUs that jobs would keep busy, each taking its time alone.
        gpus: of the cluster.
        server_gpus: of a server; jobs ask for whole ones, and for a quarter of the cluster at most.
        nic_bps: the rate at which they send.

    Raises:
        UsageError: an argument is out of range.
    """
    if seed < 0 or not 1 <= jobs <= _MOST_JOBS or not 0 < load <= 10 or gpus < 8 * server_gpus:
        raise UsageError(
            f"expected seed >= 0, 1 to {_MOST_JOBS} jobs, 0 < load <= 10 and 8 servers or more, "
            f"got seed {seed}, {jobs} jobs, load {load}, {gpus // server_gpus} servers"
        )
    draw = random.Random(f"large jobs {seed}")
    most = min(SERVERS[1], gpus // server_gpus // 4)
    drawn = [_drawn(f"job{number}", draw, most * server_gpus, server_gpus, nic_bps) for number in range(jobs)]
    busy_ns = sum(job.workers * job.iterations * job.demand.iteration_ns for job in drawn) / jobs
    arrival_ns, placed = 0, []
    for job in drawn:
        placed.append(replace(job, arrival_ns=arrival_ns))
        arrival_ns += round(draw.expovariate(load * gpus / busy_ns) / NS_PER_MS) * NS_PER_MS
    source = f"large jobs: Poisson arrivals, load {load:g}, seed {seed}"
    return JobSet(f"large-{seed}", source, nic_bps / 1e9, tuple(placed))


def _drawn(name: str, draw: random.Random, most: int, server_gpus: int, nic_bps: int) -> TracedJob:
    workers = draw.randint(SERVERS[0], most // server_gpus) * server_gpus
    iteration_s, duration_s = (low * (high / low) ** draw.random() for low, high in (ITERATION_S, DURATION_S))
    sending_ns = round(draw.uniform(*SENDING) * iteration_s * NS_PER_S)
    demand = Demand((Phase(round(iteration_s * NS_PER_S) - sending_ns, 0), Phase(sending_ns, nic_bps)))
    return TracedJob(name, workers, max(1, round(duration_s / iteration_s)), 0, demand)
