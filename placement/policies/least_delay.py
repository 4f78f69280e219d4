"""Least delay: the placement at which a job and those that are there delay each other least (docs/least-delay.md).

Of two jobs that share a GPU or a link the one with less left goes first, so that together they wait for what the
shorter one has left. This is summed over the jobs that a job would meet, each once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placement.model.compiled import compiled, compiled_with_arrays
from placement.model.state import Occupancy, Records

_ON_GPUS, _ON_LINKS, _ON_UPLINKS = range(3)
"""Where jobs meet: on a GPU, on the link of a server, and on that of a rack."""

_FOR_GOOD = 1 << 62
"""The stamp of a job that counts no more: it is met where the job will be."""

_LAST = 1 << 62
"""The delay of a GPU without enough memory."""


class Asked(NamedTuple):
    """A job for which GPUs are chosen."""

    left: int  # what it has left, alone
    sends: bool  # whether it will be on several servers
    crosses: bool  # whether it will be in several racks


@compiled_with_arrays
def choose_least_delay(there: Occupancy, job: int, chosen: np.ndarray) -> bool:
    """The fewest racks, then the fewest servers, then the least delay; see `placement.policies.placing.choose`.

    Racks are added one at a time, and in each of them servers. The delay on uplinks counts first, then that on the
    links of servers, then that on GPUs. Where nothing tells them apart it is the one with the least room.
    """
    record = there.jobs[job]
    wanted = record.gpus
    room = _room(there.gpus, there.servers, record.memory)
    if room.sum() < wanted:
        return False
    of_racks = _of_racks(there.servers, room)
    sends = room.max() < wanted
    left = record.iterations_left * (record.compute + (record.transfer if sends else 0))
    asked = Asked(left, sends, of_racks.max() < wanted)
    order = _by_delay(there, record.memory, left)
    met = np.zeros((3, len(there.jobs)), np.bool_)
    found = 0
    while found < wanted:
        count = min(wanted - found, of_racks.max())
        into = chosen[found : found + count]
        best, least = -1, (0, 0, 0, 0, 0)
        for rack in range(len(of_racks)):
            if of_racks[rack] >= count:
                cost = _fill(there, asked, order, room, rack, met.copy(), into)
                if best < 0 or cost < least:
                    best, least = rack, cost
        _fill(there, asked, order, room, best, met, into)
        of_racks[best] = 0
        found += count
    return True


@compiled_with_arrays
def _room(gpus: Records, servers: Records, memory: int) -> np.ndarray:
    """The GPUs of each server that have enough memory left."""
    found = np.zeros(len(servers), np.int64)
    for gpu in range(len(gpus)):
        if gpus[gpu].memory_left >= memory:
            found[gpus[gpu].server] += 1
    return found


@compiled_with_arrays
def _of_racks(servers: Records, room: np.ndarray) -> np.ndarray:
    """The same of each rack."""
    found = np.zeros(servers.rack.max() + 1, np.int64)
    for server in range(len(servers)):
        found[servers[server].rack] += room[server]
    return found


@compiled_with_arrays
def _by_delay(there: Occupancy, memory: int, left: int) -> np.ndarray:
    """The GPUs of each server, those with enough memory first, and of these those with the least delay."""
    gpus, servers = there.gpus, there.servers
    delays, seen = np.zeros(len(gpus), np.int64), np.zeros(len(there.jobs), np.int64)
    order = np.arange(len(gpus))
    for gpu in range(len(gpus)):
        delays[gpu] = _delay(there, order[gpu : gpu + 1], _ON_GPUS, left, seen, gpu + 1)
        if gpus[gpu].memory_left < memory:
            delays[gpu] = _LAST
    for server in range(len(servers)):
        first = servers[server].first_gpu
        own = delays[first : first + servers[server].gpus]
        order[first : first + servers[server].gpus] = first + np.argsort(own, kind="mergesort")
    return order


@compiled_with_arrays
def _fill(
    there: Occupancy,
    asked: Asked,
    order: np.ndarray,
    room: np.ndarray,
    rack: int,
    met: np.ndarray,
    chosen: np.ndarray,
) -> tuple[int, int, int, int, int]:
    """Choose GPUs of a rack, server by server.

    Args:
        there, asked: the state, and the job.
        order: the GPUs of each server, the best first.
        room: the number of those that can be used.
        rack: with room for all of `chosen`.
        met: by where jobs meet, those that count no more; those that are met are added.
        chosen: is filled.

    Returns:
        The delay on the rack's uplinks, the number of servers, the delay on their links and on the GPUs, and the
        rack's room: what racks are compared by.
    """
    servers = there.servers
    free = np.where(servers.rack == rack, room, 0)
    seen = met * _FOR_GOOD
    on_uplinks, used, on_links, on_gpus, found, stamp = 0, 0, 0, 0, 0, 0
    if asked.crosses:
        for server in range(len(servers)):
            if servers[server].rack == rack:
                on_uplinks += _met_by(there, order, server, _ON_UPLINKS, asked.left, seen, _FOR_GOOD)
    of_rack = free.sum()
    while found < len(chosen):
        count = min(len(chosen) - found, free.max())
        best, least = -1, (0, 0, 0)
        for server in range(len(servers)):
            if free[server] >= count:
                stamp += 1
                links = 0
                if asked.sends:
                    links = _met_by(there, order, server, _ON_LINKS, asked.left, seen, stamp)
                taken = order[servers[server].first_gpu :][:count]
                cost = (
                    links,
                    _delay(there, taken, _ON_GPUS, asked.left, seen[_ON_GPUS], stamp),
                    free[server],
                )
                if best < 0 or cost < least:
                    best, least = server, cost
        taken = order[servers[best].first_gpu :][:count]
        _met_by(there, order, best, _ON_LINKS, asked.left, seen, _FOR_GOOD)
        _delay(there, taken, _ON_GPUS, asked.left, seen[_ON_GPUS], _FOR_GOOD)
        chosen[found : found + count] = taken
        on_links += least[0]
        on_gpus += least[1]
        free[best] = 0
        used += 1
        found += count
    met[:] = seen == _FOR_GOOD
    return on_uplinks, used, on_links, on_gpus, of_rack


@compiled
def _met_by(
    there: Occupancy, order: np.ndarray, server: int, where: int, left: int, seen: np.ndarray, stamp: int
) -> int:
    """The delay by all jobs on a server that are met on links of this kind."""
    first = there.servers[server].first_gpu
    return _delay(there, order[first : first + there.servers[server].gpus], where, left, seen[where], stamp)


@compiled
def _delay(there: Occupancy, gpus: np.ndarray, where: int, left: int, seen: np.ndarray, stamp: int) -> int:
    """The delay by jobs that have workers on these GPUs.

    Args:
        there: the state.
        gpus: their numbers.
        where: the jobs are met: on links only those count that use such links.
        left: what the job itself has left.
        seen: the stamp under which each job was met last.
        stamp: the present one, which those who are met get: who has it already, or a larger one, counts no more.
    """
    delay = 0
    for gpu in gpus:
        for index in range(there.gpus[gpu].workers):
            number = there.workers[there.hosted[gpu, index]].job
            other = there.jobs[number]
            # A job uses a link of each of its servers if there are several; what it uses beyond are uplinks.
            uses = where == _ON_GPUS or other.places > (other.servers if where == _ON_UPLINKS else 0)
            if uses and seen[number] < stamp:
                seen[number] = stamp
                transfer = other.transfer if other.places else 0
                delay += min(left, other.iterations_left * (other.compute + transfer))
    return delay
