"""An operation of a process group between its call and its completion on this rank."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from collectives.recording import traffic
from collectives.recording.completion import AnyWork
from collectives.recording.records import Operation


@dataclass(frozen=True, slots=True, eq=False)
class GroupLabel:
    """The name, rank and size of a process group; operations hold this, not the group and its connections.

    ``numbers`` yields the numbers of the group's collective operations, where admission control is configured.
    """

    name: str
    rank: int
    size: int
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1), repr=False)


class InFlightOperation:
    """An operation that is being admitted, runs, or has completed.

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

    __slots__ = (
        "_on_failure", "bytes", "completed_ns", "group", "held_ns", "name", "number", "return_pass", "root",
        "submitted_ns", "work",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        group: GroupLabel,
        nbytes: int,
        root: int = 0,
        on_failure: Callable[[], object] | None = None,
    ) -> None:
        self.name = name
        self.group = group
        self.bytes = nbytes
        self.root = root
        self.number: int | None = None
        self.held_ns = 0
        self.return_pass: Callable[[InFlightOperation], None] | None = None
        self.work: AnyWork | None = None
        self.submitted_ns = 0
        self.completed_ns: int | None = None
        self._on_failure = on_failure

    def complete(self, now_ns: int | None) -> None:
        """Note the time of completion, None for a failure, and return the gate pass."""
        self.completed_ns = now_ns
        if self.return_pass is not None:
            self.return_pass(self)
        if now_ns is None and self._on_failure is not None:
            self._on_failure()

    def release(self) -> None:
        """Return the gate pass: the operation ended, or its completion cannot be observed."""
        if self.return_pass is not None:
            self.return_pass(self)

    def record(self) -> Operation:
        """The operation as of now, frozen."""
        group = self.group
        sent = traffic.sent_bytes(self.name, self.bytes, group.rank, group.size, self.root)
        return Operation(
            self.name, group.name, self.bytes, sent, self.submitted_ns, self.completed_ns, group.size, self.number,
            self.held_ns,
        )  # fmt: skip
