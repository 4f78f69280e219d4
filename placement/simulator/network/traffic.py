"""What a job sends in an iteration: steps of computing, and messages between its workers, in their order."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mltcp.core.errors import UsageError, shown
from placement.simulator.network.laws.network_law import NetworkLaw
from placement.simulator.network.topology import CLASSES


@dataclass(frozen=True)
class Message:
    """Bytes from one worker to another, by number within the job, on one of the connections between them."""

    source: int
    target: int
    size_bytes: float
    connection: int = 0


@dataclass(frozen=True)
class IterationStep:
    """A part of an iteration: it waits for the steps in `after`, computes, and then sends all messages at once.

    It ends when its last message has arrived. Steps that do not wait for each other overlap. Each message is made at
    `rate_bps`, at most: it takes as long even where it uses no link.
    """

    compute_ns: int = 0
    messages: tuple[Message, ...] = ()
    after: tuple[int, ...] = ()
    rate_bps: float = math.inf


@dataclass(frozen=True)
class Traffic:
    """One iteration of a job of so many workers; it ends when all its steps have ended."""

    workers: int
    steps: tuple[IterationStep, ...]

    @property
    def messages(self) -> list[Message]:
        """All messages, in the order of the steps."""
        return [message for step in self.steps for message in step.messages]


def followers(name: str, steps: Sequence[IterationStep]) -> list[list[int]]:
    """The steps that wait for each step of a job; raises UsageError for one that waits for none of the job's."""
    found: list[list[int]] = [[] for _ in steps]
    for number, step in enumerate(steps):
        for before in step.after:
            if not 0 <= before < len(steps):
                raise UsageError(f"job {name}: step {number}: after: expected steps of the job, got {before}")
            found[before].append(number)
    return found


def meeting_sets(jobs: int, meetings: Iterable[Iterable[int]]) -> list[tuple[int, ...]]:
    """The sets of two or more jobs (by number) that meet, directly or over others, each in order."""
    set_of = {number: {number} for number in range(jobs)}
    for meeting in meetings:
        together = set().union(*(set_of[job] for job in meeting))
        set_of.update(dict.fromkeys(together, together))
    sets = {tuple(sorted(each)) for each in set_of.values()}
    return sorted(each for each in sets if len(each) > 1)


@dataclass(frozen=True)
class RemainingClass:
    """The traffic class of a message, chosen when it begins to be sent: the less its iteration has left, the higher.

    What is left is that of the message's connection in this iteration, as time at the rate of its slowest link. Less
    than the first bound is class 7, less than the second class 6, and so on.

    Attributes:
        bounds_ns: 1 to 7, rising.

    Raises UsageError for bounds that do not rise.
    """

    bounds_ns: tuple[int, ...]

    def __post_init__(self) -> None:
        rises = all(before < after for before, after in pairwise((0, *self.bounds_ns)))
        if not 0 < len(self.bounds_ns) < CLASSES or not rises:
            raise UsageError(
                f"class: expected 1 to {CLASSES - 1} rising bounds above 0, got {shown(self.bounds_ns)}"
            )


@dataclass(frozen=True)
class NetworkJob:
    """A job in a network.

    Attributes:
        name: unique.
        traffic: of each iteration.
        hosts: of each worker, by number in the network; workers of one host use no link for what they send each other.
        law: of all its flows.
        iterations: after which it ends.
        start_ns: when the first one begins.
        noise_ns: standard deviation of the computing of an iteration, which is normal; 0: none.
        traffic_class: of its messages, 0 to 7, at links with queues for classes; 7 goes first.
        slots: the GPU of its host that each worker has, which decides its NIC; empty: counted from 0 on each host.
        holds_ns: by how much later each iteration begins than it could, which is no part of it; the mode `steps` alone
            has it; empty: none.
        measured_noise_ns: instead of `noise_ns`: differences of measured iterations from their mean computing time.
        worker_laws: of the flows that each worker sends; empty: `law`.
    """

    name: str
    traffic: Traffic
    hosts: tuple[int, ...]
    law: NetworkLaw
    iterations: int
    start_ns: int = 0
    noise_ns: int = 0
    traffic_class: int | RemainingClass = 0
    slots: tuple[int, ...] = ()
    holds_ns: tuple[int, ...] = ()
    measured_noise_ns: tuple[int, ...] = ()
    worker_laws: tuple[NetworkLaw, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.traffic_class, RemainingClass) and not 0 <= self.traffic_class < CLASSES:
            raise UsageError(f"job {self.name}: class: expected 0 to {CLASSES - 1}, got {self.traffic_class}")

    def law_of(self, worker: int) -> NetworkLaw:
        """The law of the flows that a worker sends."""
        return self.worker_laws[worker] if self.worker_laws else self.law

    def noise(self, seed: int, iterations: int) -> NDArray[np.float64]:
        """Of the computing of each iteration, in ns; that of the k-th is the same whatever else happens.

        Measured noise is drawn with replacement: it has the tails that were measured, but not their order.
        """
        draws = np.random.default_rng((seed, zlib.crc32(self.name.encode())))
        if self.measured_noise_ns:
            return draws.choice(np.array(self.measured_noise_ns, np.float64), iterations)
        return self.noise_ns * draws.standard_normal(iterations)

    @property
    def gpus(self) -> tuple[int, ...]:
        """Of each worker the GPU of its host."""
        if self.slots:
            return self.slots
        counted = dict.fromkeys(self.hosts, 0)
        found = []
        for host in self.hosts:
            found.append(counted[host])
            counted[host] += 1
        return tuple(found)


Routes = Sequence[Sequence[Sequence[int]]]
"""For each job and each of its messages, in the order of its steps: the numbers of its links; none within a host."""
