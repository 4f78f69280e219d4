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

import logging
import time
from collections.abc import Mapping
from typing import Any

from mltcp.core.errors import MltcpError, NotAvailableError
from mltcp.pacing.tc.htb_qdisc import FIRST_JOB, OTHERS, PACED, TOP, HtbQdisc
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

_log = logging.getLogger("mltcp.daemon")

REBALANCE_S = 0.02
"""The shortest time between two samples of the use of queues."""

MOST_QUEUES = 1024
_ONE = 0x10000
_SMALLEST_CHANGE = 0.005
_IDLE_RANGE = 0.5
"""The rate of an idle queue is corrected when it is off by a factor of two: it is a floor, and not in use."""


class MqHtbQdisc(HtbQdisc):
    """Our mq on an interface of this network namespace, with an HTB qdisc for each queue.

    The arguments are those of :class:`HtbQdisc`. The mark must not be 0.
    """

    root_kind = "mq"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
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

    def _replaceable(self, root: RootQdisc) -> SavedQdisc | None:
        if root.kind != "mq":
            raise NotAvailableError(f"{self.interface}: expected mq at the root, found {root}")
        self._check_children(root)
        return None if root.is_default else root.saved()

    def _check_children(self, root: RootQdisc) -> None:
        """Raise if somebody has chosen a qdisc for a queue that may not be replaced, or could not be restored."""
        for each in qdiscs_of(root.index):
            if each.is_default or each.parent == ROOT:
                continue
            at = f"{self.interface} has qdisc {each.kind} {each.handle >> 16:x}: below {root}"
            if not self._replace:
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

    def _chosen_children(self, root: RootQdisc) -> tuple[tuple[int, SavedQdisc], ...]:
        # The kernel lists the last one attached first.
        return tuple(
            (each.parent & 0xFFFF, each.saved())
            for each in reversed(qdiscs_of(root.index))
            if not each.is_default and each.parent != ROOT
        )

    def _build(self, route: Any, index: int, replace: bool) -> None:
        command = "replace" if replace else "add"
        route.tc(command, "mq", index=index, handle=HANDLE)
        self._put_own_classes(route, index)

    def _put_own_classes(self, route: Any, index: int) -> None:
        self._put_trees(route, index)
        super()._put_own_classes(route, index)

    def _put_trees(self, route: Any, index: int) -> None:
        """Add an HTB qdisc to each queue that has the kernel's default; others have chosen what else is there."""
        for queue in sorted(each.parent & 0xFFFF for each in qdiscs_of(index) if _lacks_tree(each)):
            if queue > MOST_QUEUES:
                raise NotAvailableError(f"{self.interface}: expected at most {MOST_QUEUES} queues")
            route.tc(
                "replace", "htb", index=index, parent=HANDLE | queue, handle=_tree(queue), default=OTHERS
            )
        self._queues = self._queues_with_trees(index)

    def _queues_with_trees(self, index: int) -> list[int]:
        return sorted(
            each.parent & 0xFFFF
            for each in qdiscs_of(index)
            if each.kind == "htb" and each.parent != ROOT and each.handle == _tree(each.parent & 0xFFFF)
        )

    def _trees(self, index: int) -> list[int]:
        return [_tree(queue) for queue in self._queues]

    def owns(self, handle: int) -> bool:
        """Whether a handle, of a qdisc or class, is in one of our qdiscs."""
        major = handle & 0xFFFF0000
        return major == HANDLE or major in {_tree(queue) for queue in self._queues}

    def _without_marks(self, error: MltcpError) -> None:
        raise NotAvailableError(f"{self.interface}: packets cannot be classified by mark: {error}")

    def state(self) -> str:
        """As that of one HTB qdisc.

        A queue whose HTB qdisc another program has replaced is left to it; one that the interface has had since
        (``ethtool -L``) gets an HTB qdisc with the classes of all jobs.
        """
        found = super().state()
        if found == PACED and (index := self._index) is not None:
            if any(_lacks_tree(each) for each in qdiscs_of(index)):
                self._follow_queues(index)
            self._queues = self._queues_with_trees(index)
        return found

    def _follow_queues(self, index: int) -> None:
        self._complete()
        for minor in sorted(self._rates_bps.keys() - self.left_alone):
            self._splits[minor].follow(self._queues)
            super().add_class(minor, self._rates_bps[minor])
        _log.info("%s: jobs are paced in %d transmit queues now", self.interface, len(self._queues))

    # -- jobs' classes -----------------------------------------------------------------------------------------------

    def add_class(self, minor: int, rate_bps: float) -> None:
        """Add the class of a job in every queue, each with the whole rate until its packets are seen."""
        self._rates_bps[minor] = rate_bps
        self._splits[minor] = RateSplit(self._queues)
        self._forget(minor)
        super().add_class(minor, rate_bps)

    def remove_class(self, minor: int) -> None:
        """Remove the classes of a job, with their queues."""
        self._rates_bps.pop(minor, None)
        self._splits.pop(minor, None)
        self._forget(minor)
        super().remove_class(minor)

    def _forget(self, minor: int) -> None:
        """Forget what is known of a job's classes, which may be other ones from now on."""
        self._meters.pop(minor, None)
        self._allowed_bytes.pop(minor, None)
        for by_handle in (self._applied_bps, self._use):
            for handle in [each for each in by_handle if each & 0xFFFF == minor]:
                del by_handle[handle]

    def change_rates(self, rates_bps: Mapping[int, float]) -> None:
        """Change the rates of jobs, each divided over the queues.

        Raises:
            ClassGoneError: a class does not exist.
        """
        self._account()
        for minor, rate_bps in rates_bps.items():
            self._rates_bps[minor] = rate_bps
            self._splits.setdefault(minor, RateSplit(self._queues))
        self._send(rates_bps)

    def _send(self, minors: Mapping[int, float] | set[int]) -> None:
        wanted = {}
        for minor in minors:
            if minor not in self.left_alone and minor in self._rates_bps:
                wanted.update(self._wanted(minor))
        if wanted:
            self._tc.change_rates(self._installed_index(), TOP, wanted)
            self._applied_bps.update(wanted)

    def _wanted(self, minor: int) -> dict[int, float]:
        """The rates of a job's classes that differ from those in force."""
        split, rate_bps = self._splits[minor], self._rates_bps[minor]
        found = {}
        for queue in self._queues:
            wanted_bps = rate_bps * split.shares.get(queue, split.floor)
            now_bps = self._applied_bps.get(_tree(queue) | minor, 0.0)
            allowed = _SMALLEST_CHANGE if queue in split.active else _IDLE_RANGE
            if abs(wanted_bps - now_bps) > allowed * max(wanted_bps, now_bps):
                found[_tree(queue) | minor] = wanted_bps
        return found

    def sent_bytes(self, minor: int) -> dict[int, int]:
        """The bytes that a job's class in each queue has sent since it was added."""
        use = class_use(self._installed_index())
        return {
            queue: use[_tree(queue) | minor].sent_bytes
            for queue in self._queues
            if _tree(queue) | minor in use
        }

    # -- the queues of flows -----------------------------------------------------------------------------------------

    def rebalance(self) -> None:
        """Measure where the jobs' packets are, if the last time was REBALANCE_S ago, and move their rates there.

        Raises:
            MltcpError: the kernel refuses a rate.
        """
        if time.monotonic() - self._measured_s < REBALANCE_S or not self._rates_bps:
            return
        self._account()
        self._measured_s = self._accounted_s
        before, self._use = self._use, class_use(self._installed_index())
        changed = {minor for minor in self._rates_bps if self._observe(minor, before)}
        self._allowed_bytes.clear()
        self._send(changed)

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
        for queue in self._queues:
            handle = _tree(queue) | minor
            now, then = self._use.get(handle), before.get(handle)
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


def _lacks_tree(each: AttachedQdisc) -> bool:
    """Whether it is the kernel's default for a queue of our mq."""
    return each.is_default and each.parent != ROOT and each.parent & 0xFFFF0000 == HANDLE


def _tree(queue: int) -> int:
    """The handle of the HTB qdisc of a queue, whose number begins at 1."""
    return HANDLE + queue * _ONE
