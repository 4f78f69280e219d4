"""Shares of the GPUs, and equally good placements: the same numbers of workers on other GPUs (4.4.2, step 1).

A scheduler that knows only racks cannot tell two placements apart in which as many workers are in one rack with all of
their job; a job that does not fit in one rack can have any GPUs. Candidates are drawn at random (seeded). A job is
placed in the tightest rack that can hold all of it. If there is none, half of the draws place it on any GPUs, and half
go from rack to rack in random order and take all free GPUs of each.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placement.model.cluster import Cluster
from placement.policies.schedulers.scheduler import Assignment

_DRAWS_PER_CANDIDATE = 6


@dataclass(frozen=True)
class PlacementRequest:
    """A job to be placed.

    Attributes:
        job: its name.
        workers: how many GPUs it is to have.
        present: the GPUs that it holds; if there are as many, it may stay there.
    """

    job: str
    workers: int
    present: tuple[int, ...] = ()


def placements(
    cluster: Cluster,
    kept: Assignment,
    requests: Sequence[PlacementRequest],
    free: Sequence[int],
    most: int,
    seed: int,
    *,
    stay: bool = True,
) -> tuple[Assignment, ...]:
    """Draw different placements that are equally good, in random order.

    Args:
        cluster: the servers of a switch are a rack.
        kept: jobs that stay where they are; part of all placements.
        requests: together they ask for no more workers than there are free GPUs.
        free: the GPUs to place them on, including those that the jobs of the requests hold.
        most: the largest number of placements; there is always one.
        seed: of the draws.
        stay: whether a job that can stay where it is does so in all placements.
    """
    draw = random.Random(seed)
    drawn: dict[tuple[tuple[int, ...], ...], int] = {}
    settled = {each.job: each.present for each in requests if stay and len(each.present) == each.workers}
    open_requests = [each for each in requests if each.job not in settled]
    taken = {gpu for gpus in settled.values() for gpu in gpus}
    left = [gpu for gpu in free if gpu not in taken]
    for _ in range(most * _DRAWS_PER_CANDIDATE if open_requests else 1):
        placed = _draw(cluster, open_requests, left, draw)
        key = tuple(placed[each.job] for each in open_requests)
        drawn.setdefault(key, _spread_workers(cluster, placed))
    least = min(drawn.values())
    best = [key for key, spread in drawn.items() if spread == least][:most]
    return tuple(
        {**kept, **settled, **{each.job: gpus for each, gpus in zip(open_requests, key, strict=True)}}
        for key in best
    )


def best_shares(values: Sequence[Mapping[int, float]], gpus: int) -> tuple[int, ...]:
    """Divide GPUs by dynamic programming.

    Args:
        values: for each job, the value of each number of GPUs that it can use; 0 GPUs must be among them.
        gpus: the number to divide; some may be left over.

    Returns:
        The number of GPUs of each job. Among equal sums, the last job gets as few as possible, then the one before it,
        and so on.
    """
    best = np.zeros(gpus + 1)
    taken = []
    for of_job in values:
        improved = np.full(gpus + 1, -np.inf)
        choice = np.zeros(gpus + 1, np.int64)
        for count, value in sorted(of_job.items()):
            if count > gpus:
                continue
            with_it = best[: gpus + 1 - count] + value
            better = with_it > improved[count:]
            improved[count:][better] = with_it[better]
            choice[count:][better] = count
        best = improved
        taken.append(choice)
    shares = []
    left = gpus
    for choice in reversed(taken):
        shares.append(int(choice[left]))
        left -= shares[-1]
    return tuple(reversed(shares))


def racks_of(cluster: Cluster, gpus: Sequence[int]) -> set[str]:
    """The switches to which the servers of these GPUs are connected."""
    return {cluster.servers[cluster.gpus[gpu][0]].switch for gpu in gpus}


def fits_a_rack(cluster: Cluster, workers: int) -> bool:
    """Whether the largest rack has as many GPUs."""
    gpus: dict[str, int] = {}
    for server in cluster.servers:
        gpus[server.switch] = gpus.get(server.switch, 0) + len(server.gpus)
    return workers <= max(gpus.values())


def seed_of(*numbers: int) -> int:
    """Derive a seed from several numbers, the same in every process."""
    mixed = 0
    for number in numbers:
        mixed = (mixed * 1_000_003 + number) % 2**63
    return mixed


def _draw(
    cluster: Cluster, requests: Sequence[PlacementRequest], free: Sequence[int], draw: random.Random
) -> Mapping[str, tuple[int, ...]]:
    """Draw one placement. Jobs are placed in random order, large ones more often before small ones."""
    racks: dict[str, list[int]] = {}
    for gpu in free:
        racks.setdefault(cluster.servers[cluster.gpus[gpu][0]].switch, []).append(gpu)
    scattered = draw.random() < 0.5
    placed = {}
    for request in sorted(requests, key=lambda each: -each.workers * draw.uniform(0.5, 1.0)):
        large_enough = [gpus for gpus in racks.values() if len(gpus) >= request.workers]
        if large_enough:
            chosen = _in_one_rack(large_enough, request, draw)
        else:
            chosen = _across_racks(racks, request, scattered, draw)
        for rack in racks.values():
            rack[:] = [gpu for gpu in rack if gpu not in chosen]
        placed[request.job] = tuple(sorted(chosen))
    return placed


def _in_one_rack(racks: Sequence[Sequence[int]], request: PlacementRequest, draw: random.Random) -> list[int]:
    """GPUs of one of the racks with the fewest free ones."""
    fewest = min(len(gpus) for gpus in racks)
    rack = draw.choice([gpus for gpus in racks if len(gpus) == fewest])
    return _sample(rack, request, request.workers, draw)


def _across_racks(
    racks: Mapping[str, Sequence[int]], request: PlacementRequest, scattered: bool, draw: random.Random
) -> list[int]:
    if scattered:
        return _sample([gpu for gpus in racks.values() for gpu in gpus], request, request.workers, draw)
    chosen: list[int] = []
    for name in draw.sample(list(racks), len(racks)):
        chosen += _sample(racks[name], request, request.workers - len(chosen), draw)
    return chosen


def _sample(gpus: Sequence[int], request: PlacementRequest, count: int, draw: random.Random) -> list[int]:
    """Up to `count` of the GPUs: first those that the job holds, then any."""
    shuffled = draw.sample(list(gpus), len(gpus))
    return sorted(shuffled, key=lambda gpu: gpu not in request.present)[:count]


def _spread_workers(cluster: Cluster, placed: Assignment) -> int:
    """The number of workers in jobs that span racks, by which the scheduler rates a placement."""
    return sum(len(gpus) for gpus in placed.values() if len(racks_of(cluster, gpus)) > 1)
