"""Event simulation of asynchronous SGD around parameter servers, against which the queueing model is held."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from mltcp.core.errors import UsageError
from placement.model.compiled import compiled
from placement.model.service_times import ServiceTimes

if TYPE_CHECKING:
    from numpy import ndarray


# -- the event loop, compiled ------------------------------------------------------------------------------------------

_CONSTANT, _JITTER, _EXPONENTIAL, _ERLANG, _HYPEREXPONENTIAL = range(5)

_WORKER, _UPLINK, _SERVER, _DOWNLINK, _DONE = range(5)
_JITTER_SHARE = 0.1
_ERLANG_STAGES = 4
_HYPER_SHARE = (1 + math.sqrt(3 / 5)) / 2
"""Of the short ones, for a squared coefficient of variation of 4 and balanced means."""


@compiled
def run_network(
    times: ndarray,
    shares: ndarray,
    sizes: int,
    server_sizes: int,
    first_come: bool,
    seed: int,
    warm_up: int,
    per_batch: int,
    station: ndarray,
    left: ndarray,
    joined: ndarray,
    present: ndarray,
    head: ndarray,
    pending: ndarray,
    cycles: ndarray,
    ends: ndarray,
) -> None:
    """Simulate until the last batch of cycles is complete.

    A worker computes, sends a part of its gradient to each server at once, and computes again when it has the weights
    from all of them. Part number k * m + i is that of worker k at server i.

    Args:
        times: a row for each worker: S^W, S^U, S^S, S^D in seconds.
        shares: the share of each of the m servers in all but S^W.
        sizes: the distribution of computing and transfer times.
        server_sizes: that of the servers' times.
        first_come: whether links serve one transfer after the other instead of all at equal rates.
        seed: of the random numbers.
        warm_up: cycles, of all workers together, before the first batch.
        per_batch: cycles of a batch.
        station: scratch, zeros, for each part.
        left: scratch for each part: the seconds of service left.
        joined: scratch, zeros, for each part: the number of its arrival at its station.
        present: scratch, for each server: parts at U, S, D.
        head: scratch, for each server: the part that is first at U, S, D.
        pending: scratch for each worker: parts that are not back.
        cycles: filled with the cycles of each worker in the batches; zeros.
        ends: filled with the times at which the batches end; zeros. The first is the end of the warm-up.
    """
    np.random.seed(seed)
    servers = len(shares)
    parts = len(station)
    for part in range(parts):
        if part % servers == 0:
            left[part] = times[part // servers, _WORKER] * _draw(sizes)
        else:
            station[part] = _DONE
    clock, arrivals, finished = 0.0, 0, 0
    batch = 0 if warm_up else 1  # the time 0 is the end of no warm-up
    while batch < len(ends):
        _count(station, joined, servers, present, head)
        soonest, mover = math.inf, 0
        for part in range(parts):
            speed = _speed(part, station, servers, present, head, first_come)
            if speed > 0 and left[part] < soonest * speed:
                soonest, mover = left[part] / speed, part
        clock += soonest
        for part in range(parts):
            left[part] -= soonest * _speed(part, station, servers, present, head, first_come)
        worker, server = mover // servers, mover % servers
        arrivals += 1
        if station[mover] == _WORKER:
            pending[worker] = servers
            for each in range(servers):
                part = worker * servers + each
                station[part], joined[part] = _UPLINK, arrivals
                left[part] = times[worker, _UPLINK] * shares[each] * _draw(sizes)
            continue
        station[mover] += 1
        joined[mover] = arrivals
        if station[mover] < _DONE:
            kind = server_sizes if station[mover] == _SERVER else sizes
            left[mover] = times[worker, station[mover]] * shares[server] * _draw(kind)
            continue
        pending[worker] -= 1
        if pending[worker] == 0:
            first = worker * servers
            station[first] = _WORKER
            left[first] = times[worker, _WORKER] * _draw(sizes)
            finished += 1
            if finished > warm_up:
                cycles[worker] += 1
            if finished == warm_up + batch * per_batch:
                ends[batch] = clock
                batch += 1


@compiled
def _count(station: ndarray, joined: ndarray, servers: int, present: ndarray, head: ndarray) -> None:
    """Count the parts at every station, and find the one that came first."""
    for server in range(servers):
        for place in range(3):
            present[server, place] = 0
    for part in range(len(station)):
        if _UPLINK <= station[part] <= _DOWNLINK:
            server, place = part % servers, station[part] - _UPLINK
            if present[server, place] == 0 or joined[part] < joined[head[server, place]]:
                head[server, place] = part
            present[server, place] += 1


@compiled
def _speed(
    part: int, station: ndarray, servers: int, present: ndarray, head: ndarray, first_come: bool
) -> float:
    """Seconds of service that a part gets in a second."""
    if station[part] == _WORKER:
        return 1.0
    if station[part] == _DONE:
        return 0.0
    server, place = part % servers, station[part] - _UPLINK
    if station[part] == _SERVER or first_come:
        return 1.0 if head[server, place] == part else 0.0
    return 1.0 / present[server, place]


@compiled
def _draw(sizes: int) -> float:
    """A random number of mean 1."""
    if sizes == _CONSTANT:
        return 1.0
    if sizes == _JITTER:
        return 1 - _JITTER_SHARE + 2 * _JITTER_SHARE * np.random.random()
    if sizes == _ERLANG:
        total = 0.0
        for _ in range(_ERLANG_STAGES):
            total -= math.log(1 - np.random.random())
        return total / _ERLANG_STAGES
    drawn = -math.log(1 - np.random.random())
    if sizes == _EXPONENTIAL:
        return drawn
    short = np.random.random() < _HYPER_SHARE
    return drawn / (2 * _HYPER_SHARE if short else 2 * (1 - _HYPER_SHARE))


# -- the simulation ----------------------------------------------------------------------------------------------------

BATCHES = 20


class Sizes(Enum):
    """A distribution of service times around their means."""

    CONSTANT = _CONSTANT
    JITTER = _JITTER
    """Uniform within 10 %."""
    EXPONENTIAL = _EXPONENTIAL
    ERLANG = _ERLANG
    """Of 4 stages: a coefficient of variation of 1/2."""
    HYPEREXPONENTIAL = _HYPEREXPONENTIAL
    """A coefficient of variation of 2."""


@dataclass(frozen=True)
class NetworkSettings:
    """The settings of a simulation, besides the workers.

    Attributes:
        first_come: whether a link carries one transfer after the other, instead of all at equal rates.
        sizes: the distribution of computing and transfer times.
        server_sizes: that of the servers' times.
        shares: the share of the parameters on each server.
        cycles: simulated cycles of all workers, in batches of equal size.
        warm_up: cycles before, 0 or more.
        seed: of the random numbers.

    Raises:
        UsageError: fewer than 20 cycles, or no server.
    """

    first_come: bool = False
    sizes: Sizes = Sizes.EXPONENTIAL
    server_sizes: Sizes = Sizes.EXPONENTIAL
    shares: tuple[float, ...] = (1.0,)
    cycles: int = 200_000
    warm_up: int = 2_000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.cycles < BATCHES:
            raise UsageError(f"cycles: expected {BATCHES} or more, got {self.cycles}")
        if not self.shares:
            raise UsageError("shares: expected 1 or more, got none")


@dataclass(frozen=True)
class SimulatedThroughput:
    """The throughput of a simulated network.

    Attributes:
        batches: mini-batches a second in each of 20 batches of cycles.
        by_worker: mini-batches a second of each worker.
    """

    batches: tuple[float, ...]
    by_worker: tuple[float, ...]

    @property
    def throughput(self) -> float:
        """Mini-batches a second of all workers."""
        return sum(self.by_worker)


def simulate_network(workers: Sequence[ServiceTimes], settings: NetworkSettings) -> SimulatedThroughput:
    """Simulate the network that the queueing model describes.

    With several servers it is a fork-join network, where a worker waits for the slowest of its parts; the queueing
    model only divides the times.

    Args:
        workers: the mean service times of each worker with one server.
        settings: distributions, order of service and length.

    Raises:
        UsageError: no worker.
    """
    if not workers:
        raise UsageError("workers: expected 1 or more, got none")
    servers, parts = len(settings.shares), len(workers) * len(settings.shares)
    per_batch = settings.cycles // BATCHES
    ends, cycles = np.zeros(BATCHES + 1), np.zeros(len(workers), np.int64)
    run_network(
        np.array([astuple(service) for service in workers], np.float64),
        np.array(settings.shares, np.float64),
        settings.sizes.value,
        settings.server_sizes.value,
        settings.first_come,
        settings.seed,
        settings.warm_up,
        per_batch,
        np.zeros(parts, np.int64),
        np.zeros(parts),
        np.zeros(parts, np.int64),
        np.zeros((servers, 3), np.int64),
        np.zeros((servers, 3), np.int64),
        np.zeros(len(workers), np.int64),
        cycles,
        ends,
    )
    return SimulatedThroughput(
        tuple((per_batch / np.diff(ends)).tolist()), tuple((cycles / (ends[-1] - ends[0])).tolist())
    )
