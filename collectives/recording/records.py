"""What hooks receive and what profiles are made of: operations and iterations, as frozen records.

All times are of CLOCK_MONOTONIC (``time.monotonic_ns``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a process group on this rank.

    ``name`` is torch's (``all_reduce``, ``send``, ...), ``group`` the process group's name. ``bytes`` is the payload
    on this rank: the tensors of all_reduce, broadcast, reduce, send and recv, and the whole input of the others.
    ``sent_bytes`` is what this rank puts on the network for it, by the algorithm's factor. ``completed_ns`` is
    None until it is complete, and for ever if it failed.

    ``ranks`` is how many the group has. Where a placement service or a gate is configured, ``number`` is the
    operation's among the collective operations of its group, the same on all of its ranks, and ``held_ns`` is how long
    it was held back before it was submitted.
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
    """An iteration begins."""

    number: int
    started_ns: int


@dataclass(frozen=True)
class Iteration:
    """A finished iteration of the job on this rank.

    ``acked_bytes`` is by how much ``bytes_acked`` of the groups' sockets grew meanwhile, None where the kernel or the
    transport does not tell.
    """

    number: int
    started_ns: int
    ended_ns: int
    operations: tuple[Operation, ...]
    acked_bytes: int | None = None

    @property
    def duration_s(self) -> float:
        """From its beginning to the beginning of the next."""
        return (self.ended_ns - self.started_ns) / 1e9

    @property
    def held_ns(self) -> int:
        """How long its operations were held back, together."""
        return sum(operation.held_ns for operation in self.operations)

    @property
    def bytes(self) -> int:
        """Payload of all its operations."""
        return sum(operation.bytes for operation in self.operations)

    @property
    def sent_bytes(self) -> int:
        """What this rank put on the network, by the algorithms' factors."""
        return sum(operation.sent_bytes for operation in self.operations)

    @cached_property
    def communication_s(self) -> float:
        """How long at least one operation was under way."""
        return sum(end - start for start, end in busy_intervals(self.operations)) / 1e9

    @property
    def compute_s(self) -> float:
        """How long no operation was under way."""
        return max(0.0, self.duration_s - self.communication_s)


def busy_intervals(operations: Iterable[Operation]) -> list[tuple[int, int]]:
    """When at least one of the operations was under way: disjoint intervals in nanoseconds, in order."""
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
