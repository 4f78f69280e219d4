"""Operations and iterations as frozen records, the traffic of an operation, and hooks for both."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

# Bytes that a rank puts on the network for an operation of Gloo's.
#
# Measured on ``bytes_acked`` of the connections of 2, 3, 4, 5 and 8 ranks with 4 kB to 128 MiB and
# every root (S: Operation.bytes; v: rank relative to the root; n: ranks), and equal to the
# algorithm's own count but for headers:
#
#     all_reduce          2 (n-1)/n S          ring
#     reduce_scatter      2 (n-1)/n S          an all-reduce of the whole input; of a list: one of each tensor
#     all_gather          (n-1) S              ring
#     all_to_all          (n-1)/n S            directly to each rank; even splits
#     reduce              S; the root (n-1)/n S; more from 2 n MiB on (see _reduce)
#     broadcast           S for each child in the binomial tree: v has the children v + 2^k < n with 2^k > v
#     gather              S; the root nothing
#     scatter             the root (n-1)/n S, the others nothing
#     send                S
#     barrier             144 bytes for each of ceil(log2 n) rounds
#
# Headers are 48 to 144 bytes a message, and are left out: 576 (n-1) bytes for an all-reduce up to 2 n
# MiB, 288 (n-1) for all_gather, 144 (n-1) for all_to_all, 576 n (n-1) for reduce_scatter of a list.
# With 1 MiB on 4 ranks that is 0.5 % at most; with 4 kB it is 28 % of an all-reduce, and more than
# the payload of reduce_scatter of a list.
#
# NCCL's rings send the same for all_reduce, all_gather and all_to_all, but half of it for
# reduce_scatter, (n-1)/n S, and S from every rank but the last for broadcast. That, its trees, and
# traffic within a host are not modelled here.


BARRIER_ROUND_BYTES = 144
REDUCE_SEGMENT_BYTES = 1 << 20
"""Gloo divides the tensor of a reduce into at least two segments per rank, none larger than this."""


def sent_bytes(name: str, nbytes: int, rank: int, size: int, root: int = 0) -> int:
    """Bytes that rank `rank` of `size` sends for the operation `name` with a payload of `nbytes`.

    `root` applies to broadcast, reduce, gather and scatter. An unknown operation sends nothing.
    """
    if size < 2:
        return 0
    others, is_root = size - 1, rank == root
    if name in ("all_reduce", "reduce_scatter"):
        return 2 * others * nbytes // size
    if name == "all_gather":
        return others * nbytes
    if name == "all_to_all":
        return others * nbytes // size
    if name == "reduce":
        return _reduce(nbytes, rank, size, is_root)
    if name == "broadcast":
        return nbytes * _children((rank - root) % size, size)
    if name == "gather":
        return 0 if is_root else nbytes
    if name == "scatter":
        return others * nbytes // size if is_root else 0
    if name == "barrier":
        return BARRIER_ROUND_BYTES * (size - 1).bit_length()
    return nbytes if name == "send" else 0


def _children(relative: int, size: int) -> int:
    """Number of children of a node in the binomial tree over `size` nodes."""
    first = relative.bit_length()
    return sum(relative + (1 << power) < size for power in range(first, size.bit_length()))


def _reduce(nbytes: int, rank: int, size: int, is_root: bool) -> int:
    """Bytes of a reduce: a rank sends all but the last two segments of its own chunk along the ring, then its chunk.

    With two segments per chunk that is a reduce-scatter and a gather. Larger tensors have more segments per chunk, and
    Gloo sends those on that a reduce-scatter would keep (the loop in gloo/reduce.cc ends two segments before the last,
    not one chunk before it).
    """
    segment = min(-(-nbytes // (2 * size)), REDUCE_SEGMENT_BYTES)
    if segment == 0:
        return 0
    segments_a_chunk = -(-max(-(-nbytes // segment), 2 * size) // size)
    chunk_start, chunk_end = (min(nbytes, each * segments_a_chunk * segment) for each in (rank, rank + 1))
    kept_start = min(nbytes, ((rank + 1) * segments_a_chunk - 2) * segment)
    round_the_ring = nbytes - (chunk_end - kept_start)
    return round_the_ring if is_root else round_the_ring + chunk_end - chunk_start


# -- records ------------------------------------------------------------------------------------
#
# Operations and iterations as frozen records, for hooks and profiles.
#
# All times are on CLOCK_MONOTONIC (``time.monotonic_ns``).


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


# -- hooks --------------------------------------------------------------------------------------
#
# Lists of callbacks for iterations and operations.
#
# The error of a callback is logged once, with the traceback, and does not affect the job.


Record = TypeVar("Record")
_log = logging.getLogger("mltcp")


class HookList(Generic[Record]):
    """The callbacks of one kind. Callers check `callbacks` first, and make no record if it is empty.

    `on_change` is called when a callback has been added or removed.
    """

    def __init__(self, name: str, on_change: Callable[[], object] | None = None) -> None:
        self._name = name
        self._on_change = on_change
        self.callbacks: tuple[Callable[[Record], object], ...] = ()
        self._failed: set[int] = set()

    def add(self, callback: Callable[[Record], object]) -> Callable[[], None]:
        """Call `callback` with every record from now on; returns a function that removes it."""
        self._set((*self.callbacks, callback))

        def remove() -> None:
            self._set(tuple(each for each in self.callbacks if each is not callback))
            self._failed.discard(id(callback))

        return remove

    def _set(self, callbacks: tuple[Callable[[Record], object], ...]) -> None:
        self.callbacks = callbacks
        if self._on_change is not None:
            self._on_change()

    def __call__(self, record: Record) -> None:
        """Call all callbacks."""
        for callback in self.callbacks:
            try:
                callback(record)
            except Exception:
                self._report(callback)

    def _report(self, callback: Callable[[Record], object]) -> None:
        if id(callback) not in self._failed:
            self._failed.add(id(callback))
            _log.exception("mltcp: hook %s %r raised an error; the job continues", self._name, callback)
