"""Simulation of asynchronous SGD: workers, the links of the parameter servers, and the servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from enum import Enum

import numpy as np

from mltcp.core.errors import UsageError
from placement.model.parameter_server.service_times import ServiceTimes
from placement.simulator.parameter_server import events

BATCHES = 20


class Sizes(Enum):
    """A distribution of service times around their means."""

    CONSTANT = events.CONSTANT
    JITTER = events.JITTER
    """Uniform within 10 %."""
    EXPONENTIAL = events.EXPONENTIAL
    ERLANG = events.ERLANG
    """Of 4 stages: a coefficient of variation of 1/2."""
    HYPEREXPONENTIAL = events.HYPEREXPONENTIAL
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
    events.run_network(
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
