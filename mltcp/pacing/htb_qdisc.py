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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from mltcp.core.errors import MltcpError, NotAvailableError
from mltcp.pacing.qdisc_change import ChangeLog, QdiscChange
from mltcp.pacing.qdiscs import HANDLE, RootQdisc, SavedQdisc, class_handles, root_of
from mltcp.pacing.tc_messages import QUANTUM_BYTES, TcSocket, burst_bytes

T = TypeVar("T")

_log = logging.getLogger("mltcp.daemon")

TOP, OTHERS = 1, 2
FIRST_JOB = 16
UNKNOWN_LINE_RATE_BPS = 100_000_000_000
"""The rate of an interface that does not report one. If it is too high, marks correct it; if too low, nothing would."""

OTHERS_SHARE = 0.1
OTHERS_QUEUE_PACKETS = 1000
"""The shortest queue of other traffic; the interface's own length, which may be 0, is used if it is longer."""

QUEUE_PACKETS = 10_000
"""The queue of a job's class. It never fills: TCP queues only a few packets of a flow below its socket."""

MARK_MASK = 0xFFFF0000
"""The bits of a mark that tell that it is one of a job's, whose number is in the others."""

PACED, ABSENT, LEFT_ALONE = "paced", "absent", "left alone"


@dataclass(frozen=True)
class ClassStatistics:
    """The counters of a class since it was added, and its queued bytes."""

    sent_bytes: int
    packets: int
    drops: int
    backlog_bytes: int


class HtbQdisc:
    """Our HTB qdisc on an interface of this network namespace.

    Args:
        interface: its name.
        line_rate_bps: of the interface; None: as the interface reports it.
        journal: the log in which changes are recorded before they are made.
        replace: whether a root qdisc that is not the kernel's default may be replaced.
        mark: of jobs' packets, with a job's number in the lower half; 0: they have none.

    Attributes:
        left_alone: the minor numbers of classes that another program has changed or removed, which are not changed.
    """

    def __init__(
        self,
        interface: str,
        line_rate_bps: int | None,
        journal: ChangeLog,
        replace: bool = False,
        mark: int = HANDLE,
    ) -> None:
        self.interface = interface
        self._asked_rate_bps = line_rate_bps
        self._journal = journal
        self._replace = replace
        self._mark = mark
        self.left_alone: set[int] = set()
        self._index: int | None = None
        self._line_rate_bps: int | None = None
        self._tc = TcSocket()

    @property
    def index(self) -> int | None:
        """The number of the interface that it was installed on."""
        return self._index

    @property
    def line_rate_bps(self) -> int:
        """The given line rate, or the one that the interface reported at the last :meth:`state`."""
        # Not read here: it takes long with some network cards, and is needed for every job in every interval.
        return self._line_rate_bps or self._find_line_rate_bps()

    def _find_line_rate_bps(self) -> int:
        reported_bps = self._asked_rate_bps or interface_rate_bps(self.interface)
        return reported_bps or self._line_rate_bps or UNKNOWN_LINE_RATE_BPS

    # -- the qdisc ---------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Make it the root qdisc. One that a killed daemon left is taken over, with its queues.

        Raises:
            NotAvailableError: there is no such interface, or its root qdisc may not be replaced.
        """
        root = root_of(self.interface)
        if root is None:
            raise NotAvailableError(f"there is no interface {self.interface}")
        self._line_rate_bps = self._find_line_rate_bps()
        if root.is_ours and self._in_journal(root.index):
            self._index = root.index
            self._complete()
            return
        former = self._replaceable(root)
        change = QdiscChange(self.interface, root.index, former)
        number = self._journal.record(change)
        try:
            _with_route(lambda route: self._build(route, root.index, former is not None))
        except MltcpError:
            # The root may exist without all of its classes.
            self._journal.undone(number, f"it could not be installed: {change.undo().why}")
            raise
        self._index = root.index
        self.left_alone.clear()
        self._classify_marks()

    def _in_journal(self, index: int) -> bool:
        return any(
            isinstance(entry.change, QdiscChange)
            and (entry.change.interface, entry.change.index) == (self.interface, index)
            for entry in self._journal.pending()
        )

    def _replaceable(self, root: RootQdisc) -> SavedQdisc | None:
        """The qdisc to restore in the end; None for the kernel's default."""
        if root.is_default:
            return None
        if not self._replace:
            raise NotAvailableError(
                f"{self.interface} has {root}, which is not the kernel's default: remove it, name another interface, "
                "or allow it to be replaced (--replace-qdisc)"
            )
        if not root.can_be_saved:
            raise NotAvailableError(
                f"{self.interface} has {root} with classes or other parts, which could not be restored: remove it first"
            )
        return root.saved()

    def _build(self, route: Any, index: int, replace: bool) -> None:
        # In one request: if the daemon were killed between two, nothing would record what is still to be restored.
        command = "replace" if replace else "add"
        route.tc(command, "htb", index=index, handle=HANDLE, default=OTHERS)
        self._put_own_classes(route, index)

    def _put_own_classes(self, route: Any, index: int) -> None:
        """Add our own two classes, or set their rates; their queues are kept."""
        line_rate_bps = self.line_rate_bps
        if TOP not in self.left_alone:
            _put_class(route, index, TOP, HANDLE, line_rate_bps, line_rate_bps)
        if OTHERS not in self.left_alone:
            _put_class(route, index, OTHERS, HANDLE | TOP, line_rate_bps * OTHERS_SHARE, line_rate_bps)
        _put_missing_queues(route, index)

    def _complete(self) -> None:
        """Complete a qdisc that a killed daemon left half installed, or with another line rate."""
        index = self._installed_index()
        _with_route(lambda route: self._put_own_classes(route, index))
        self._classify_marks()

    def _classify_marks(self) -> None:
        assert self._index is not None
        if not self._mark:
            return
        try:
            self._tc.add_mark_classifier(self._index, HANDLE, self._mark, MARK_MASK)
        except MltcpError as error:
            if "File exists" not in str(error):
                _log.warning(
                    "%s: packets are classified by priority only, not by mark: %s", self.interface, error
                )

    def state(self) -> str:
        """``paced``; ``absent``: there is none, or another interface of this name; ``left alone``: ours was removed."""
        root = root_of(self.interface)
        if root is None:
            return ABSENT
        if root.index == self._index:
            if not root.is_ours:
                return LEFT_ALONE
            self._follow_line_rate(root.index)
            return PACED
        return ABSENT if root.is_ours or root.is_default else LEFT_ALONE

    def _follow_line_rate(self, index: int) -> None:
        """Apply another line rate that the interface reports, such as after a link was negotiated again."""
        now_bps = self._find_line_rate_bps()
        if now_bps == self._line_rate_bps:
            return
        self._line_rate_bps = now_bps
        _with_route(lambda route: self._put_own_classes(route, index))
        _log.info("%s: line rate %.0f Mbit/s, because its link reports it now", self.interface, now_bps / 1e6)

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
        """Add the class of a job, or set its rate if it exists.

        Raises:
            MltcpError: the kernel refuses.
        """
        index = self._installed_index()
        if minor in self.classes():
            self.change_rates({minor: rate_bps})
            return

        def add(route: Any) -> None:
            _put_class(route, index, minor, HANDLE | TOP, rate_bps, rate_bps)
            _put_queue(route, index, minor, QUEUE_PACKETS)

        _with_route(add)

    def remove_class(self, minor: int) -> None:
        """Remove the class of a job, with its queue; a class that does not exist is ignored."""
        index = self._installed_index()
        self.left_alone.discard(minor)
        if minor in self.classes():
            _with_route(lambda route: route.tc("del-class", index=index, handle=HANDLE | minor))

    def change_rates(self, rates_bps: Mapping[int, float]) -> None:
        """Change the rates of classes in place: no packet is lost or delayed by it.

        Raises:
            ClassGoneError: one of them does not exist.
        """
        handles = {HANDLE | minor: rate for minor, rate in rates_bps.items() if minor not in self.left_alone}
        self._tc.change_rates(self._installed_index(), HANDLE | TOP, handles)

    def classes(self) -> set[int]:
        """The minor numbers of the jobs' classes."""
        minors = {
            handle & 0xFFFF
            for handle in class_handles(self._installed_index())
            if handle >> 16 == HANDLE >> 16
        }
        return {minor for minor in minors if minor >= FIRST_JOB}

    def statistics(self) -> dict[int, ClassStatistics]:
        """The counters of every class by minor number, including our own two."""
        index = self._installed_index()

        def read(route: Any) -> dict[int, ClassStatistics]:
            return {each["handle"] & 0xFFFF: _statistics(each) for each in route.get_classes(index=index)}

        return _with_route(read)

    def _installed_index(self) -> int:
        if self._index is None:
            raise MltcpError(f"{self.interface}: the HTB qdisc is not installed")
        return self._index


def interface_rate_bps(interface: str) -> int | None:
    """The line rate that an interface reports; None if it reports none."""
    try:
        megabits = int(Path(f"/sys/class/net/{interface}/speed").read_text())
    except (OSError, ValueError):
        return None
    return megabits * 1_000_000 if megabits > 0 else None


def _put_class(route: Any, index: int, minor: int, parent: int, rate_bps: float, ceiling_bps: float) -> None:
    """Add a class, or set its rates if it exists."""
    route.tc(
        "replace-class",
        "htb",
        index=index,
        handle=HANDLE | minor,
        parent=parent,
        rate=max(1, int(rate_bps / 8)),
        ceil=max(1, int(ceiling_bps / 8)),
        burst=burst_bytes(rate_bps),
        cburst=burst_bytes(ceiling_bps),
        quantum=QUANTUM_BYTES,
    )


def _put_queue(route: Any, index: int, minor: int, packets: int) -> None:
    route.tc("add", "pfifo", index=index, parent=HANDLE | minor, limit=packets)


def _put_missing_queues(route: Any, index: int) -> None:
    """Add a queue to every class without one: one just added, or left so by a killed daemon."""
    (link,) = route.get_links(index)
    others_packets = max(OTHERS_QUEUE_PACKETS, link.get_attr("IFLA_TXQLEN") or 0)
    with_queue = {qdisc["parent"] for qdisc in route.get_qdiscs(index=index)}
    for handle in class_handles(index):
        minor = handle & 0xFFFF
        if minor != TOP and handle not in with_queue:
            _put_queue(route, index, minor, QUEUE_PACKETS if minor >= FIRST_JOB else others_packets)


def _statistics(message: Any) -> ClassStatistics:
    counted = message.get_attr("TCA_STATS2")
    basic, queue = counted.get_attr("TCA_STATS_BASIC"), counted.get_attr("TCA_STATS_QUEUE")
    return ClassStatistics(basic["bytes"], basic["packets"], queue["drops"], queue["backlog"])


def _with_route(act: Callable[[Any], T]) -> T:
    """Call `act` with a pyroute2 socket; returns its result.

    It is called on a separate thread: pyroute2 runs an event loop, which cannot run inside another one. The thread is
    in the network namespace of its creator.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with IPRoute(ext_ack=True) as route:
                results.append(act(route))
        except NetlinkError as error:
            errors.append(MltcpError(f"traffic control: {error.args[-1] if error.args else error}"))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="tc", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
