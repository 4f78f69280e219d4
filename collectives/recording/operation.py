"""Operations of a process group, from their call to their completion on this rank."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from collectives.recording import records
from collectives.recording.completion import AnyWork
from collectives.recording.records import Operation


def _do_nothing() -> None:
    pass


@dataclass(frozen=True, slots=True, eq=False)
class GroupLabel:
    """The name, rank and size of a process group; operations hold this, not the group and its connections.

    ``numbers`` yields the numbers of the group's collective operations, where admission control is configured, and
    ``on_failure`` is called when one of its operations has failed.
    """

    name: str
    rank: int
    size: int
    on_failure: Callable[[], object] = field(default=_do_nothing, repr=False)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1), repr=False)


class InFlightOperation:
    """An operation that is being admitted, runs, or has completed.

    Each call of an operation makes one, so that only what differs between operations is set then.

    Attributes:
        name: torch's name of the operation.
        group: its process group.
        bytes: payload on this rank.
        root: rank of the root, for operations that have one.
        number: position among the collective operations of its group, from 1 on, the same on all of its ranks; None
            where no admission control is configured, and for sends and receives.
        held_ns: how long admission control held it back.
        return_pass: set by the gate that granted the operation a pass; returns the pass. May be called repeatedly.
        work: torch's handle, kept only while the operation has a pass, since it keeps tensors alive.
        submitted_ns: when it was passed on to the inner group; 0 before that.
        completed_ns: when it completed; None before that, and if it failed.
    """

    number: int | None = None
    held_ns = 0
    return_pass: Callable[[InFlightOperation], None] | None = None
    work: AnyWork | None = None
    submitted_ns = 0
    completed_ns: int | None = None

    def __init__(self, name: str, group: GroupLabel, nbytes: int, root: int = 0) -> None:
        self.name = name
        self.group = group
        self.bytes = nbytes
        self.root = root

    def complete(self, now_ns: int | None) -> None:
        """Note the time of completion, None for a failure, and return the gate pass."""
        self.completed_ns = now_ns
        if self.return_pass is not None:
            self.return_pass(self)
        if now_ns is None:
            self.group.on_failure()

    def release(self) -> None:
        """Return the gate pass: the operation ended, or its completion cannot be observed."""
        if self.return_pass is not None:
            self.return_pass(self)

    def record(self) -> Operation:
        """The operation as of now, frozen."""
        return _record(
            self.name, self.group, self.bytes, self.root, self.submitted_ns, self.completed_ns, self.number,
            self.held_ns,
        )  # fmt: skip


AwaitedOperation = tuple[str, GroupLabel, int, int, int, int | None]
"""Name, group, bytes, root, submitted_ns and completed_ns of an operation whose caller has waited for it.

A plain tuple, because making one takes its caller a quarter of the time that an object takes.
"""


def record_of(operation: InFlightOperation | AwaitedOperation) -> Operation:
    """The operation as of now, frozen."""
    if isinstance(operation, tuple):
        return _record(*operation)
    return operation.record()


def _record(
    name: str,
    group: GroupLabel,
    nbytes: int,
    root: int,
    submitted_ns: int,
    completed_ns: int | None,
    number: int | None = None,
    held_ns: int = 0,
) -> Operation:
    sent = records.sent_bytes(name, nbytes, group.rank, group.size, root)
    return Operation(name, group.name, nbytes, sent, submitted_ns, completed_ns, group.size, number, held_ns)
