"""The change of an interface's root qdisc to our own, how it is undone, and the log that it is recorded in first."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mltcp.pacing.tc import qdiscs


@dataclass(frozen=True)
class UndoOutcome:
    """The result of undoing a change: whether the host is as before in this respect, and the reason."""

    undone: bool
    why: str


@dataclass(frozen=True)
class QdiscChange:
    """The root qdisc of an interface was replaced by ours.

    Attributes:
        interface, index: its name then, and its number.
        former: the root before; None: the kernel's default.
        children: if the former is mq, the qdiscs that somebody chose for its queues, each with its queue's number from
            1, in the order in which they are restored.
    """

    interface: str
    index: int
    former: qdiscs.SavedQdisc | None = None
    children: tuple[tuple[int, qdiscs.SavedQdisc], ...] = ()

    def __str__(self) -> str:
        return f"the HTB qdisc on {self.interface}"

    def undo(self) -> UndoOutcome:
        """Restore the former qdisc, unless somebody else has replaced ours since."""
        now = self._now()
        if now is None:
            return UndoOutcome(True, "the interface is gone, and its qdisc with it")
        if not now.is_ours:
            return self._without_ours(now)
        if self.former is None:
            qdiscs.remove_root(self.index)
            return UndoOutcome(True, "removed; the kernel's default is back")
        # In one request: if the daemon were killed between two, nothing would record what is still to be restored.
        qdiscs.restore_qdisc(self.index, self.former)
        self._restore_children(self.former)
        return UndoOutcome(True, f"removed; {self.former.kind} is back")

    def _restore_children(self, root: qdiscs.SavedQdisc) -> None:
        """Restore what is not there yet: a kill may have come between two of them."""
        attached = {each.parent: each for each in qdiscs.qdiscs_of(self.index)}
        for queue, saved in self.children:
            now = attached.get(root.handle | queue)
            # The kernel does not list the default of a queue that is not in use now (ethtool -L).
            if now is None or now.is_default:
                qdiscs.restore_qdisc(self.index, saved, root.handle | queue)

    def _now(self) -> qdiscs.RootQdisc | None:
        """The root qdisc now. The interface is found by index, since it may have been renamed."""
        try:
            return qdiscs.root_of(socket.if_indextoname(self.index))
        except OSError:
            return None

    def _without_ours(self, now: qdiscs.RootQdisc) -> UndoOutcome:
        if now.is_default:
            return UndoOutcome(True, "it was removed already")
        if self.former is not None and now.saved() == self.former:
            self._restore_children(self.former)
            return UndoOutcome(True, f"{now} is there, as before")
        return UndoOutcome(False, f"it was replaced by {now}")


class LoggedChange(Protocol):
    """A change in the log, with its number there."""

    @property
    def number(self) -> int:
        """The number that `record` returned."""

    @property
    def change(self) -> object:
        """The change itself: a QdiscChange, an EdtChange, or one of another kind."""


class ChangeLog(Protocol):
    """A durable log of changes to the host: :class:`mltcp.daemon.journal.Journal`."""

    def record(self, change: Any) -> int:
        """Write a change that is about to be made; returns its number.

        Raises:
            MltcpError: it cannot be written; the change must not be made then.
        """

    def undone(self, number: int, how: str) -> None:
        """Write that a change was undone, and how."""

    def pending(self) -> Sequence[LoggedChange]:
        """The changes that are not undone, the last one first."""
