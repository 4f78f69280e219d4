"""Fills the arrays of the step mode from a network, its jobs and their routes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from mltcp.core.errors import UsageError, shown
from placement.simulator.exact.event_heap import NEVER, empty
from placement.simulator.network.laws.network_law import NetworkLaw
from placement.simulator.network.laws.sending import prepare
from placement.simulator.network.steps.records import (
    FLOW,
    HISTORY,
    HOP,
    JOB,
    LAW,
    LINK,
    MESSAGE,
    STEP,
    StepState,
)
from placement.simulator.network.topology import Network
from placement.simulator.network.traffic import NetworkJob, Routes

_MOST_ITERATIONS = 50_000_000
_BPS = 1.25e-10  # bytes a nanosecond

_Way = tuple[int, ...]
_Connection = tuple[int, int, int, int]


def build(network: Network, jobs: Sequence[NetworkJob], routes: Routes, seed: int) -> StepState:
    """The state at the beginning; raises UsageError for what does not fit together."""
    ways = _checked_ways(network, jobs, routes)
    laws, law_numbers = _laws(jobs)
    connections = _connections(jobs, ways)
    flows, hops = _flows(network, jobs, connections, law_numbers, seed)
    flow_numbers = {key: number for number, key in enumerate(connections)}
    job_records, steps, messages, nexts = _jobs(jobs, ways, flow_numbers)
    for flow in flows:
        flow["iteration_bytes"] = 0.0
        prepare(laws[flow["law"]], flow)
    for message in messages:
        if message["flow"] >= 0:
            flows[message["flow"]]["iteration_bytes"] += message["size"]
    levels = _levels(len(network.links), [way[1:] for way in connections.values()])
    depth = int(levels.max(initial=0)) + 1
    rows = int(job_records["iterations"].sum())
    return StepState(
        _links(network),
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
        np.concatenate([np.zeros(0), *(job.noise(seed, job.iterations) for job in jobs)]),
        levels,
        np.zeros((HISTORY, len(flows)), np.float32),
        np.zeros((HISTORY, len(flows)), np.float32),
        np.zeros(len(flows), np.int64),
        np.zeros(len(network.links), np.int64),
        np.zeros(depth + 1, np.int64),
        np.zeros(len(hops), np.int64),
        np.zeros(depth + 1, np.int64),
        np.array([0, 0, 0, 0, len(jobs)], np.int64),
    )


# -- checks -------------------------------------------------------------------------------------


def _checked_ways(network: Network, jobs: Sequence[NetworkJob], routes: Routes) -> list[list[_Way]]:
    if len(routes) != len(jobs):
        raise UsageError(f"routes: expected those of {len(jobs)} jobs, got {len(routes)}")
    if len({job.name for job in jobs}) != len(jobs):
        raise UsageError("jobs: expected different names, got one twice")
    return [_ways_of(network, job, ways) for job, ways in zip(jobs, routes, strict=True)]


def _ways_of(network: Network, job: NetworkJob, ways: Sequence[Sequence[int]]) -> list[_Way]:
    messages = job.traffic.messages
    if len(job.hosts) != job.traffic.workers:
        raise UsageError(f"{job.name}: hosts: expected {job.traffic.workers}, got {len(job.hosts)}")
    if any(not 0 <= host < len(network.hosts) for host in job.hosts):
        raise UsageError(f"{job.name}: hosts: expected 0 to {len(network.hosts) - 1}, got {job.hosts}")
    if len(ways) != len(messages):
        raise UsageError(f"{job.name}: routes: expected {len(messages)}, got {len(ways)}")
    if job.iterations < 1:
        raise UsageError(f"{job.name}: iterations: expected at least 1, got {job.iterations}")
    for message, way in zip(messages, ways, strict=True):
        ends = [network.hosts[job.hosts[worker]] for worker in (message.source, message.target)]
        _check_way(network, job.name, ends, way)
    return [tuple(way) for way in ways]


def _check_way(network: Network, name: str, ends: Sequence[str], way: Sequence[int]) -> None:
    place = ends[0]
    for number in way:
        if not 0 <= number < len(network.links) or network.links[number].source != place:
            raise UsageError(f"{name}: route: expected a link that begins at {place}, got {shown(number)}")
        place = network.links[number].target
    if place != ends[1]:
        raise UsageError(f"{name}: route: expected one that ends at {ends[1]}, got {place}")


# -- arrays -------------------------------------------------------------------------------------


def _links(network: Network) -> Any:
    records = np.zeros(len(network.links), LINK)
    for record, link in zip(records, network.links, strict=True):
        record["capacity"], record["buffer"] = link.rate_bps * _BPS, link.buffer_bytes
        record["lowest"] = record["highest"] = record["stop"] = np.inf
        if link.marking is not None:
            record["lowest"], record["highest"] = link.marking.lowest_bytes, link.marking.highest_bytes
            record["probability"] = link.marking.probability
        if link.pause is not None:
            record["stop"], record["go"] = link.pause.stop_bytes, link.pause.go_bytes
    return records


def _laws(jobs: Sequence[NetworkJob]) -> tuple[Any, dict[NetworkLaw, int]]:
    numbers: dict[NetworkLaw, int] = {}
    for job in jobs:
        numbers.setdefault(job.law, len(numbers))
    records = np.zeros(len(numbers), LAW)
    for record, law in zip(records, numbers, strict=True):
        record["base"], record["shape"] = int(law.control), int(law.aggressiveness.shape)
        record["slope"], record["intercept"] = law.aggressiveness.slope, law.aggressiveness.intercept
        record["decrease"], record["scales_increase"] = float(law.decrease), law.increase
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
        links = [network.links[each] for each in way]
        record["law"], record["job"], record["first_hop"] = laws[job.law], key[0], first
        record["hops"], record["host_link"] = len(way) - 1, way[0]
        record["head"] = record["tail"] = record["iteration"] = -1
        record["began"], record["unmarked"] = NEVER, 1.0
        record["one_way"] = sum(link.delay_ns for link in links)
        record["base_rtt"] = 2 * record["one_way"]
        record["line_rate"] = links[0].rate_bps * _BPS
        record["narrowest"] = min(link.rate_bps for link in links) * _BPS
        record["random"] = _random_state(seed, job.name, key[1:])
        for place, link in enumerate(way[1:], start=1):
            after = way[place + 1] if place + 1 < len(way) else -1
            hops[first]["link"], hops[first]["flow"], hops[first]["next_link"] = link, number, after
            first += 1
    return records, hops


def _jobs(
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
        followers = _followers(job)
        ways_left = iter(ways[number])
        for place, part in enumerate(job.traffic.steps):
            entry = steps[step + place]
            entry["job"], entry["compute"], entry["waits"] = number, part.compute_ns, len(part.after)
            entry["first_next"], entry["nexts"] = len(nexts), len(followers[place])
            nexts += [step + each for each in followers[place]]
            entry["first_message"], entry["messages"] = message, len(part.messages)
            for each in part.messages:
                key = (number, each.source, each.target, each.connection)
                flow = flows[key] if next(ways_left) else -1
                messages[message] = (step + place, flow, each.size_bytes, -1)
                message += 1
        step += len(job.traffic.steps)
    return records, steps, messages, np.array(nexts, np.int64)


def _followers(job: NetworkJob) -> list[list[int]]:
    """The steps that wait for each one; raises UsageError for one that waits for itself or a later one."""
    followers: list[list[int]] = [[] for _ in job.traffic.steps]
    for place, step in enumerate(job.traffic.steps):
        for before in step.after:
            if not 0 <= before < place:
                raise UsageError(f"{job.name}: after: expected steps before {place}, got {before}")
            followers[before].append(place)
    return followers


def _random_state(seed: int, name: str, key: tuple[int, ...]) -> np.uint64:
    """Of a flow: it depends on neither the order nor the number of the others."""
    digest = hashlib.blake2b(repr((seed, name, key)).encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def _levels(count: int, ways: Sequence[_Way]) -> Any:
    """For each link a number above those of all links that lead to it, unless routes go in circles."""
    levels = np.zeros(count, np.int64)
    pairs = {pair for way in ways for pair in pairwise(way)}
    for _ in range(max((len(way) for way in ways), default=0)):
        for before, after in sorted(pairs):
            levels[after] = max(levels[after], levels[before] + 1)
        if all(levels[after] > levels[before] for before, after in pairs):
            break
    return levels
