"""Which of the two qdiscs an interface is paced by: one HTB qdisc, or mq with an HTB qdisc for each transmit queue."""

from __future__ import annotations

from dataclasses import dataclass

from mltcp.pacing.tc.htb_qdisc import HtbQdisc
from mltcp.pacing.tc.mq_htb_qdisc import MqHtbQdisc
from mltcp.pacing.tc.qdisc_change import ChangeLog
from mltcp.pacing.tc.qdiscs import HANDLE, ROOT, RootQdisc, qdiscs_of, root_of


@dataclass(frozen=True)
class PacingChoice:
    """The qdisc to pace an interface by, and the reason.

    Attributes:
        interface: its name.
        root_kind: ``htb``: one HTB qdisc at the root; ``mq``: mq at the root, and an HTB qdisc for each queue.
        queues: the transmit queues that are paced separately.
        why: the reason.
    """

    interface: str
    root_kind: str
    queues: int
    why: str

    def __str__(self) -> str:
        if self.root_kind == "htb":
            return f"one HTB qdisc, because {self.why}"
        return f"an HTB qdisc for each of {self.queues} transmit queues, because {self.why}"

    def qdisc(
        self, line_rate_bps: int | None, journal: ChangeLog, replace: bool, mark: int = HANDLE
    ) -> HtbQdisc:
        """The qdisc of this choice, not installed yet; for the arguments see :class:`HtbQdisc`."""
        kind = MqHtbQdisc if self.root_kind == "mq" else HtbQdisc
        return kind(self.interface, line_rate_bps, journal, replace, mark)


def choose_pacing(interface: str, mark: int = HANDLE) -> PacingChoice:
    """Choose the qdisc for an interface by what is at its root now.

    Args:
        interface: its name; it need not exist.
        mark: of jobs' packets; 0: they have none, and HTB qdiscs of several queues could not classify them.
    """
    root = root_of(interface)
    if root is None:
        return PacingChoice(interface, "htb", 1, "there is no such interface")
    if root.kind != "mq":
        return PacingChoice(interface, "htb", 1, f"its root is {_name_of(root)} and not mq")
    if not mark:
        return PacingChoice(interface, "htb", 1, "pacing.mark is 0, and mq needs marks")
    queues = sum(
        1 for each in qdiscs_of(root.index) if each.parent != ROOT and _is_of_queue(each.parent, root)
    )
    return PacingChoice(interface, "mq", queues, f"its root is {_name_of(root)}")


def _is_of_queue(parent: int, root: RootQdisc) -> bool:
    return parent & 0xFFFF0000 == root.handle


def _name_of(root: RootQdisc) -> str:
    return f"the kernel's default {root.kind}" if root.is_default else str(root)
