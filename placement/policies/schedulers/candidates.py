"""Equally good placements: the same numbers of workers on other GPUs (4.4.2, step 1).

To a scheduler that knows only racks, a placement is as good as another one if as many workers are under one rack with
all of their job: where a job does not fit under one rack, any GPUs will do. Candidates are drawn at random (seeded):
a job goes to the tightest rack that has room for all of it; failing that, in every other draw to any GPUs, and in the
others from rack to rack, in random order, taking all that is free in each.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placement.model.cluster import Cluster
from placement.policies.schedulers.scheduler import Assignment

_DRAWS_A_CANDIDATE = 6


@dataclass(frozen=True)
class Wish:
    """A job that is to be placed.

    Attributes:
        job: its name.
        workers: how many.
        present: GPUs it has now; with as many workers it may be left there.
    """

    job: str
    workers: int
    present: tuple[int, ...] = ()


def placements(
    cluster: Cluster,
    kept: Assignment,
    wishes: Sequence[Wish],
    free: Sequence[int],
    most: int,
    seed: int,
    *,
    stay: bool = True,
) -> tuple[Assignment, ...]:
    """Up to `most` different placements of the wishes on free GPUs, equally good, in random order.

    Args:
        cluster: it tells the racks: the servers of a switch.
        kept: jobs that stay where they are; part of all placements.
        wishes: they fit: they want no more workers than there are free GPUs.
        free: GPUs, among them those that wishes have at present.
        most: how many to give; at least the first is always given.
        seed: of the draws.
        stay: whether a job that can stay where it is does so in all placements.
    """
    draw = random.Random(seed)
    drawn: dict[tuple[tuple[int, ...], ...], int] = {}
    settled = {wish.job: wish.present for wish in wishes if stay and len(wish.present) == wish.workers}
    open_wishes = [wish for wish in wishes if wish.job not in settled]
    taken = {gpu for gpus in settled.values() for gpu in gpus}
    left = [gpu for gpu in free if gpu not in taken]
    for _ in range(most * _DRAWS_A_CANDIDATE if open_wishes else 1):
        found = _draw(cluster, open_wishes, left, draw)
        key = tuple(found[wish.job] for wish in open_wishes)
        drawn.setdefault(key, _apart(cluster, found))
    best = min(drawn.values())
    alike = [key for key, apart in drawn.items() if apart == best][:most]
    return tuple(
        {**kept, **settled, **{wish.job: gpus for wish, gpus in zip(open_wishes, key, strict=True)}}
        for key in alike
    )


def racks_of(cluster: Cluster, gpus: Sequence[int]) -> set[str]:
    """The switches that the servers of these GPUs are connected to."""
    return {cluster.servers[cluster.gpus[gpu][0]].switch for gpu in gpus}


def _draw(
    cluster: Cluster, wishes: Sequence[Wish], free: Sequence[int], draw: random.Random
) -> Mapping[str, tuple[int, ...]]:
    """One placement: the jobs in random order, the large ones more often first."""
    racks: dict[str, list[int]] = {}
    for gpu in free:
        racks.setdefault(cluster.servers[cluster.gpus[gpu][0]].switch, []).append(gpu)
    scattered = draw.random() < 0.5
    found = {}
    for wish in sorted(wishes, key=lambda each: -each.workers * draw.uniform(0.5, 1.0)):
        roomy = [gpus for gpus in racks.values() if len(gpus) >= wish.workers]
        chosen = _of_one_rack(roomy, wish, draw) if roomy else _across(racks, wish, scattered, draw)
        for rack in racks.values():
            rack[:] = [gpu for gpu in rack if gpu not in chosen]
        found[wish.job] = tuple(sorted(chosen))
    return found


def _of_one_rack(roomy: Sequence[Sequence[int]], wish: Wish, draw: random.Random) -> list[int]:
    tightest = min(len(gpus) for gpus in roomy)
    return _some(draw.choice([gpus for gpus in roomy if len(gpus) == tightest]), wish, wish.workers, draw)


def _across(
    racks: Mapping[str, Sequence[int]], wish: Wish, scattered: bool, draw: random.Random
) -> list[int]:
    if scattered:
        return _some([gpu for gpus in racks.values() for gpu in gpus], wish, wish.workers, draw)
    chosen: list[int] = []
    for name in draw.sample(list(racks), len(racks)):
        chosen += _some(racks[name], wish, wish.workers - len(chosen), draw)
    return chosen


def _some(gpus: Sequence[int], wish: Wish, wanted: int, draw: random.Random) -> list[int]:
    """Those that the job has already, and then any."""
    shuffled = draw.sample(list(gpus), len(gpus))
    return sorted(shuffled, key=lambda gpu: gpu not in wish.present)[:wanted]


def _apart(cluster: Cluster, found: Assignment) -> int:
    """What the scheduler can tell: how many workers are in jobs that are not under one rack."""
    return sum(len(gpus) for gpus in found.values() if len(racks_of(cluster, gpus)) > 1)
