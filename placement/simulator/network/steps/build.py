"""Fills the arrays of the step mode from a network, its jobs and their routes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from mltcp.core.errors import UsageError
from mltcp.core.quantities import NS_PER_S
from placement.simulator.exact.event_heap import NEVER, empty
from placement.simulator.network.bursts import burst_places
from placement.simulator.network.laws.network_law import NetworkLaw
from placement.simulator.network.laws.sending import prepare
from placement.simulator.network.laws.state import scale_of
from placement.simulator.network.steps.records import (
    FLOW,
    HISTORY,
    HOP,
    JOB,
    LAW,
    LINK,
    MESSAGE,
    MET,
    NOTED,
    STEP,
    StepState,
)
from placement.simulator.network.topology import CLASSES, Network
from placement.simulator.network.traffic import NetworkJob, RemainingClass, Routes, followers

_MOST_ITERATIONS = 50_000_000
_CACHE_LINE = 64
_BPS = 1.25e-10  # bytes a nanosecond
_THRESHOLDS = (
    ("lowest", "marking", "lowest_bytes"),
    ("highest", "marking", "highest_bytes"),
    ("probability", "marking", "probability"),
    ("stop", "pause", "stop_bytes"),
    ("go", "pause", "go_bytes"),
)
"""Fields of a link's record that are infinite where it neither marks nor pauses."""

_Way = tuple[int, ...]
_Connection = tuple[int, int, int, int]


def build(network: Network, jobs: Sequence[NetworkJob], routes: Routes, seed: int) -> StepState:
    """The state at the beginning, for jobs and routes that fit the network (`simulation.check`).

    Raises UsageError for a step that waits for none of the job's, two routes of one connection, or too many
    iterations.
    """
    ways = [[tuple(way) for way in of_job] for of_job in routes]
    links = _links(network)
    laws, law_numbers = _laws(jobs)
    connections = _connections(jobs, ways)
    flows, hops = _flows(network, links, jobs, connections, law_numbers, seed)
    flow_numbers = {key: number for number, key in enumerate(connections)}
    job_records, steps, messages, nexts = _jobs(network, jobs, ways, flow_numbers)
    for flow in flows:
        flow["iteration_bytes"] = 0.0
        prepare(laws[flow["law"]], flow)
    for message in messages:
        if message["flow"] >= 0:
            flows[message["flow"]]["iteration_bytes"] += message["size"]
    owners = np.arange(len(jobs))
    job_records["first_flow"] = np.searchsorted(flows["job"], owners)
    job_records["flows"] = np.searchsorted(flows["job"], owners, "right") - job_records["first_flow"]
    levels = levels_of(len(network.links), list(connections.values()))
    depth = int(levels.max(initial=0)) + 1
    rows = int(job_records["iterations"].sum())
    return StepState(
        links,
        hops,
        laws,
        flows,
        job_records,
        steps,
        messages,
        nexts,
        empty(len(steps) + len(messages)),
        np.full(rows, -1, np.int64),
        np.full(rows, -1, np.int64),
        np.zeros(rows),
        _holds(jobs, rows),
        np.concatenate([np.zeros(0), *(job.noise(seed, job.iterations) for job in jobs)]),
        levels,
        _class_bounds(jobs),
        # Not a power of 2 apart: the flows' present places would share a few sets of the cache.
        np.zeros((len(flows), HISTORY + _CACHE_LINE // MET.itemsize), MET),
        np.zeros(len(flows), np.uint32),
        np.zeros(len(network.links), np.uint32),
        np.zeros(depth + 1, np.int64),
        np.zeros(len(hops), np.uint32),
        np.array([0, 0, 0, 0, len(jobs), 0], np.int64),
        np.zeros(0, NOTED),
        np.zeros((2, 0, 0)),
    )


# -- arrays -------------------------------------------------------------------------------------


def _links(network: Network) -> Any:
    """The records of all links, and behind them those of the queues of their classes."""
    with_classes = [number for number, link in enumerate(network.links) if link.classes is not None]
    ports = [*range(len(network.links)), *(number for number in with_classes for _ in range(CLASSES))]
    links = [network.links[number] for number in ports]
    records = np.zeros(len(links), LINK)
    records["port"] = ports
    records["capacity"] = records["rate"] = [link.rate_bps * _BPS for link in links]
    records["buffer"] = [link.buffer_bytes for link in links]
    for name, setting, field in _THRESHOLDS:
        values = [getattr(link, setting) for link in links]
        records[name] = [math.inf if value is None else getattr(value, field) for value in values]
    for place, number in enumerate(with_classes):
        first = len(network.links) + place * CLASSES
        records["queues"][number] = first
        classes = network.links[number].classes
        if classes is not None and classes.weights:
            records["weight"][first : first + CLASSES] = classes.weights
    return records


def _queue_of(port: Any, link: int, traffic_class: int) -> int:
    """The record of a link's queue for a class."""
    return int(port["queues"]) + traffic_class if port["queues"] else link


def _class_bounds(jobs: Sequence[NetworkJob]) -> Any:
    bounds = np.full((len(jobs), CLASSES - 1), NEVER, np.int64)
    for row, job in zip(bounds, jobs, strict=True):
        if isinstance(job.traffic_class, RemainingClass):
            row[: len(job.traffic_class.bounds_ns)] = job.traffic_class.bounds_ns
    return bounds


def _laws(jobs: Sequence[NetworkJob]) -> tuple[Any, dict[NetworkLaw, int]]:
    numbers: dict[NetworkLaw, int] = {}
    for job in jobs:
        for law in (job.law, *job.worker_laws):
            numbers.setdefault(law, len(numbers))
    records = np.zeros(len(numbers), LAW)
    for record, law in zip(records, numbers, strict=True):
        record["base"], record["shape"] = int(law.control), int(law.aggressiveness.shape)
        record["slope"], record["intercept"] = law.aggressiveness.slope, law.aggressiveness.intercept
        record["decrease"], record["scales_increase"] = float(law.decrease), law.increase
        record["fair"] = law.fair
        for name, value in law.values.items():
            record[name] = value
    return records, numbers


def _connections(jobs: Sequence[NetworkJob], ways: Sequence[Sequence[_Way]]) -> dict[_Connection, _Way]:
    """The way of each connection (job, source, target, number) that uses a link."""
    found: dict[_Connection, _Way] = {}
    for number, job in enumerate(jobs):
        for message, way in zip(job.traffic.messages, ways[number], strict=True):
            if not way:
                continue
            key = (number, message.source, message.target, message.connection)
            if found.setdefault(key, way) != way:
                raise UsageError(f"{job.name}: routes: expected one for connection {key[1:]}, got two")
    return found


def _flows(
    network: Network,
    queues: Any,
    jobs: Sequence[NetworkJob],
    connections: dict[_Connection, _Way],
    laws: dict[NetworkLaw, int],
    seed: int,
) -> tuple[Any, Any]:
    records = np.zeros(len(connections), FLOW)
    hops = np.zeros(sum(len(way) - 1 for way in connections.values()), HOP)
    first = 0
    for number, (key, way) in enumerate(connections.items()):
        record, job = records[number], jobs[key[0]]
        record["law"], record["job"], record["first_hop"] = laws[job.law_of(key[1])], key[0], first
        record["traffic_class"] = 0 if isinstance(job.traffic_class, RemainingClass) else job.traffic_class
        record["head"] = record["tail"] = record["iteration"] = record["tail_hop"] = -1
        record["began"], record["unmarked"], record["together"] = NEVER, 1.0, 1
        record["random"] = _random_state(seed, job.name, key[1:])
        hops[first : first + len(way) - 1]["flow"] = number
        set_way(network, queues, record, hops[first : first + len(way) - 1], way)
        first += len(way) - 1
    return records, hops


def set_way(network: Network, queues: Any, flow: Any, hops: Any, way: _Way) -> None:
    """Put a flow on a way, in the queues of its class: its record, and those of its hops."""
    links = [network.links[each] for each in way]
    numbers = [_queue_of(queues[link], link, int(flow["traffic_class"])) for link in way]
    flow["hops"], flow["host_link"] = len(way) - 1, numbers[0]
    flow["has_class"] = any(queues[each]["queues"] for each in way)
    flow["one_way"] = sum(link.delay_ns for link in links)
    flow["base_rtt"] = 2 * flow["one_way"]
    flow["line_rate"] = links[0].rate_bps * _BPS
    flow["narrowest"] = min(link.rate_bps for link in links) * _BPS
    hops["link"], hops["next_link"] = numbers[1:], [*numbers[2:], -1][: len(hops)]
    may_pause = np.isfinite(queues["stop"][numbers[1:]])
    flow["pauses"] = bool(may_pause[:1].any())
    hops["next_pauses"] = [*may_pause[1:], False][: len(hops)]


def flow_ways(links: Any, flows: Any, hops: Any) -> list[_Way]:
    """The way of each flow."""
    ports, queues = links["port"].tolist(), hops["link"].tolist()
    spans = zip(*(flows[name].tolist() for name in ("host_link", "first_hop", "hops")), strict=True)
    return [
        (ports[host], *(ports[queue] for queue in queues[first : first + count]))
        for host, first, count in spans
    ]


def _jobs(
    network: Network,
    jobs: Sequence[NetworkJob],
    ways: Sequence[Sequence[_Way]],
    flows: dict[_Connection, int],
) -> tuple[Any, Any, Any, Any]:
    total = sum(job.iterations for job in jobs)
    if total > _MOST_ITERATIONS:
        raise UsageError(f"iterations: expected at most {_MOST_ITERATIONS} in all, got {total}")
    records = np.zeros(len(jobs), JOB)
    steps = np.zeros(sum(len(job.traffic.steps) for job in jobs), STEP)
    messages = np.zeros(sum(len(job.traffic.messages) for job in jobs), MESSAGE)
    nexts: list[int] = []
    row = step = message = 0
    for number, job in enumerate(jobs):
        record = records[number]
        record["first_step"], record["steps"] = step, len(job.traffic.steps)
        record["iterations"], record["first_row"] = job.iterations, row
        record["began"] = job.start_ns
        row += job.iterations
        waiting = followers(job.name, job.traffic.steps)
        ways_left = iter(ways[number])
        places = iter(burst_places(job, network, ways[number]))
        for place, part in enumerate(job.traffic.steps):
            entry = steps[step + place]
            entry["job"], entry["compute"], entry["waits"] = number, part.compute_ns, len(part.after)
            entry["first_next"], entry["nexts"] = len(nexts), len(waiting[place])
            nexts += [step + each for each in waiting[place]]
            entry["first_message"], entry["messages"] = message, len(part.messages)
            for each in part.messages:
                key = (number, each.source, each.target, each.connection)
                flow = flows[key] if next(ways_left) else -1
                burst = next(places)
                later = burst.size_bytes - burst.before_bytes - each.size_bytes
                most = part.rate_bps * _BPS
                scale = _scale(job.law_of(each.source), burst.time_ns)
                of_burst = burst.size_bytes, later, scale
                messages[message] = (step + place, flow, each.size_bytes, most, *of_burst, -1, 0, -1)
                message += 1
        step += len(job.traffic.steps)
    return records, steps, messages, np.array(nexts, np.int64)


def _scale(law: NetworkLaw, burst_ns: float) -> float:
    """Of F, by the time that a burst takes alone; 1 where the law does not scale it."""
    if not law.reference_s or not burst_ns:
        return 1.0
    return float(scale_of(law.reference_s * NS_PER_S, burst_ns))


def _holds(jobs: Sequence[NetworkJob], rows: int) -> Any:
    found, row = np.zeros(rows, np.int64), 0
    for job in jobs:
        if len(job.holds_ns) > job.iterations or any(each < 0 for each in job.holds_ns):
            raise UsageError(f"{job.name}: holds_ns: expected at most one of 0 or more for each iteration")
        found[row : row + len(job.holds_ns)] = job.holds_ns
        row += job.iterations
    return found


def _random_state(seed: int, name: str, key: tuple[int, ...]) -> np.uint64:
    """Of a flow: it depends on neither the order nor the number of the others."""
    digest = hashlib.blake2b(repr((seed, name, key)).encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def levels_of(count: int, ways: Sequence[_Way]) -> Any:
    """For each link a number above those of all links that lead to it, unless routes go in circles."""
    levels = np.zeros(count, np.int64)
    pairs = {pair for way in ways for pair in pairwise(way)}
    for _ in range(max((len(way) for way in ways), default=0)):
        for before, after in sorted(pairs):
            levels[after] = max(levels[after], levels[before] + 1)
        if all(levels[after] > levels[before] for before, after in pairs):
            break
    return levels
