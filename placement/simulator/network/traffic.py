"""What a job sends in an iteration: steps of computing, and transfers between its workers, in their order."""

from __future__ import annotations

from dataclasses import dataclass

from placement.simulator.network.laws.network_law import NetworkLaw


@dataclass(frozen=True)
class Transfer:
    """Bytes from one worker to another, by number within the job, on one of the connections between them."""

    source: int
    target: int
    size_bytes: float
    connection: int = 0


@dataclass(frozen=True)
class Step:
    """A part of an iteration: it waits for the steps in `after`, computes, and then sends all transfers at once.

    It ends when its last transfer has arrived. Steps that do not wait for each other overlap.
    """

    compute_ns: int = 0
    transfers: tuple[Transfer, ...] = ()
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class Traffic:
    """One iteration of a job of so many workers; it ends when all its steps have ended."""

    workers: int
    steps: tuple[Step, ...]


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
        noise_ns: standard deviation of the computing of an iteration; 0: none.
    """

    name: str
    traffic: Traffic
    hosts: tuple[int, ...]
    law: NetworkLaw
    iterations: int
    start_ns: int = 0
    noise_ns: int = 0
