"""The arrays that a simulation works on, made from jobs, a cluster and what contention costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from placement.cluster import Cluster
from placement.contention import Contention
from placement.errors import UsageError
from placement.job import Job
from placement.simulator import agenda as agendas
from placement.simulator.agenda import Agenda
from placement.state import GPU, JOB, LINK, PLACE, SERVER, WORKER, Records

_MOST = 1 << 62
"""No number in the arrays may pass it."""

CORE = np.dtype(
    [
        ("queued", "i8"),
        ("places", "i8"),
        ("ended", "i8"),
        ("arrived", "i8"),
        ("events", "i8"),
        ("must_place", "i8"),
        ("parts", "i8"),  # of a nanosecond, in the progress of transfers
        ("stamp", "i8"),
        ("dirty_gpus", "i8"),
        ("dirty_links", "i8"),
        ("candidates", "i8"),
        ("latency", "i8"),
    ]
)


class World(NamedTuple):
    """All of a simulation. The jobs are in the order of (arrival, number)."""

    jobs: Records
    gpus: Records
    servers: Records
    workers: Records
    links: Records
    places: Records
    hosted: np.ndarray  # per GPU, the workers there; `workers` of GPU are valid
    forward: np.ndarray  # per model and kind of GPU
    backward: np.ndarray
    rates: np.ndarray  # per kind of link and number of transfers: parts per nanosecond
    acceptance: np.ndarray  # per model: AdaDUAL starts its transfer beside one with more parts left than this
    memories: np.ndarray  # what jobs need of a GPU's memory, each size once
    roomy: np.ndarray  # per size in `memories`: the GPUs that have as much left
    way: np.ndarray  # per server, the links to the root, then -1
    below: np.ndarray  # per link, scratch
    agenda: Agenda  # GPUs, and then jobs
    queue: np.ndarray  # jobs that wait for GPUs, in the order of SRSF
    chosen: np.ndarray  # GPUs, scratch
    dirty_gpus: np.ndarray
    dirty_links: np.ndarray
    candidates: np.ndarray
    core: Records


def build(jobs: Sequence[Job], cluster: Cluster, contention: Contention) -> World:
    """The world before anything has happened.

    Raises:
        UsageError: no jobs, a number twice, or a job that cannot run on this cluster.
    """
    ordered = sorted(jobs, key=lambda job: (job.arrival_ns, job.job_id))
    _check(ordered, cluster)
    models = list(dict.fromkeys(job.model for job in ordered))
    performances = sorted({gpu.performance for _, gpu in cluster.gpus})
    memories = sorted({model.memory_mb for model in models})
    longest = max(math.ceil(contention.duration_ns(model.size_bytes)) for model in models)
    parts = 1 << (_MOST // (4 * (longest + 1))).bit_length() - 1
    core = np.zeros(1, CORE)
    core["parts"] = min(parts, 1 << 40)
    core["latency"] = math.ceil(contention.latency_ns)
    gpu_records = _gpus(cluster, performances)
    places = sum(min(job.gpus, len(cluster.servers)) + len(cluster.switches) for job in ordered)
    size = (len(models), len(performances))
    forward, backward = np.zeros(size, np.int64), np.zeros(size, np.int64)
    for row, model in enumerate(models):
        for column, performance in enumerate(performances):
            forward[row, column] = math.ceil(model.forward_ns / performance)
            backward[row, column] = math.ceil(model.backward_ns / performance)
    most_hosted = max(gpu.memory_mb for _, gpu in cluster.gpus) // max(1, memories[0])
    return World(
        jobs=_jobs(ordered, models, contention),
        gpus=gpu_records,
        servers=_servers(cluster),
        workers=np.zeros(sum(job.gpus for job in ordered), WORKER),
        links=_links(cluster),
        places=np.zeros(places, PLACE),
        hosted=np.full((len(cluster.gpus), max(1, min(most_hosted, len(ordered)))), -1, np.int64),
        forward=forward,
        backward=backward,
        rates=_rates(cluster, contention, int(core["parts"][0]), len(ordered)),
        acceptance=np.array(
            [_acceptance(model.size_bytes, contention, int(core["parts"][0])) for model in models], np.int64
        ),
        memories=np.array(memories, np.int64),
        roomy=np.array([int((gpu_records["memory_left"] >= each).sum()) for each in memories], np.int64),
        way=_ways(cluster),
        below=np.zeros(len(cluster.links), np.int64),
        agenda=agendas.empty(len(cluster.gpus) + len(ordered)),
        queue=np.zeros(len(ordered), np.int64),
        chosen=np.zeros(len(cluster.gpus), np.int64),
        dirty_gpus=np.zeros(len(cluster.gpus), np.int64),
        dirty_links=np.zeros(max(1, len(cluster.links)), np.int64),
        candidates=np.zeros(len(ordered), np.int64),
        core=core,
    )


def _check(jobs: Sequence[Job], cluster: Cluster) -> None:
    if not jobs:
        raise UsageError("no jobs: one or more is allowed")
    seen: set[int] = set()
    for job in jobs:
        if job.job_id in seen:
            raise UsageError(f"job {job.job_id}: the number is used more than once")
        seen.add(job.job_id)
        fit = sum(gpu.memory_mb >= job.model.memory_mb for _, gpu in cluster.gpus)
        if fit < job.gpus:
            raise UsageError(
                f"job {job.job_id} wants {job.gpus} GPUs with {job.model.memory_mb} MB: the cluster has {fit}"
            )
        if job.arrival_ns > _MOST // 4 or job.service_ns > _MOST // 4:
            raise UsageError(f"job {job.job_id}: arrival or compute time of more than {_MOST / 4e9:.3g} s")


def _jobs(ordered: Sequence[Job], models: list, contention: Contention) -> Records:
    numbers = {model: number for number, model in enumerate(models)}
    found = np.zeros(len(ordered), JOB)
    worker = 0
    for record, job in zip(found, ordered, strict=True):
        record["job_id"], record["arrival"], record["gpus"] = job.job_id, job.arrival_ns, job.gpus
        record["memory"], record["model"] = job.model.memory_mb, numbers[job.model]
        record["compute"] = job.model.compute_ns
        record["transfer"] = math.ceil(contention.duration_ns(job.model.size_bytes))
        record["iterations_left"], record["service_left"] = job.iterations, job.service_ns
        record["first_worker"] = worker
        record["ended"] = -1
        worker += job.gpus
    return found


def _gpus(cluster: Cluster, performances: list[Fraction]) -> Records:
    found = np.zeros(len(cluster.gpus), GPU)
    for record, (server, gpu) in zip(found, cluster.gpus, strict=True):
        record["server"], record["kind"] = server, performances.index(gpu.performance)
        record["memory_left"], record["current"] = gpu.memory_mb, -1
    return found


def _servers(cluster: Cluster) -> Records:
    found = np.zeros(len(cluster.servers), SERVER)
    first = 0
    for record, server in zip(found, cluster.servers, strict=True):
        record["first_gpu"], record["gpus"] = first, len(server.gpus)
        first += len(server.gpus)
    return found


def _links(cluster: Cluster) -> Records:
    speeds = sorted({link.speed for link in cluster.links})
    found = np.zeros(len(cluster.links), LINK)
    for record, link in zip(found, cluster.links, strict=True):
        record["kind"] = speeds.index(link.speed)
        record["first_running"] = record["first_waiting"] = -1
    return found


def _rates(cluster: Cluster, contention: Contention, parts: int, most: int) -> np.ndarray:
    """How many parts of its nanoseconds alone a transfer gets through in one, beside others (Eq. 5).

    Rounded down: no transfer is faster than the model says.
    """
    speeds = sorted({link.speed for link in cluster.links})
    found = np.zeros((len(speeds), most + 1), np.int64)
    for row, speed in enumerate(speeds):
        for transfers in range(1, most + 1):
            share = speed * contention.ns_per_byte / contention.pace_ns_per_byte(transfers)
            found[row, transfers] = max(1, math.floor(parts * share))
    return found


def _acceptance(size_bytes: int, contention: Contention, parts: int) -> int:
    """The parts that a running transfer must have left for one of `size_bytes` to start beside it (Theorem 2)."""
    least = size_bytes * contention.ns_per_byte * parts / contention.acceptance
    return min(_MOST, math.floor(least))


def _ways(cluster: Cluster) -> np.ndarray:
    ways = cluster.ways
    found = np.full((len(ways), max(map(len, ways))), -1, np.int64)
    for row, way in enumerate(ways):
        found[row, : len(way)] = way
    return found
