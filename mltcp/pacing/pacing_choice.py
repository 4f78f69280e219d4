"""How an interface is paced: departure times for fq, one HTB qdisc, or an HTB qdisc for each transmit queue."""

from __future__ import annotations

from dataclasses import dataclass

from mltcp.pacing.edt.edt_pacing import FQ, EdtPacing, departures_available, has_fq, undo_departure_times
from mltcp.pacing.tc.htb_qdisc import HtbQdisc
from mltcp.pacing.tc.mq_htb_qdisc import MqHtbQdisc
from mltcp.pacing.tc.qdisc_change import ChangeLog
from mltcp.pacing.tc.qdiscs import HANDLE, ROOT, RootQdisc, qdiscs_of, root_of


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
    ) -> HtbQdisc | EdtPacing:
        """What paces in this way, not installed yet; for the arguments see :class:`HtbQdisc`.

        Raises:
            NotAvailableError: the kernel refuses the program of departure times.
        """
        if self.root_kind == FQ:
            return EdtPacing(self.interface, line_rate_bps, journal, mark)
        # A killed daemon may have left them; they would go on to pace by the rates of then.
        undo_departure_times(self.interface, journal)
        kind = MqHtbQdisc if self.root_kind == "mq" else HtbQdisc
        return kind(self.interface, line_rate_bps, journal, replace, mark)


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
