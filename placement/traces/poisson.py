"""Traces after the thesis' (4.5.1): jobs that arrive by a Poisson process, and a busy cluster that two more come to.

The load of a Poisson trace is the share of the cluster's GPUs that active jobs ask for, on average: jobs arrive at the
rate at which they would, each taking its time alone, keep as many GPUs busy. All 13 networks are equally likely, and
so are all batches of a network, 1 to 12 workers, and 200 to 1,000 iterations.
"""

from __future__ import annotations

import random

from mltcp.core.demand import Demand
from mltcp.core.errors import UsageError
from mltcp.core.quantities import NS_PER_MS
from placement.traces.demands import NETWORKS, Network
from placement.traces.sets import JobSet, TracedJob

CAPACITY_GBPS = 50.0
GPUS = 24
MOST_WORKERS = 12
ITERATIONS = (200, 1000)

_MOST_JOBS = 100_000


def poisson(seed: int, *, jobs: int = 60, load: float = 0.9, gpus: int = GPUS) -> JobSet:
    """Generate a Poisson trace.

    Args:
        seed: from 0 on.
        jobs: how many.
        load: 0.8 to 1 in the thesis.
        gpus: of the cluster; jobs ask for up to half of them, and up to 12.

    Raises:
        UsageError: an argument is out of range.
    """
    if seed < 0 or not 1 <= jobs <= _MOST_JOBS or not 0 < load <= 10 or gpus < 2:
        raise UsageError(
            f"expected seed >= 0, 1 to {_MOST_JOBS} jobs, 0 < load <= 10 and gpus >= 2, "
            f"got seed {seed}, {jobs} jobs, load {load}, {gpus} GPUs"
        )
    draw = random.Random(seed)
    most = min(MOST_WORKERS, max(gpus // 2, 1))
    drawn = [_drawn(f"job{number}", draw, most) for number in range(jobs)]
    busy_ns = sum(job.workers * job.iterations * job.demand.iteration_ns for job in drawn) / jobs
    between_ns = busy_ns / (load * gpus)
    arrival_ns, placed = 0, []
    for job in drawn:
        placed.append(_at(job, arrival_ns))
        arrival_ns += round(draw.expovariate(1 / between_ns) / NS_PER_MS) * NS_PER_MS
    source = f"4.5.1: Poisson arrivals, load {load:g}, seed {seed}"
    return JobSet(f"poisson-{seed}", source, CAPACITY_GBPS, tuple(placed))


def dynamic(seed: int, *, gpus: int = GPUS) -> JobSet:
    """Generate a dynamic trace (4.5.3): jobs fill two thirds of the cluster, then DLRM and ResNet50 arrive.

    The first jobs ask for 3 to 5 workers, so that they do not fit evenly into racks of 2 or 4 servers.

    Raises:
        UsageError: a negative seed, or less than 12 GPUs.
    """
    if seed < 0 or gpus < 12:
        raise UsageError(f"expected seed >= 0 and gpus >= 12, got seed {seed}, {gpus} GPUs")
    draw = random.Random(seed)
    present: list[TracedJob] = []
    busy, limit = 0, gpus * 2 // 3
    while busy < limit:
        workers = min(draw.randint(3, 5), max(limit - busy, 2))
        network = draw.choice([each for each in NETWORKS.values() if each.name not in ("DLRM", "ResNet50")])
        present.append(_job(f"job{len(present)}", network, network.batches[-1], workers, 1000, 0, fixed=True))
        busy += workers
    later_ns = 60 * 10**9
    arriving = [
        _job("dlrm", NETWORKS["DLRM"], 1024, gpus // 6, 400, later_ns, fixed=True),
        _job("resnet50", NETWORKS["ResNet50"], 1600, gpus // 6, 1000, later_ns, fixed=True),
    ]
    source = f"4.5.3: DLRM and ResNet50 arrive at a busy cluster, seed {seed}"
    return JobSet(f"dynamic-{seed}", source, CAPACITY_GBPS, (*present, *arriving))


def _drawn(name: str, draw: random.Random, most: int) -> TracedJob:
    network = draw.choice(list(NETWORKS.values()))
    batch = draw.choice(network.batches)
    return _job(name, network, batch, draw.randint(1, most), draw.randint(*ITERATIONS), 0)


def _job(
    name: str,
    network: Network,
    batch: int,
    workers: int,
    iterations: int,
    arrival_ns: int,
    fixed: bool = False,
) -> TracedJob:
    """Allow a data-parallel job to run with as few as half of its workers."""
    least = workers if fixed or network.kind == "model" else -(-workers // 2)
    return TracedJob(
        f"{name}-{network.name}",
        workers,
        iterations,
        arrival_ns,
        Demand(network.phases(workers, batch)),
        min_workers=least,
        model=network.name,
        batch=batch,
        noise_scale=network.noise_scale,
    )


def _at(job: TracedJob, arrival_ns: int) -> TracedJob:
    return TracedJob(**{**job.__dict__, "arrival_ns": arrival_ns})
