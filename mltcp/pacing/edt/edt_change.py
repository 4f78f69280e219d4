"""The change of an interface to departure times, and how it is undone."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from mltcp.pacing.edt import egress_filter
from mltcp.pacing.tc.qdisc_change import UndoOutcome


@dataclass(frozen=True)
class EdtChange:
    """An interface runs our program on the packets that leave it.

    Attributes:
        interface, index: its name then, and its number.
        added_clsact: whether it had no clsact before.
    """

    interface: str
    index: int
    added_clsact: bool

    def __str__(self) -> str:
        return f"the departure times on {self.interface}"

    def undo(self) -> UndoOutcome:
        """Remove our filter, and clsact if we have added it and nobody has filters there."""
        try:
            socket.if_indextoname(self.index)
        except OSError:
            return UndoOutcome(True, "the interface is gone, and its filters with it")
        was_there = egress_filter.detach(self.index)
        if self.added_clsact:
            egress_filter.remove_clsact_if_empty(self.index)
        return UndoOutcome(True, "removed" if was_there else "it was removed already")
