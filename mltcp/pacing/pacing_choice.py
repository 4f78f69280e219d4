"""How an interface is paced: departure times for fq, one HTB qdisc, or an HTB qdisc for each transmit queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from mltcp.pacing.edt.edt_pacing import FQ, EdtPacing, departures_available, has_fq, undo_departure_times
from mltcp.pacing.tc.htb_qdisc import HtbQdisc, RootLayout
from mltcp.pacing.tc.qdisc_change import ChangeLog
from mltcp.pacing.tc.qdiscs import HANDLE, ROOT, RootQdisc, qdiscs_of, root_of
from mltcp.pacing.tc.queue_layout import QueueLayout


class PacedQdisc(Protocol):
    """What paces an interface: `HtbQdisc` or `EdtPacing`."""

    interface: str
    what: str
    """It in words."""
    uses_priority: bool
    """Whether packets' priorities select classes; fq would take them for its own bands."""
    left_alone: set[int]
    """The minor numbers of the classes that another program has changed or removed."""

    @property
    def index(self) -> int | None:
        """The number of the interface; None before it has been installed."""

    @property
    def line_rate_bps(self) -> int:
        """The line rate of the interface."""

    def install(self) -> None:
        """Make it the root qdisc, or take over the one that a killed daemon left."""

    def add_class(self, minor: int, rate_bps: float) -> None:
        """Add the class of a job."""

    def remove_class(self, minor: int) -> None:
        """Remove a class, with the packets queued in it."""

    def change_rates(self, rates: Mapping[int, float]) -> None:
        """Change the rates of classes in place."""

    def rebalance(self) -> None:
        """Move the jobs' rates to the transmit queues that their packets are in."""

    def owns(self, handle: int) -> bool:
        """Whether a handle, of a qdisc or class, is in one of our qdiscs."""

    def classes(self) -> set[int]:
        """The minor numbers of the jobs' classes."""

    def state(self) -> str:
        """``paced``, ``absent`` or ``left alone``."""

    def remove(self) -> None:
        """Restore the former root qdisc."""


@dataclass(frozen=True)
class PacingChoice:
    """How to pace an interface, and the reason.

    Attributes:
        interface: its name.
        root_kind: ``fq``: departure times for the fq that is there; ``htb``: one HTB qdisc at the root; ``mq``: mq at
            the root, and an HTB qdisc for each queue.
        queues: the transmit queues that are paced separately; with fq, those that have it.
        why: the reason.
    """

    interface: str
    root_kind: str
    queues: int
    why: str

    def __str__(self) -> str:
        if self.root_kind == FQ:
            return f"departure times for fq, because {self.why}"
        if self.root_kind == "htb":
            return f"one HTB qdisc, because {self.why}"
        return f"an HTB qdisc for each of {self.queues} transmit queues, because {self.why}"

    def qdisc(
        self, line_rate_bps: int | None, journal: ChangeLog, replace: bool, mark: int = HANDLE
    ) -> PacedQdisc:
        """What paces in this way, not installed yet; for the arguments see :class:`HtbQdisc`.

        Raises:
            NotAvailableError: the kernel refuses the program of departure times.
        """
        if self.root_kind == FQ:
            return EdtPacing(self.interface, line_rate_bps, journal, mark)
        # A killed daemon may have left them; they would go on to pace by the rates of then.
        undo_departure_times(self.interface, journal)
        layout = QueueLayout if self.root_kind == "mq" else RootLayout
        return HtbQdisc(self.interface, line_rate_bps, journal, replace, mark, layout(self.interface))


def choose_pacing(interface: str, mark: int = HANDLE) -> PacingChoice:
    """Choose how to pace an interface by what is at its root now.

    Args:
        interface: its name; it need not exist.
        mark: of jobs' packets; 0: they have none, and HTB qdiscs of several queues could not classify them.
    """
    root = root_of(interface)
    if root is None:
        return PacingChoice(interface, "htb", 1, "there is no such interface")
    with_fq = bool(mark) and has_fq(root)
    refused = departures_available(mark) if with_fq else ""
    if with_fq and not refused:
        queues = _queues(root)
        where = (
            f"each of its {queues} transmit queues has fq" if queues > 1 else f"its root is {_name_of(root)}"
        )
        return PacingChoice(interface, FQ, queues, where)
    if root.kind != "mq":
        why = f", and {refused}" if refused else " and not mq"
        return PacingChoice(interface, "htb", 1, f"its root is {_name_of(root)}{why}")
    if not mark:
        return PacingChoice(interface, "htb", 1, "pacing.mark is 0, and mq needs marks")
    return PacingChoice(interface, "mq", _queues(root), f"its root is {_name_of(root)}")


def _queues(root: RootQdisc) -> int:
    """The transmit queues that are in use, of mq; else one."""
    if root.kind != "mq":
        return 1
    return sum(1 for each in qdiscs_of(root.index) if each.parent != ROOT and _is_of_queue(each.parent, root))


def _is_of_queue(parent: int, root: RootQdisc) -> bool:
    return parent & 0xFFFF0000 == root.handle


def _name_of(root: RootQdisc) -> str:
    return f"the kernel's default {root.kind}" if root.is_default else str(root)
