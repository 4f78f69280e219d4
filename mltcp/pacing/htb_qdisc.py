"""The HTB tree on an interface: one class a job, whose rate is the job's, and one for everything else.

    6d6c:           the root; what no class takes goes to 6d6c:2
      6d6c:1        the line rate
        6d6c:2      everything else: a tenth of the line rate for sure, and whatever is not used
        6d6c:N      job N

HTB puts a packet into the class that its priority names (SO_PRIORITY), without a filter; a classifier looks at the
mark, for sockets whose priority nobody set. Changing a class's rate leaves what it has queued where it is.
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
"""Where an interface does not say how fast it is: too much is corrected by marks, too little would never be noticed."""

OTHERS_SHARE = 0.1
OTHERS_QUEUE_PACKETS = 1000
"""At least; more if the interface's own is longer. Where that is 0, HTB would make a queue that takes nothing."""

QUEUE_PACKETS = 10_000
"""A job's class drops nothing that TCP sends: that queues a few packets a flow below a class, not thousands."""

PACED, ABSENT, LEFT_ALONE = "paced", "absent", "left alone"


@dataclass(frozen=True)
class ClassStatistics:
    """What a class has counted since it was made, and what is queued in it now."""

    sent_bytes: int
    packets: int
    drops: int
    backlog_bytes: int


class HtbQdisc:
    """Our tree on an interface of this network namespace.

    Args:
        interface: its name.
        line_rate_bps: of the interface; None: what it says of itself.
        journal: where what is changed is noted first.
        replace: whether a queueing discipline that somebody chose may be replaced.
    """

    def __init__(
        self, interface: str, line_rate_bps: int | None, journal: ChangeLog, replace: bool = False
    ) -> None:
        self.interface = interface
        self._asked_rate_bps = line_rate_bps
        self._journal = journal
        self._replace = replace
        self._index: int | None = None
        self._line_rate_bps: int | None = None
        self._tc = TcSocket()

    @property
    def line_rate_bps(self) -> int:
        """As it was given, or as the interface said when it was last looked at (:meth:`state`)."""
        # Not asked here: that takes long with some network cards, and this is needed for every job in every interval.
        return self._line_rate_bps or self._find_line_rate_bps()

    def _find_line_rate_bps(self) -> int:
        said_bps = self._asked_rate_bps or interface_rate_bps(self.interface)
        return said_bps or self._line_rate_bps or UNKNOWN_LINE_RATE_BPS

    # -- the tree ----------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Put the tree there; one that a daemon left which was killed is taken over, with its queues.

        Raises:
            NotAvailableError: there is no such interface, or somebody has chosen what is there.
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
            # The root may be there, though not what belongs into it.
            self._journal.undone(number, f"it could not be made: {change.undo().why}")
            raise
        self._index = root.index
        self._classify_marks()

    def _in_journal(self, index: int) -> bool:
        return any(
            isinstance(entry.change, QdiscChange)
            and (entry.change.interface, entry.change.index) == (self.interface, index)
            for entry in self._journal.pending()
        )

    def _replaceable(self, root: RootQdisc) -> SavedQdisc | None:
        """What has to be put back in the end; None for the kernel's default."""
        if root.is_default:
            return None
        if not self._replace:
            raise NotAvailableError(
                f"{self.interface} has {root}, which is not the kernel's default: remove it, name another interface, "
                "or allow it to be replaced (--replace-qdisc)"
            )
        if not root.can_be_saved:
            raise NotAvailableError(
                f"{self.interface} has {root} with classes or other parts, which could not be put back: "
                "remove it first"
            )
        return root.saved()

    def _build(self, route: Any, index: int, replace: bool) -> None:
        # In one step: killed between two, nobody would know that the former one is still to be put back.
        command = "replace" if replace else "add"
        route.tc(command, "htb", index=index, handle=HANDLE, default=OTHERS)
        self._put_own_classes(route, index)

    def _put_own_classes(self, route: Any, index: int) -> None:
        """Our own two, with the line rate of now; what they have queued stays queued."""
        line_rate_bps = self.line_rate_bps
        _put_class(route, index, TOP, HANDLE, line_rate_bps, line_rate_bps)
        _put_class(route, index, OTHERS, HANDLE | TOP, line_rate_bps * OTHERS_SHARE, line_rate_bps)
        _put_missing_queues(route, index)

    def _complete(self) -> None:
        """A daemon that was killed may have left half a tree, or had another line rate."""
        index = self._there()
        _with_route(lambda route: self._put_own_classes(route, index))
        self._classify_marks()

    def _classify_marks(self) -> None:
        assert self._index is not None
        try:
            self._tc.add_mark_classifier(self._index, HANDLE, HANDLE, 0xFFFF0000)
        except MltcpError as error:
            if "File exists" not in str(error):
                _log.warning("%s: marks are not looked at, only priorities: %s", self.interface, error)

    def state(self) -> str:
        """``paced``; ``absent``: the interface or its tree is gone; ``left alone``: someone else's is there."""
        root = root_of(self.interface)
        if root is None or root.is_default:
            return ABSENT
        if root.is_ours and root.index == self._index:
            self._follow_line_rate(root.index)
            return PACED
        return ABSENT if root.is_ours else LEFT_ALONE

    def _follow_line_rate(self, index: int) -> None:
        """A link that has come up, or was negotiated anew, says another rate."""
        now_bps = self._find_line_rate_bps()
        if now_bps == self._line_rate_bps:
            return
        self._line_rate_bps = now_bps
        _with_route(lambda route: self._put_own_classes(route, index))
        _log.info("%s: line rate %.0f Mbit/s, because its link says so now", self.interface, now_bps / 1e6)

    def remove(self) -> None:
        """Undo the tree, unless someone has changed it since."""
        for entry in self._journal.pending():
            if isinstance(entry.change, QdiscChange) and entry.change.interface == self.interface:
                outcome = entry.change.undo()
                if outcome.undone:
                    self._journal.undone(entry.number, outcome.why)

    def close(self) -> None:
        """Give the socket back; the tree stays."""
        self._tc.close()

    # -- jobs' classes -----------------------------------------------------------------------------------------------

    def add_class(self, minor: int, rate_bps: float) -> None:
        """A class for a job; one that is there gets the rate.

        Raises:
            MltcpError: it cannot be made.
        """
        index = self._there()
        if minor in self.classes():
            self.change_rates({minor: rate_bps})
            return

        def add(route: Any) -> None:
            _put_class(route, index, minor, HANDLE | TOP, rate_bps, rate_bps)
            _put_queue(route, index, minor, QUEUE_PACKETS)

        _with_route(add)

    def remove_class(self, minor: int) -> None:
        """Remove a job's class, with what is queued in it; none there is no error."""
        index = self._there()
        if minor in self.classes():
            _with_route(lambda route: route.tc("del-class", index=index, handle=HANDLE | minor))

    def change_rates(self, rates_bps: Mapping[int, float]) -> None:
        """Give classes other rates, in place: no packet is lost, none is delayed by it.

        Raises:
            ClassGoneError: one of them is not there.
        """
        handles = {HANDLE | minor: rate for minor, rate in rates_bps.items()}
        self._tc.change_rates(self._there(), HANDLE | TOP, handles)

    def classes(self) -> set[int]:
        """The jobs that have a class."""
        minors = {handle & 0xFFFF for handle in class_handles(self._there()) if handle >> 16 == HANDLE >> 16}
        return {minor for minor in minors if minor >= FIRST_JOB}

    def statistics(self) -> dict[int, ClassStatistics]:
        """The counters of every class, our own two among them, by minor number."""
        index = self._there()

        def read(route: Any) -> dict[int, ClassStatistics]:
            return {each["handle"] & 0xFFFF: _statistics(each) for each in route.get_classes(index=index)}

        return _with_route(read)

    def _there(self) -> int:
        if self._index is None:
            raise MltcpError(f"{self.interface} has no tree yet")
        return self._index


def interface_rate_bps(interface: str) -> int | None:
    """How fast an interface says it is; None if it does not."""
    try:
        megabits = int(Path(f"/sys/class/net/{interface}/speed").read_text())
    except (OSError, ValueError):
        return None
    return megabits * 1_000_000 if megabits > 0 else None


def _put_class(route: Any, index: int, minor: int, parent: int, rate_bps: float, ceiling_bps: float) -> None:
    """Make a class, or give the one that is there these rates."""
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
    """A queue for every class without one: one just made, or left so by a daemon that was killed."""
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
    """What `act` returns, called with a pyroute2 socket.

    On a thread of its own: pyroute2 runs an event loop, which cannot be where another one runs already. A thread is in
    the network namespace of the one that starts it.
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
