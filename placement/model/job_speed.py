"""How fast a job is on any number of slots: its measured times, and the model that gives all others from them.

An iteration is a mini-batch on each slot, whatever their number. The times are those of an otherwise idle network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Protocol, Self

from mltcp.core.errors import UsageError
from mltcp.core.quantities import LARGEST_BYTES, NS_PER_S
from placement.model.service_times import ServiceTimes
from placement.model.throughput import BETWEEN_BYTES_PER_S, INSIDE_BYTES_PER_S, ring_ns

LONGEST_NS = 10**15
"""Of an iteration: eleven days."""

_FEWEST_SOLVED = 64


class JobSpeed(Protocol):
    """The model of a job's speed; also the `IterationTimes` of schedulers."""

    @property
    def most(self) -> int | None:
        """The largest number of slots whose time is known; None: any number."""

    @property
    def terms(self) -> tuple[int, ...]:
        """The numbers of the model that may be wrong by a factor, which measurements correct."""

    def with_terms(self, terms: tuple[int, ...]) -> Self:
        """The same model with other such numbers, in the order of `terms`."""

    def positions(self, slots: int) -> Sequence[int]:
        """The places in `terms` of those on which the time on so many slots depends."""

    def iteration_ns(self, workers: int, one_node: bool) -> int:
        """The time of an iteration on so many slots, all on one host or not.

        Raises:
            UsageError: it is not known for so many.
        """


@dataclass(frozen=True)
class RingSpeed:
    """Synchronous training whose gradients a ring all-reduce sums: T_cal + T_comm (DRS, Equations 2 and 5).

    Attributes:
        compute_ns: T_cal, the time in which one slot computes a step.
        bytes: that are reduced in a step.
        inside_bytes_per_s: B_in, inside a host.
        between_bytes_per_s: B_out, between hosts.

    Raises:
        UsageError: a value is out of range.
    """

    compute_ns: int
    bytes: int
    inside_bytes_per_s: int = INSIDE_BYTES_PER_S
    between_bytes_per_s: int = BETWEEN_BYTES_PER_S
    most: ClassVar[None] = None

    def __post_init__(self) -> None:
        check_whole(self.compute_ns, "compute_ns", 1, LONGEST_NS)
        check_whole(self.bytes, "bytes", 0, LARGEST_BYTES)
        for name in ("inside_bytes_per_s", "between_bytes_per_s"):
            check_whole(getattr(self, name), name, 1, LARGEST_BYTES)

    @property
    def terms(self) -> tuple[int, ...]:
        """T_cal and both bandwidths; how many bytes are reduced is known."""
        return self.compute_ns, self.inside_bytes_per_s, self.between_bytes_per_s

    def with_terms(self, terms: tuple[int, ...]) -> Self:
        """See `JobSpeed`."""
        compute_ns, inside, between = terms
        return replace(self, compute_ns=compute_ns, inside_bytes_per_s=inside, between_bytes_per_s=between)

    def positions(self, slots: int) -> Sequence[int]:
        """See `JobSpeed`."""
        return range(3)

    def iteration_ns(self, workers: int, one_node: bool) -> int:
        """See `JobSpeed`."""
        bytes_per_s = self.inside_bytes_per_s if one_node else self.between_bytes_per_s
        return self.compute_ns + ring_ns(self.bytes, workers, bytes_per_s)


@dataclass(frozen=True)
class ParameterServerSpeed:
    """Asynchronous training with a parameter server: K workers do X(K) mini-batches a second (Lin et al., Section III).

    An iteration is the cycle of a worker, K / X(K), wherever the workers are: the server's links are the only ones that
    they share. The hybrid method gives X(K).

    Attributes:
        worker_ns: S^W, the worker computes a gradient.
        uplink_ns: S^U, the gradient is sent to the server.
        server_ns: S^S, the server applies it.
        downlink_ns: S^D, the weights are sent back.

    Raises:
        UsageError: a value is out of range.
    """

    worker_ns: int
    uplink_ns: int
    server_ns: int
    downlink_ns: int
    most: ClassVar[None] = None

    def __post_init__(self) -> None:
        check_whole(self.worker_ns, "worker_ns", 1, LONGEST_NS)
        for name in ("uplink_ns", "server_ns", "downlink_ns"):
            check_whole(getattr(self, name), name, 0, LONGEST_NS)

    @property
    def terms(self) -> tuple[int, ...]:
        """All four times."""
        return self.worker_ns, self.uplink_ns, self.server_ns, self.downlink_ns

    def with_terms(self, terms: tuple[int, ...]) -> Self:
        """See `JobSpeed`."""
        return type(self)(*terms)

    def positions(self, slots: int) -> Sequence[int]:
        """See `JobSpeed`."""
        return range(4)

    def iteration_ns(self, workers: int, one_node: bool) -> int:
        """See `JobSpeed`."""
        return _cycles_ns(self, max(_FEWEST_SOLVED, 1 << (workers - 1).bit_length()))[workers - 1]


@lru_cache(maxsize=1024)
def _cycles_ns(speed: ParameterServerSpeed, most: int) -> tuple[int, ...]:
    """The cycle of a worker beside 0 to `most` - 1 others."""
    from placement.model.queueing import throughputs  # compiled: slow to import

    rates = throughputs(ServiceTimes(*(term / NS_PER_S for term in speed.terms)), most)
    return tuple(round(workers * NS_PER_S / rate) for workers, rate in enumerate(rates.tolist(), 1))


@dataclass(frozen=True)
class TableSpeed:
    """Measured times of an iteration on 1, 2, 3 ... slots, wherever they are.

    Attributes:
        step_ns: by the number of slots, from 1 on. The job gets no more slots than there are times.

    Raises:
        UsageError: there is no time, or one is out of range.
    """

    step_ns: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.step_ns:
            raise UsageError("step_ns: expected the time on 1 slot, and on 2, 3 and so on, got none")
        for slots, time_ns in enumerate(self.step_ns, 1):
            check_whole(time_ns, f"step_ns of {slots} slot{'s' if slots > 1 else ''}", 1, LONGEST_NS)

    @property
    def most(self) -> int:
        """The largest number of slots in the table."""
        return len(self.step_ns)

    @property
    def terms(self) -> tuple[int, ...]:
        """All times."""
        return self.step_ns

    def with_terms(self, terms: tuple[int, ...]) -> Self:
        """See `JobSpeed`."""
        return type(self)(terms)

    def positions(self, slots: int) -> Sequence[int]:
        """See `JobSpeed`."""
        return (slots - 1,)

    def iteration_ns(self, workers: int, one_node: bool) -> int:
        """See `JobSpeed`."""
        if not 1 <= workers <= self.most:
            raise UsageError(f"slots: expected 1 to {self.most}, as in the table of speeds, got {workers}")
        return self.step_ns[workers - 1]


def check_whole(value: int, field: str, lowest: int, highest: int) -> None:
    """Raise UsageError unless `lowest` <= value <= `highest`; the message begins with the field."""
    if not lowest <= value <= highest:
        raise UsageError(f"{field}: expected {lowest} to {highest}, got {value}")
