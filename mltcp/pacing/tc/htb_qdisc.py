"""Our HTB qdisc on an interface: one class for each job, with the job's rate, and one for all other traffic.

    6d6c:           the root; its default class is 6d6c:2
      6d6c:1        the line rate
        6d6c:2      other traffic: at least a tenth of the line rate, at most all that is unused
        6d6c:N      job N

HTB selects a packet's class by its priority (SO_PRIORITY), without a filter; a classifier selects it by its mark, for
packets whose priority is not set. Changing the rate of a class keeps its queue.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from mltcp.core.errors import MltcpError, NotAvailableError
from mltcp.pacing import netlink
from mltcp.pacing.device_features import LineRate
from mltcp.pacing.tc.messages import QUANTUM_BYTES, TcSocket, burst_bytes
from mltcp.pacing.tc.qdisc_change import ChangeLog, QdiscChange
from mltcp.pacing.tc.qdiscs import HANDLE, RootQdisc, SavedQdisc, class_handles, qdiscs_of, root_of

T = TypeVar("T")

_log = logging.getLogger("mltcp.daemon")

TOP, OTHERS = 1, 2
FIRST_JOB = 16
OTHERS_SHARE = 0.1
OTHERS_QUEUE_PACKETS = 1000
"""The shortest queue of other traffic; the interface's own length, which may be 0, is used if it is longer."""

QUEUE_PACKETS = 10_000
"""The queue of a job's class. It never fills: TCP queues only a few packets of a flow below its socket."""

MARK_MASK = 0xFFFF0000
"""The bits of a mark that tell that it is one of a job's, whose number is in the others."""

_SOL_NETLINK, _NETLINK_EXT_ACK = 270, 11

PACED, ABSENT, LEFT_ALONE = "paced", "absent", "left alone"


@dataclass(frozen=True)
class ClassStatistics:
    """The counters of a class since it was added, and its queued bytes."""

    sent_bytes: int
    packets: int
    drops: int
    backlog_bytes: int

    def __add__(self, other: ClassStatistics) -> ClassStatistics:
        return ClassStatistics(
            self.sent_bytes + other.sent_bytes,
            self.packets + other.packets,
            self.drops + other.drops,
            self.backlog_bytes + other.backlog_bytes,
        )


NO_TRAFFIC = ClassStatistics(0, 0, 0, 0)


class RootLayout:
    """Where our HTB qdiscs are on an interface, and how jobs' rates are divided over them: one, the root, with all.

    What an interface with several transmit queues does otherwise is in :class:`queue_layout.QueueLayout`.

    Attributes:
        handles: of our HTB qdiscs.
        root_kind, root_options: of our root qdisc.
        needs_marks: whether packets are classified by their mark only, not by priority.
    """

    root_kind = "htb"
    root_options: Mapping[str, int] = {"default": OTHERS}
    needs_marks = False

    def __init__(self, interface: str) -> None:
        self.interface = interface
        self.handles: Sequence[int] = (HANDLE,)

    def former(self, root: RootQdisc, replace: bool) -> SavedQdisc | None:
        """The root qdisc to restore in the end; None for the kernel's default.

        Raises:
            NotAvailableError: it may not be replaced, or could not be restored.
        """
        if root.is_default:
            return None
        if not replace:
            raise NotAvailableError(
                f"{self.interface} has {root}, which is not the kernel's default: remove it, name another interface, "
                "or allow it to be replaced (--replace-qdisc)"
            )
        if not root.can_be_saved:
            raise NotAvailableError(
                f"{self.interface} has {root} with classes or other parts, which could not be restored: remove it first"
            )
        return root.saved()

    def former_children(self, index: int) -> tuple[tuple[int, SavedQdisc], ...]:
        """What somebody chose for the root's queues, which is restored with it."""
        return ()

    def attach(self, route: Any, index: int) -> None:
        """Attach the HTB qdiscs that are missing below our root."""

    def refresh(self, index: int) -> bool:
        """See which of our HTB qdiscs are there; whether one is missing where the kernel's default is."""
        return False

    def add_job(self, minor: int, rate_bps: float) -> None:
        """Divide the rate of another job from now on."""

    def remove_job(self, minor: int) -> None:
        """Divide it no more."""

    def jobs(self) -> Mapping[int, float]:
        """The rates of the jobs that have classes in an HTB qdisc which is attached later."""
        return {}

    def divided(self, rates_bps: Mapping[int, float]) -> Mapping[int, float]:
        """The rates of classes, by handle, that change with these rates of jobs."""
        return {HANDLE | minor: rate for minor, rate in rates_bps.items()}

    def moved(self, index: int) -> Mapping[int, float]:
        """The rates of classes, by handle, that change because packets are in other queues than before."""
        return {}

    def applied(self, rates_bps: Mapping[int, float]) -> None:
        """Take these rates of classes for those in force."""


class HtbQdisc:
    """Our HTB qdiscs on an interface of this network namespace.

    Args:
        interface: its name.
        line_rate_bps: of the interface; None: as the interface reports it.
        journal: the log in which changes are recorded before they are made.
        replace: whether a root qdisc that is not the kernel's default may be replaced.
        mark: of jobs' packets, with a job's number in the lower half; 0: they have none.
        layout: where they are; by default one at the root.

    Attributes:
        left_alone: the minor numbers of classes that another program has changed or removed, which are not changed.
    """

    what = "our HTB qdisc"
    uses_priority = True

    def __init__(
        self,
        interface: str,
        line_rate_bps: int | None,
        journal: ChangeLog,
        replace: bool = False,
        mark: int = HANDLE,
        layout: RootLayout | None = None,
    ) -> None:
        self.interface = interface
        self._line_rate = LineRate(interface, line_rate_bps)
        self._journal = journal
        self._replace = replace
        self._mark = mark
        self._layout = RootLayout(interface) if layout is None else layout
        self.left_alone: set[int] = set()
        self._index: int | None = None
        self._tc = TcSocket()

    @property
    def index(self) -> int | None:
        """The number of the interface that it was installed on."""
        return self._index

    @property
    def line_rate_bps(self) -> int:
        """The given line rate, or the one that the interface reported at the last :meth:`state`."""
        return self._line_rate.bps

    # -- the qdisc ---------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Make it the root qdisc. One that a killed daemon left is taken over, with its queues.

        Raises:
            NotAvailableError: there is no such interface, or its root qdisc may not be replaced.
        """
        root = self._root()
        self._line_rate.refresh()
        if root.is_ours and self._in_journal(root.index):
            if root.kind == self._layout.root_kind:
                self._index = root.index
                self._complete()
                return
            # Left by a daemon that was to pace in the other way.
            self.remove()
            root = self._root()
        former = self._layout.former(root, self._replace)
        children = self._layout.former_children(root.index)
        change = QdiscChange(self.interface, root.index, former, children)
        number = self._journal.record(change)
        try:
            with_route(lambda route: self._build(route, root.index, former is not None))
        except MltcpError:
            # The root may exist without all of its classes.
            self._journal.undone(number, f"it could not be installed: {change.undo().why}")
            raise
        self._index = root.index
        self.left_alone.clear()
        self._classify_marks()

    def _root(self) -> RootQdisc:
        root = root_of(self.interface)
        if root is None:
            raise NotAvailableError(f"there is no interface {self.interface}")
        return root

    def _in_journal(self, index: int) -> bool:
        return any(
            isinstance(entry.change, QdiscChange)
            and (entry.change.interface, entry.change.index) == (self.interface, index)
            for entry in self._journal.pending()
        )

    def owns(self, handle: int) -> bool:
        """Whether a handle, of a qdisc or class, is in one of our qdiscs."""
        major = handle & 0xFFFF0000
        return major == HANDLE or major in self._layout.handles

    def _build(self, route: Any, index: int, replace: bool) -> None:
        # In one request: if the daemon were killed between two, nothing would record what is still to be restored.
        command = "replace" if replace else "add"
        layout = self._layout
        route.tc(command, layout.root_kind, index=index, handle=HANDLE, **layout.root_options)
        self._put_own_classes(route, index)

    def _put_own_classes(self, route: Any, index: int) -> None:
        """Add our own two classes, or set their rates; their queues are kept."""
        self._layout.attach(route, index)
        line_rate_bps = self.line_rate_bps
        for tree in self._layout.handles:
            if TOP not in self.left_alone:
                put_class(route, index, tree | TOP, tree, line_rate_bps, line_rate_bps)
            if OTHERS not in self.left_alone:
                share_bps = line_rate_bps * OTHERS_SHARE
                put_class(route, index, tree | OTHERS, tree | TOP, share_bps, line_rate_bps)
        _put_missing_queues(route, index, self._layout.handles)

    def _complete(self) -> None:
        """Complete a qdisc that a killed daemon left half installed, or with another line rate."""
        index = self._installed_index()
        with_route(lambda route: self._put_own_classes(route, index))
        self._classify_marks()

    def _classify_marks(self) -> None:
        assert self._index is not None
        if not self._mark:
            return
        for tree in self._layout.handles:
            try:
                self._tc.add_mark_classifier(self._index, tree, self._mark, MARK_MASK)
            except MltcpError as error:
                if self._layout.needs_marks:
                    raise NotAvailableError(
                        f"{self.interface}: packets cannot be classified by mark: {error}"
                    ) from error
                _log.warning(
                    "%s: packets are classified by priority only, not by mark: %s", self.interface, error
                )

    def state(self) -> str:
        """``paced``; ``absent``: there is none, or another interface of this name; ``left alone``: ours was removed.

        A queue whose HTB qdisc another program has replaced is left to it; one that the interface has had since
        (``ethtool -L``) gets an HTB qdisc with the classes of all jobs.
        """
        root = root_of(self.interface)
        if root is None:
            return ABSENT
        if root.index == self._index:
            if not root.is_ours:
                return LEFT_ALONE
            self._follow_line_rate(root.index)
            if self._layout.refresh(root.index):
                self._follow_queues()
            return PACED
        return ABSENT if root.is_ours or root.is_default else LEFT_ALONE

    def _follow_line_rate(self, index: int) -> None:
        """Apply another line rate that the interface reports, such as after a link was negotiated again."""
        if not self._line_rate.refresh():
            return
        with_route(lambda route: self._put_own_classes(route, index))
        _log.info(
            "%s: line rate %.0f Mbit/s, because its link reports it now",
            self.interface,
            self.line_rate_bps / 1e6,
        )

    def _follow_queues(self) -> None:
        self._complete()
        for minor, rate_bps in sorted(self._layout.jobs().items()):
            if minor not in self.left_alone:
                self._put_class(minor, rate_bps)
        _log.info("%s: jobs are paced in %d transmit queues now", self.interface, len(self._layout.handles))

    def remove(self) -> None:
        """Restore the former root qdisc, unless somebody else has replaced ours."""
        for entry in self._journal.pending():
            if isinstance(entry.change, QdiscChange) and entry.change.interface == self.interface:
                outcome = entry.change.undo()
                if outcome.undone:
                    self._journal.undone(entry.number, outcome.why)

    def close(self) -> None:
        """Close the socket; the qdisc stays."""
        self._tc.close()

    # -- jobs' classes -----------------------------------------------------------------------------------------------

    def add_class(self, minor: int, rate_bps: float) -> None:
        """Add the class of a job where it has none, and set its rate where it has one.

        Raises:
            MltcpError: the kernel refuses.
        """
        self._layout.add_job(minor, rate_bps)
        self._put_class(minor, rate_bps)

    def _put_class(self, minor: int, rate_bps: float) -> None:
        index = self._installed_index()
        # A daemon that was killed, or whose request failed, may have left it in some of the queues.
        present = set(self._class_handles())
        lacking = [tree for tree in self._layout.handles if tree | minor not in present]

        def add(route: Any) -> None:
            for tree in lacking:
                put_class(route, index, tree | minor, tree | TOP, rate_bps, rate_bps)
            _put_missing_queues(route, index, self._layout.handles)

        if lacking:
            with_route(add)
        if len(lacking) < len(self._layout.handles):
            self.change_rates({minor: rate_bps})

    def remove_class(self, minor: int) -> None:
        """Remove the class of a job, with its queue; a class that does not exist is ignored."""
        index = self._installed_index()
        self.left_alone.discard(minor)
        self._layout.remove_job(minor)
        handles = [each for each in self._class_handles() if each & 0xFFFF == minor]

        def remove(route: Any) -> None:
            for handle in handles:
                route.tc("del-class", index=index, handle=handle)

        if handles:
            with_route(remove)

    def change_rates(self, rates_bps: Mapping[int, float]) -> None:
        """Change the rates of classes in place: no packet is lost or delayed by it.

        Raises:
            ClassGoneError: one of them does not exist.
        """
        self._change_classes(self._layout.divided(rates_bps))

    def rebalance(self) -> None:
        """Move the jobs' rates to the transmit queues that their packets are in.

        Raises:
            MltcpError: the kernel refuses a rate.
        """
        self._change_classes(self._layout.moved(self._installed_index()))

    def _change_classes(self, rates_bps: Mapping[int, float]) -> None:
        index = self._installed_index()
        wanted = {
            handle: rate for handle, rate in rates_bps.items() if handle & 0xFFFF not in self.left_alone
        }
        if wanted:
            self._tc.change_rates(index, TOP, wanted)
            self._layout.applied(wanted)

    def classes(self) -> set[int]:
        """The minor numbers of the jobs' classes."""
        return {handle & 0xFFFF for handle in self._class_handles() if handle & 0xFFFF >= FIRST_JOB}

    def _class_handles(self) -> list[int]:
        """The handles of all classes in our HTB qdiscs."""
        index = self._installed_index()
        trees = set(self._layout.handles)
        return [handle for handle in class_handles(index) if handle & 0xFFFF0000 in trees]

    def statistics(self) -> dict[int, ClassStatistics]:
        """The counters of every class by minor number, including our own two, summed over all queues."""
        index = self._installed_index()
        trees = set(self._layout.handles)

        def read(route: Any) -> dict[int, ClassStatistics]:
            found: dict[int, ClassStatistics] = {}
            for each in route.get_classes(index=index):
                if each["handle"] & 0xFFFF0000 in trees:
                    minor = each["handle"] & 0xFFFF
                    found[minor] = found.get(minor, NO_TRAFFIC) + _statistics(each)
            return found

        return with_route(read)

    def _installed_index(self) -> int:
        if self._index is None:
            raise MltcpError(f"{self.interface}: the HTB qdisc is not installed")
        return self._index


def put_class(route: Any, index: int, handle: int, parent: int, rate_bps: float, ceiling_bps: float) -> None:
    """Add a class, or set its rates if it exists."""
    route.tc(
        "replace-class",
        "htb",
        index=index,
        handle=handle,
        parent=parent,
        rate=max(1, int(rate_bps / 8)),
        ceil=max(1, int(ceiling_bps / 8)),
        burst=burst_bytes(rate_bps),
        cburst=burst_bytes(ceiling_bps),
        quantum=QUANTUM_BYTES,
    )


def _put_missing_queues(route: Any, index: int, trees: Collection[int]) -> None:
    """Add a queue to every class without one: one just added, or left so by a killed daemon."""
    (link,) = route.get_links(index)
    others_packets = max(OTHERS_QUEUE_PACKETS, link.get_attr("IFLA_TXQLEN") or 0)
    with_queue = {qdisc.parent for qdisc in qdiscs_of(index)}
    for handle in class_handles(index):
        minor = handle & 0xFFFF
        # The queues of mq are classes, too; they are in the root, whose handle is ours or its own.
        if minor != TOP and handle & 0xFFFF0000 in trees and handle not in with_queue:
            packets = QUEUE_PACKETS if minor >= FIRST_JOB else others_packets
            route.tc("add", "pfifo", index=index, parent=handle, limit=packets)


def _statistics(message: Any) -> ClassStatistics:
    counted = message.get_attr("TCA_STATS2")
    basic, queue = counted.get_attr("TCA_STATS_BASIC"), counted.get_attr("TCA_STATS_QUEUE")
    return ClassStatistics(basic["bytes"], basic["packets"], queue["drops"], queue["backlog"])


def with_route(act: Callable[[Any], T]) -> T:
    """Call `act` with a pyroute2 socket; returns its result.

    It is called on a separate thread: pyroute2 runs an event loop, which cannot run inside another one. The thread is
    in the network namespace of its creator.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with netlink.route_socket() as ours:
                # Left to pyroute2, its port would be the number of this process, which another one may have, too.
                ours.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)
                ours.setblocking(False)
                with IPRoute(ext_ack=True, use_socket=ours) as route:
                    results.append(act(route))
        except NetlinkError as error:
            errors.append(MltcpError(f"traffic control: {error.args[-1] if error.args else error}"))
        except OSError as error:
            errors.append(MltcpError(f"traffic control: {error.strerror or error}"))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="tc", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
