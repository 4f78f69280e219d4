"""The state of a simulation as arrays, built from jobs, a cluster and a contention model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from mltcp.core.errors import UsageError
from placement.model.cluster import Cluster
from placement.model.job import Contention, Job, Model
from placement.model.state import GPU, JOB, LINK, PLACE, SERVER, WORKER, Records
from placement.policies.catalogue import CommunicationPolicy, PlacementPolicy
from placement.simulator.exact.event_heap import EventHeap, TaskEnds, empty, no_tasks

_MOST = 1 << 62
"""The bound of all numbers in the arrays."""

_LONGEST = _MOST // 4
_FASTEST = 1 << 20

CORE = np.dtype(
    [
        ("rule", "i8"),  # of the communication policy, and the next two
        ("limit", "i8"),
        ("compute_rank", "i8"),
        ("link_rank", "i8"),
        ("placement", "i8"),
        ("kappa", "i8"),
        ("parts", "i8"),  # of a nanosecond, in the progress of transfers
        ("latency", "i8"),  # a of Eq. 2
        ("queued", "i8"),
        ("least_queued", "i8"),  # GPUs of the smallest of these; or less
        ("places", "i8"),
        ("arrived", "i8"),
        ("ended", "i8"),
        ("events", "i8"),
        ("must_place", "i8"),
        ("dirty_gpus", "i8"),
        ("dirty_links", "i8"),
        ("candidates", "i8"),
        ("interval", "i8"),  # ns, of the use over time
    ]
)


class ExactWorld(NamedTuple):
    """The state of a simulation. The jobs are in the order of (arrival, number)."""

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
    costs: np.ndarray  # per number of transfers: the time of a byte over its time alone
    acceptance: np.ndarray  # per model: AdaDUAL starts its transfer beside one with more parts left than this
    memories: np.ndarray  # the jobs' memory requirements a GPU, each size once
    roomy: np.ndarray  # per size in `memories`: the GPUs that have as much left
    way: np.ndarray  # per server, the links to the root, then -1
    below: np.ndarray  # per link, scratch
    ends: TaskEnds
    event_heap: EventHeap  # the transfers of jobs, and then their next buckets
    queue: np.ndarray  # jobs that wait for GPUs, in the order of SRSF
    chosen: np.ndarray  # GPUs, scratch
    dirty_gpus: np.ndarray
    dirty_links: np.ndarray
    candidates: np.ndarray
    touched: np.ndarray
    gpu_use: np.ndarray  # per GPU and interval, ns
    link_use: np.ndarray
    core: Records


def build(
    jobs: Sequence[Job],
    cluster: Cluster,
    placement: PlacementPolicy,
    communication: CommunicationPolicy,
    contention: Contention,
    use: tuple[int, int] = (0, 0),
) -> ExactWorld:
    """Build the initial state; `use` is the number of intervals of the use over time and their length in ns.

    Raises:
        UsageError: no jobs, a duplicate number, or a job that cannot run on this cluster.
    """
    ordered = sorted(jobs, key=lambda job: (job.arrival_ns, job.job_id))
    _check(ordered, cluster, contention)
    models = list(dict.fromkeys(job.model for job in ordered))
    memories = sorted({model.memory_mb for model in models})
    core = _core(models, placement, communication, contention)
    core["interval"] = use[1]
    gpus, links, parts = _gpus(cluster), _links(cluster), int(core["parts"][0])
    forward, backward = _durations(models, _performances(cluster))
    return ExactWorld(
        jobs=_jobs(ordered, models, contention, communication.bucket_bytes),
        gpus=gpus,
        servers=_servers(cluster),
        workers=np.zeros(sum(job.gpus for job in ordered), WORKER),
        links=links,
        places=np.zeros(
            sum(min(job.gpus, len(cluster.servers)) + len(cluster.switches) for job in ordered), PLACE
        ),
        hosted=np.full((len(gpus), _most_hosted(ordered, cluster)), -1, np.int64),
        forward=forward,
        backward=backward,
        rates=_rates(cluster, contention, parts, len(ordered)),
        costs=_costs(contention, len(ordered)),
        acceptance=np.array([_acceptance(each.size_bytes, contention, parts) for each in models], np.int64),
        memories=np.array(memories, np.int64),
        roomy=np.array([int((gpus["memory_left"] >= each).sum()) for each in memories], np.int64),
        way=_ways(cluster),
        below=np.zeros(len(links), np.int64),
        ends=no_tasks(len(gpus)),
        event_heap=empty(2 * len(ordered)),
        queue=np.zeros(len(ordered), np.int64),
        chosen=np.zeros(len(gpus), np.int64),
        dirty_gpus=np.zeros(len(gpus), np.int64),
        dirty_links=np.zeros(len(links), np.int64),
        candidates=np.zeros(len(ordered), np.int64),
        touched=np.zeros(len(ordered), np.int64),
        gpu_use=np.zeros((len(gpus), use[0]), np.int64),
        link_use=np.zeros((len(links), use[0]), np.int64),
        core=core,
    )


def _core(
    models: Sequence[Model],
    placement: PlacementPolicy,
    communication: CommunicationPolicy,
    contention: Contention,
) -> Records:
    longest = max(math.ceil(contention.duration_ns(model.size_bytes)) for model in models)
    core = np.zeros(1, CORE)
    core["rule"], core["limit"] = communication.rule, communication.limit
    core["compute_rank"], core["link_rank"] = communication.compute_rank, communication.link_rank
    core["placement"], core["kappa"] = placement.rule, placement.kappa
    # As fine as the longest transfer allows within the range of the numbers.
    core["parts"] = 1 << min(40, (_MOST // (4 * (longest + 1))).bit_length() - 1)
    core["latency"] = math.ceil(contention.latency_ns)
    return core


def _performances(cluster: Cluster) -> list[Fraction]:
    return sorted({gpu.performance for _, gpu in cluster.gpus})


def _speeds(cluster: Cluster) -> list[Fraction]:
    return sorted({link.speed for link in cluster.links})


def _durations(models: Sequence[Model], performances: Sequence[Fraction]) -> tuple[np.ndarray, np.ndarray]:
    forward = [[math.ceil(model.forward_ns / each) for each in performances] for model in models]
    backward = [[math.ceil(model.backward_ns / each) for each in performances] for model in models]
    return np.array(forward, np.int64), np.array(backward, np.int64)


def _most_hosted(jobs: Sequence[Job], cluster: Cluster) -> int:
    """The number of workers that fit into the memory of a GPU."""
    least = min(job.model.memory_mb for job in jobs)
    if least < 1:
        return len(jobs)
    return max(1, min(len(jobs), max(gpu.memory_mb for _, gpu in cluster.gpus) // least))


def _check(jobs: Sequence[Job], cluster: Cluster, contention: Contention) -> None:
    if not jobs:
        raise UsageError("jobs: expected one or more, got no jobs")
    seen: set[int] = set()
    sizes = [gpu.memory_mb for _, gpu in cluster.gpus]
    wanted = {job.model.memory_mb for job in jobs}
    room = {memory_mb: sum(size >= memory_mb for size in sizes) for memory_mb in wanted}
    for job in jobs:
        if job.job_id in seen:
            raise UsageError(f"job {job.job_id}: the number is used more than once")
        seen.add(job.job_id)
        memory_mb = job.model.memory_mb
        if room[memory_mb] < job.gpus:
            raise UsageError(
                f"job {job.job_id} wants {job.gpus} GPUs with {memory_mb} MB: the cluster has {room[memory_mb]}"
            )
    _check_range(jobs, cluster, contention)


def _check_range(jobs: Sequence[Job], cluster: Cluster, contention: Contention) -> None:
    """Refuse jobs whose sequential run, on slow and crowded links, would exceed the range of the numbers."""
    slowest = min([Fraction(1), *_performances(cluster)])
    speeds = [Fraction(1), *_speeds(cluster)]
    crowded = (1 + contention.penalty_ns_per_byte / contention.ns_per_byte) / min(speeds)
    needed = {
        model: math.ceil(
            (model.compute_ns + 2) / slowest + contention.duration_ns(model.size_bytes) * crowded
        )
        for model in {job.model for job in jobs}
    }
    worst = max(jobs, key=lambda job: job.arrival_ns + needed[job.model] * job.iterations * job.gpus)
    total = max(job.arrival_ns for job in jobs) + sum(needed[job.model] * job.iterations for job in jobs)
    if max(total, needed[worst.model] * worst.iterations * worst.gpus) > _LONGEST:
        raise UsageError(
            f"job {worst.job_id}: expected jobs that take at most {_LONGEST / 1e9:.3g} s one after the other, "
            f"got up to {float(total) / 1e9:.3g} s with it"
        )
    if max(speeds) > _FASTEST:
        raise UsageError(f"link: expected a speed of at most {_FASTEST}, got {float(max(speeds)):g}")


def _jobs(
    ordered: Sequence[Job], models: Sequence[Model], contention: Contention, bucket_bytes: int
) -> Records:
    numbers = {model: number for number, model in enumerate(models)}
    found = np.zeros(len(ordered), JOB)
    worker = 0
    for record, job in zip(found, ordered, strict=True):
        record["job_id"], record["arrival"], record["gpus"] = job.job_id, job.arrival_ns, job.gpus
        record["memory"], record["model"] = job.model.memory_mb, numbers[job.model]
        record["compute"] = job.model.compute_ns
        record["transfer"] = math.ceil(contention.duration_ns(job.model.size_bytes))
        record["buckets"] = max(1, -(-job.model.size_bytes // bucket_bytes)) if bucket_bytes else 1
        record["weight"] = round(1024 * job.gpus ** (1 / 3))
        record["iterations"] = record["iterations_left"] = job.iterations
        record["service_left"] = job.service_ns
        record["first_worker"], record["ended"] = worker, -1
        worker += job.gpus
    return found


def _gpus(cluster: Cluster) -> Records:
    performances = _performances(cluster)
    found = np.zeros(len(cluster.gpus), GPU)
    for record, (server, gpu) in zip(found, cluster.gpus, strict=True):
        record["server"], record["kind"] = server, performances.index(gpu.performance)
        record["memory_left"], record["current"] = gpu.memory_mb, -1
    return found


def _servers(cluster: Cluster) -> Records:
    found = np.zeros(len(cluster.servers), SERVER)
    racks = {switch.name: number for number, switch in enumerate(cluster.switches)}
    first = 0
    for record, server in zip(found, cluster.servers, strict=True):
        record["first_gpu"], record["gpus"], record["rack"] = first, len(server.gpus), racks[server.switch]
        first += len(server.gpus)
    return found


def _links(cluster: Cluster) -> Records:
    speeds = _speeds(cluster)
    found = np.zeros(len(cluster.links), LINK)
    for record, link in zip(found, cluster.links, strict=True):
        record["kind"] = speeds.index(link.speed)
        record["first_running"] = record["first_waiting"] = record["granted"] = -1
    return found


def _rates(cluster: Cluster, contention: Contention, parts: int, most: int) -> np.ndarray:
    """The progress of a transfer beside others (Eq. 5): parts of a nanosecond alone that it completes in a nanosecond.

    Rounded down: no transfer is faster than the model says.
    """
    speeds = _speeds(cluster)
    found = np.zeros((len(speeds), most + 1), np.int64)
    for row, speed in enumerate(speeds):
        for transfers in range(1, most + 1):
            share = speed * contention.ns_per_byte / contention.pace_ns_per_byte(transfers)
            found[row, transfers] = math.floor(parts * share)
    if found[:, 1:].min() < 1:
        raise UsageError(
            "transfers that take so long, on links so slow, cannot be told from none: the longest all-reduce and the "
            "slowest link are too far apart"
        )
    return found


def _costs(contention: Contention, most: int) -> np.ndarray:
    alone = contention.ns_per_byte
    return np.array([0.0] + [float(contention.pace_ns_per_byte(each) / alone) for each in range(1, most + 2)])


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
