"""Reads how many bytes the peers have acknowledged on the sockets of all groups, and what it has grown by."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns

from collectives.recording.operation import GroupLabel

AckedBytes = Callable[[], int | None]
"""Returns the bytes acknowledged on a group's sockets since they were opened, if that is known."""

LARGEST_SHARE = 0.02
"""The largest share of the time that is spent on reading: with many sockets most of the short iterations are left out.
"""


class AckedGrowth:
    """The growth of the sum over all groups, from one reading to the next.

    A reading counts only if nothing was sent meanwhile, and its growth only if the one before it did.
    """

    def __init__(self) -> None:
        self._groups: dict[GroupLabel, AckedBytes] = {}
        self._before: dict[GroupLabel, int] = {}
        self._next_ns = 0
        self._has_sockets = False
        self._begins = True
        self.read_ns = 0

    def attach(self, group: GroupLabel, acked_bytes: AckedBytes) -> None:
        """Count the bytes on this group's sockets from now on."""
        acked = acked_bytes()
        if acked is not None:
            self._before[group] = acked
            self._has_sockets = True
        self._groups[group] = acked_bytes

    def detach(self, group: GroupLabel) -> bool:
        """Stop counting the group's; returns whether it was the last one. A second call does nothing."""
        self._before.pop(group, None)
        return self._groups.pop(group, None) is not None and not self._groups

    @property
    def has_sockets(self) -> bool:
        """Whether the acknowledged bytes of any group were known when it was attached."""
        return self._has_sockets

    def forget(self) -> None:
        """What the next reading grows by is not known."""
        self._before.clear()

    def read(self, nothing_sent: Callable[[], bool] = lambda: True) -> int | None:
        """The growth since the last reading; None if it is not known.

        `nothing_sent` is asked when the sockets have been read.
        """
        began_ns = monotonic_ns()
        if began_ns < self._next_ns and not self._begins:
            self.forget()
            return None
        now = {group: acked_bytes() for group, acked_bytes in list(self._groups.items())}
        self.read_ns = monotonic_ns()
        # One reading tells what the growth begins with, so they come in twos.
        self._next_ns = self.read_ns + int(2 * (self.read_ns - began_ns) / LARGEST_SHARE)
        before, self._before, self._begins = self._before, {}, False
        if not nothing_sent():
            return None
        known = {group: acked for group, acked in now.items() if acked is not None}
        self._before = {group: acked for group, acked in known.items() if group in self._groups}
        if not known or len(known) < len(now):
            return None
        if not known.keys() <= before.keys():
            self._begins = True
            return None
        return sum(acked - before[group] for group, acked in known.items())
