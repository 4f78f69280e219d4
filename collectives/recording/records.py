"""Operations and iterations as frozen records, for hooks and profiles.

All times are on CLOCK_MONOTONIC (``time.monotonic_ns``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a process group on this rank.

    Attributes:
        name: torch's name (``all_reduce``, ``send``, ...).
        group: name of the process group.
        bytes: payload on this rank: the tensors of all_reduce, broadcast, reduce, send and recv, and the whole input of
            the others.
        sent_bytes: bytes that this rank puts on the network, by the algorithm's factor.
        submitted_ns: when it was passed on to Gloo or NCCL.
        completed_ns: when it completed; None before that, and if it failed.
        ranks: size of the group.
        number: position among the collective operations of its group, the same on all of its ranks; None unless a
            placement service or a gate is configured.
        held_ns: how long it was held back before it was submitted.
    """

    name: str
    group: str
    bytes: int
    sent_bytes: int
    submitted_ns: int
    completed_ns: int | None = None
    ranks: int = 0
    number: int | None = None
    held_ns: int = 0


@dataclass(frozen=True, slots=True)
class IterationStart:
    """The beginning of an iteration."""

    number: int
    started_ns: int


@dataclass(frozen=True)
class Iteration:
    """A finished iteration of the job on this rank.

    ``acked_bytes`` is the growth of ``bytes_acked`` of the groups' sockets during the iteration, None where the kernel
    or the transport does not provide it.
    """

    number: int
    started_ns: int
    ended_ns: int
    operations: tuple[Operation, ...]
    acked_bytes: int | None = None

    @property
    def duration_s(self) -> float:
        """Time from its beginning to the beginning of the next iteration."""
        return (self.ended_ns - self.started_ns) / 1e9

    @property
    def held_ns(self) -> int:
        """Sum of the times for which its operations were held back."""
        return sum(operation.held_ns for operation in self.operations)

    @property
    def bytes(self) -> int:
        """Payload of all of its operations."""
        return sum(operation.bytes for operation in self.operations)

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank put on the network, by the algorithms' factors."""
        return sum(operation.sent_bytes for operation in self.operations)

    @cached_property
    def communication_s(self) -> float:
        """Time during which at least one operation was in flight."""
        return sum(end - start for start, end in busy_intervals(self.operations)) / 1e9

    @property
    def compute_s(self) -> float:
        """Time during which no operation was in flight."""
        return max(0.0, self.duration_s - self.communication_s)


def busy_intervals(operations: Iterable[Operation]) -> list[tuple[int, int]]:
    """The intervals during which at least one operation was in flight: disjoint, in order, in nanoseconds."""
    merged: list[tuple[int, int]] = []
    spans = sorted(
        (operation.submitted_ns, operation.completed_ns)
        for operation in operations
        if operation.completed_ns is not None
    )
    for start, end in spans:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
