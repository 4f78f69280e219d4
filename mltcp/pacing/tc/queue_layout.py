"""Our qdiscs on an interface with several transmit queues: mq, and below each queue an HTB qdisc with its own lock.

    6d6c:             mq, the root
      6d6c:Q          transmit queue Q, from 1
        6d6c+Q:       HTB, with the same classes as on an interface with one queue (htb_qdisc.py)
          6d6c+Q:N    job N: its rate, times the share of its packets that are in this queue

Packets are classified by their mark: a priority names a class of one HTB qdisc only. The former root is replaced and
restored in one request each, so that no queue is ever without a qdisc: the kernel attaches none to a queue whose qdisc
was removed alone, and drops its packets.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mltcp.core.errors import NotAvailableError
from mltcp.pacing.tc.htb_qdisc import FIRST_JOB, OTHERS, RootLayout
from mltcp.pacing.tc.qdiscs import (
    HANDLE,
    ROOT,
    SAVEABLE,
    AttachedQdisc,
    ClassUse,
    RootQdisc,
    SavedQdisc,
    class_use,
    has_filters,
    qdiscs_of,
)
from mltcp.pacing.tc.rate_split import QueueUseMeter, RateSplit

REBALANCE_S = 0.02
"""The shortest time between two samples of the use of queues."""

MOST_QUEUES = 1024
_ONE = 0x10000
_SMALLEST_CHANGE = 0.005
_IDLE_RANGE = 0.5
"""The rate of an idle queue is corrected when it is off by a factor of two: it is a floor, and not in use."""


class QueueLayout(RootLayout):
    """An HTB qdisc for each transmit queue below our mq; a job's rate follows its packets from queue to queue."""

    root_kind = "mq"
    root_options: Mapping[str, int] = {}
    needs_marks = True

    def __init__(self, interface: str) -> None:
        super().__init__(interface)
        self.handles: Sequence[int] = ()
        self._queues: list[int] = []
        self._rates_bps: dict[int, float] = {}
        self._splits: dict[int, RateSplit] = {}
        self._meters: dict[int, QueueUseMeter] = {}
        self._applied_bps: dict[int, float] = {}
        self._use: dict[int, ClassUse] = {}
        self._allowed_bytes: dict[int, float] = {}
        self._measured_s = time.monotonic()
        self._accounted_s = self._measured_s

    # -- the qdiscs --------------------------------------------------------------------------------------------------

    def former(self, root: RootQdisc, replace: bool) -> SavedQdisc | None:
        """The mq to restore in the end; None for the kernel's default.

        Raises:
            NotAvailableError: it is no mq, or somebody has chosen a qdisc for a queue that may not be replaced, or
                could not be restored.
        """
        if root.kind != "mq":
            raise NotAvailableError(f"{self.interface}: expected mq at the root, found {root}")
        for each in qdiscs_of(root.index):
            if each.is_default or each.parent == ROOT:
                continue
            at = f"{self.interface} has qdisc {each.kind} {each.handle >> 16:x}: below {root}"
            if not replace:
                raise NotAvailableError(
                    f"{at}, which is not the kernel's default: remove it, name another interface, "
                    "or allow it to be replaced (--replace-qdisc)"
                )
            of_queue = each.parent & 0xFFFF0000 == root.handle
            if (
                not of_queue
                or each.kind not in SAVEABLE
                or each.size_table
                or has_filters(root.index, each.handle)
            ):
                raise NotAvailableError(f"{at}, which could not be restored: remove it first")
        return None if root.is_default else root.saved()

    def former_children(self, index: int) -> tuple[tuple[int, SavedQdisc], ...]:
        """What somebody chose for the root's queues, which is restored with it."""
        # The kernel lists the last one attached first.
        return tuple(
            (each.parent & 0xFFFF, each.saved())
            for each in reversed(qdiscs_of(index))
            if not each.is_default and each.parent != ROOT
        )

    def attach(self, route: Any, index: int) -> None:
        """Attach an HTB qdisc to each queue with the kernel's default; others have chosen what else is there."""
        for queue in sorted(each.parent & 0xFFFF for each in qdiscs_of(index) if _lacks_htb(each)):
            if queue > MOST_QUEUES:
                raise NotAvailableError(f"{self.interface}: expected at most {MOST_QUEUES} queues")
            route.tc(
                "replace", "htb", index=index, parent=HANDLE | queue, handle=_htb_of(queue), default=OTHERS
            )
        self.refresh(index)

    def refresh(self, index: int) -> bool:
        """See which of our HTB qdiscs are there; whether one is missing where the kernel's default is."""
        attached = qdiscs_of(index)
        self.handles = sorted(
            each.handle
            for each in attached
            if each.kind == "htb" and each.parent != ROOT and each.handle == _htb_of(each.parent & 0xFFFF)
        )
        self._queues = [(handle - HANDLE) // _ONE for handle in self.handles]
        return any(map(_lacks_htb, attached))

    # -- rates -------------------------------------------------------------------------------------------------------

    def add_job(self, minor: int, rate_bps: float) -> None:
        """Divide the rate of another job; each queue has the whole of it until its packets are seen."""
        self.remove_job(minor)
        self._rates_bps[minor] = rate_bps
        self._splits[minor] = RateSplit(self._queues)

    def remove_job(self, minor: int) -> None:
        """Forget the job and all that is known of its classes, which may be other ones from now on."""
        for by_minor in (self._rates_bps, self._splits, self._meters, self._allowed_bytes):
            by_minor.pop(minor, None)
        for by_handle in (self._applied_bps, self._use):
            for handle in [each for each in by_handle if each & 0xFFFF == minor]:
                del by_handle[handle]

    def jobs(self) -> Mapping[int, float]:
        """The rates of all jobs, divided over the queues that there are now."""
        for split in self._splits.values():
            split.follow(self._queues)
        return self._rates_bps

    def divided(self, rates_bps: Mapping[int, float]) -> Mapping[int, float]:
        """The rates of classes, by handle, that differ from those in force."""
        self._account()
        for minor, rate_bps in rates_bps.items():
            self._rates_bps[minor] = rate_bps
            self._splits.setdefault(minor, RateSplit(self._queues))
        return self._changes(rates_bps)

    def applied(self, rates_bps: Mapping[int, float]) -> None:
        """Take these rates of classes for those in force."""
        self._applied_bps.update(rates_bps)

    def _changes(self, minors: Iterable[int]) -> dict[int, float]:
        """The rates of these jobs' classes that differ from those in force."""
        changes = {}
        for minor in minors:
            split, rate_bps = self._splits[minor], self._rates_bps[minor]
            for queue, handle in zip(self._queues, self.handles, strict=True):
                wanted_bps = rate_bps * split.shares.get(queue, split.floor)
                now_bps = self._applied_bps.get(handle | minor, 0.0)
                allowed = _SMALLEST_CHANGE if queue in split.active else _IDLE_RANGE
                if abs(wanted_bps - now_bps) > allowed * max(wanted_bps, now_bps):
                    changes[handle | minor] = wanted_bps
        return changes

    def moved(self, index: int) -> Mapping[int, float]:
        """Measure where the jobs' packets are, if the last time was REBALANCE_S ago; the rates that follow them."""
        if time.monotonic() - self._measured_s < REBALANCE_S or not self._rates_bps:
            return {}
        self._account()
        self._measured_s = self._accounted_s
        before, self._use = self._use, class_use(index)
        changed = [minor for minor in self._rates_bps if self._observe(minor, before)]
        self._allowed_bytes.clear()
        return self._changes(changed)

    def _account(self) -> None:
        """Add the bytes that the rates have allowed since the last call."""
        now_s = time.monotonic()
        elapsed_s, self._accounted_s = now_s - self._accounted_s, now_s
        for minor, rate_bps in self._rates_bps.items():
            self._allowed_bytes[minor] = self._allowed_bytes.get(minor, 0.0) + rate_bps / 8 * elapsed_s

    def _observe(self, minor: int, before: Mapping[int, ClassUse]) -> bool:
        """Adapt a job's shares if a period of its measurement ends; whether it does."""
        allowed = self._allowed_bytes.get(minor, 0.0)
        if minor < FIRST_JOB or allowed <= 0:
            return False
        sent, backlog = {}, {}
        for queue, handle in zip(self._queues, self.handles, strict=True):
            now, then = self._use.get(handle | minor), before.get(handle | minor)
            if now is not None and then is not None:
                sent[queue], backlog[queue] = max(0, now.sent_bytes - then.sent_bytes), now.backlog_bytes
        use = self._meters.setdefault(minor, QueueUseMeter()).add(allowed, sent, backlog)
        if use is None:
            return False
        split = self._splits[minor]
        if set(split.shares) != set(self._queues):
            split.follow(self._queues)
        split.observe(use)
        return True


def _lacks_htb(each: AttachedQdisc) -> bool:
    """Whether it is the kernel's default for a queue of our mq."""
    return each.is_default and each.parent != ROOT and each.parent & 0xFFFF0000 == HANDLE


def _htb_of(queue: int) -> int:
    """The handle of the HTB qdisc of a queue, whose number begins at 1."""
    return HANDLE + queue * _ONE
