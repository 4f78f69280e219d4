"""Pacing on this host's interfaces: an HTB qdisc on each, a class in it for every job, and the rates in force."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from mltcp.control.aggressiveness import Aggressiveness
from mltcp.control.iteration import IterationTracker
from mltcp.core.errors import MltcpError
from mltcp.daemon.jobs.outside_changes import OutsideChanges
from mltcp.pacing.controller import PacedJob, PacingController
from mltcp.pacing.sock_diag import FlowKey, FlowOptions, SockDiag
from mltcp.pacing.tc.events import TcEvent, TcEvents
from mltcp.pacing.tc.htb_qdisc import ABSENT, LEFT_ALONE, MARK_MASK, PACED
from mltcp.pacing.tc.qdiscs import HANDLE, ROOT

_log = logging.getLogger("mltcp.daemon")

DRAIN_S = 1.0
"""The time that a class stays, at line rate, after its job has ended, for the job's last packets."""

UNKNOWN = "unknown"
"""The state of an interface whose classes could not be changed, until it has been checked."""


class PacedQdisc(Protocol):
    """What paces an interface: HtbQdisc (htb_qdisc.py), MqHtbQdisc (mq_htb_qdisc.py), or EdtPacing (edt_pacing.py)."""

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
class Cost:
    """The processor time of the control loop, and the time in which it was spent."""

    cpu_s: float
    wall_s: float

    @property
    def share(self) -> float:
        """The share of one core."""
        return self.cpu_s / self.wall_s if self.wall_s > 0 else 0.0


class Pacer:
    """Paces jobs on some interfaces.

    Args:
        qdiscs: one for each interface, installed or not (an interface may appear later).
        controller: the control loop.
        sock_diag: the source of the loop's samples and of the connections that carry a mark.
        events: the changes of traffic control by other programs, since before the qdiscs were installed.
        changes: where they are told.
        mark: of jobs' packets, with a job's number in the lower half; 0: they have none.
    """

    def __init__(
        self,
        qdiscs: Iterable[PacedQdisc],
        controller: PacingController,
        sock_diag: SockDiag,
        events: TcEvents,
        changes: OutsideChanges,
        mark: int = HANDLE,
    ) -> None:
        self.mark = mark
        self._events = events
        self._changes = changes
        self._qdiscs = {qdisc.interface: qdisc for qdisc in qdiscs}
        self._states = {qdisc.interface: qdisc.state() for qdisc in self._qdiscs.values()}
        self._controller = controller
        self._sock_diag = sock_diag
        self._retiring: dict[int, float] = {}
        self._unremoved: dict[int, set[str]] = {}
        self._cpu_s = 0.0
        self._since_s = time.monotonic()
        # Those that a killed daemon left.
        for number in {number for qdisc in self._paced() for number in qdisc.classes()}:
            self._retire(number, 5 * DRAIN_S)

    @property
    def uses_priority(self) -> bool:
        """Whether packets' priorities select classes on some interface."""
        return any(qdisc.uses_priority for qdisc in self._qdiscs.values())

    # -- jobs --------------------------------------------------------------------------------------------------------

    def add_job(self, number: int, aggressiveness: Aggressiveness, total_bytes: int, gap_ns: int) -> PacedJob:
        """Give a job a class on every interface, at the rate of the law from now on.

        Raises:
            MltcpError: a class cannot be added; none is left on other interfaces.
        """
        self._retiring.pop(number, None)
        self._unremoved.pop(number, None)
        try:
            for qdisc in self._paced():
                qdisc.add_class(number, qdisc.line_rate_bps)
        except MltcpError:
            self._retire(number, 0.0)
            self._remove_retired()
            raise
        return self._controller.add_job(number, aggressiveness, IterationTracker(total_bytes, gap_ns))

    def remove_job(self, number: int) -> None:
        """End the pacing of a job: its class passes the last packets at line rate and is removed after DRAIN_S."""
        self._controller.remove_job(number)
        self._retire(number, DRAIN_S)
        self._apply({number: 1.0})

    def _retire(self, number: int, after_s: float) -> None:
        self._retiring[number] = time.monotonic() + after_s
        self._unremoved[number] = set(self._qdiscs)

    def carried(self) -> set[int]:
        """The numbers that TCP sockets of this network namespace carry as mark or priority, or that classes still have.

        Raises:
            MltcpError: the sockets cannot be listed.
        """
        found = set(self._retiring)
        for mark, priority in self._sock_diag.classified(self.mark, MARK_MASK):
            if self.mark and mark & MARK_MASK == self.mark:
                found.add(mark & ~MARK_MASK)
            if priority & MARK_MASK == HANDLE:
                found.add(priority & ~MARK_MASK)
        return found

    def job(self, number: int) -> PacedJob:
        """The control loop's state of a job."""
        return self._controller.jobs[number]

    def add_flow(self, number: int, flow: FlowKey) -> None:
        """Add a connection to a job."""
        self._controller.add_flows(number, [flow])

    def change(self, number: int, aggressiveness: Aggressiveness) -> None:
        """Give a job another F."""
        self._controller.change(number, aggressiveness)

    def marked(self) -> Iterator[list[tuple[FlowKey, FlowOptions]]]:
        """The connections of this host that carry a job's mark, a few hundred at a time; none without marks."""
        return self._sock_diag.marked(self.mark, MARK_MASK) if self.mark else iter(())

    def number_of(self, mark: int) -> int:
        """The number of the job whose mark this is."""
        return mark & ~MARK_MASK

    def flow_options(self, flows: Sequence[FlowKey]) -> list[FlowOptions | None]:
        """The options of each connection; None for one that is closed."""
        return self._sock_diag.options(flows)

    # -- time --------------------------------------------------------------------------------------------------------

    def tick(self) -> list[FlowKey]:
        """Run one control interval; returns the flows that are closed."""
        began_s = time.thread_time()
        changed, gone = self._controller.tick(time.monotonic_ns())
        if changed:
            self._apply(changed)
        for qdisc in self._paced():
            self._change(qdisc, qdisc.rebalance)
        self._cpu_s += time.thread_time() - began_s
        return gone

    def _apply(self, shares: Mapping[int, float]) -> None:
        # First, so that no change of others is undone by ours.
        self._notice_changes()
        for qdisc in self._paced():
            rates = {number: share * qdisc.line_rate_bps for number, share in shares.items()}
            self._change(qdisc, partial(qdisc.change_rates, rates))

    def _change(self, qdisc: PacedQdisc, act: Callable[[], None]) -> None:
        try:
            act()
        except MltcpError as error:
            # The next check finds out what has become of the interface, and repairs what it can.
            _log.warning("%s: rates not changed: %s", qdisc.interface, error)
            self._states[qdisc.interface] = UNKNOWN

    def take_cost(self) -> Cost:
        """The cost of the control loop since the last call."""
        now_s = time.monotonic()
        cost = Cost(self._cpu_s, now_s - self._since_s)
        self._cpu_s, self._since_s = 0.0, now_s
        return cost

    def check(self) -> None:
        """Once a second: check every interface, and remove the classes of jobs that ended more than DRAIN_S ago."""
        self._notice_changes()
        for qdisc in self._qdiscs.values():
            self._check(qdisc)
        self._remove_retired()

    def _remove_retired(self) -> None:
        """Remove the classes of jobs whose time to drain is over, where that has not been done yet."""
        now_s = time.monotonic()
        for number in [number for number, until_s in self._retiring.items() if until_s <= now_s]:
            self._unremoved[number] = {
                name for name in self._unremoved[number] if not self._is_removed(self._qdiscs[name], number)
            }
            if not self._unremoved[number]:
                del self._retiring[number], self._unremoved[number]

    def _is_removed(self, qdisc: PacedQdisc, number: int) -> bool:
        """Remove a class; whether there is none now. That of an interface in an unknown state is removed later."""
        state = self._states[qdisc.interface]
        if state != PACED:
            return state != UNKNOWN
        try:
            qdisc.remove_class(number)
        except MltcpError as error:
            _log.warning("%s: a class was not removed: %s", qdisc.interface, error)
            self._states[qdisc.interface] = UNKNOWN
            return False
        return True

    def _notice_changes(self) -> None:
        """Notice what other programs have changed of the qdiscs since the last call."""
        events = self._events.read()
        if events is None:
            self._changes.notice(
                "changes of traffic control may have gone unnoticed: there were too many at once"
            )
            return
        for event in events:
            for qdisc in self._paced():
                if qdisc.index == event.index:
                    self._changed(qdisc, event)

    def _changed(self, qdisc: PacedQdisc, event: TcEvent) -> None:
        is_root = event.kind == "qdisc" and event.parent == ROOT
        if is_root:
            self._check(qdisc, event.by)
        elif qdisc.owns(event.handle) or qdisc.owns(event.parent):
            what = f"the {event.kind} {self._name_of(event)} was {'removed' if event.removed else 'set'}"
            if event.kind == "class":
                qdisc.left_alone.add(event.handle & 0xFFFF)
            self._changes.notice(f"{qdisc.interface}: {what} by {event.by}, and is left alone")

    def _name_of(self, event: TcEvent) -> str:
        """The handle of what was changed, and whose it is; that of a qdisc is its class."""
        handle = event.handle if event.kind == "class" else event.parent
        minor = handle & 0xFFFF
        return f"{handle >> 16:x}:{minor:x}" + (f" of job {minor}" if minor in self._controller.jobs else "")

    def _check(self, qdisc: PacedQdisc, by: str = "another program") -> None:
        before = self._states[qdisc.interface]
        try:
            now = qdisc.state()
        except MltcpError as error:
            if before != UNKNOWN:
                _log.warning("%s: its state is unknown: %s", qdisc.interface, error)
            now = UNKNOWN
        self._states[qdisc.interface] = now
        if now == ABSENT:
            if before == PACED:
                _log.warning("%s: the interface or %s is gone: jobs are unpaced", qdisc.interface, qdisc.what)
            self._try_to_install(qdisc, quiet=before == ABSENT)
        elif now == LEFT_ALONE and before != now:
            what = f"{qdisc.what} was removed or replaced by {by}, and jobs are not paced there"
            self._changes.notice(f"{qdisc.interface}: {what}: it is left alone")
        elif before == UNKNOWN and now == PACED:
            self._change(qdisc, partial(self._fill, qdisc))

    def _try_to_install(self, qdisc: PacedQdisc, quiet: bool) -> None:
        try:
            qdisc.install()
            self._fill(qdisc)
            self._states[qdisc.interface] = qdisc.state()
        except MltcpError as error:
            if not quiet:
                _log.warning("%s: not paced: %s", qdisc.interface, error)
            return
        _log.info(
            "%s: installed %s, with classes of %d jobs, because the interface is there again",
            qdisc.interface,
            qdisc.what,
            len(self._controller.jobs),
        )

    def _fill(self, qdisc: PacedQdisc) -> None:
        """Add the classes that a qdisc lacks, and set all of them to the rates in force."""
        for number, share in self._controller.rates().items():
            if number not in qdisc.left_alone:
                qdisc.add_class(number, share * qdisc.line_rate_bps)

    def states(self) -> list[tuple[str, str, int]]:
        """Each interface's name, state and line rate."""
        return [(name, self._states[name], qdisc.line_rate_bps) for name, qdisc in self._qdiscs.items()]

    def close(self) -> None:
        """Let queued packets pass at line rate; the journal restores the qdiscs."""
        self._apply(dict.fromkeys(self._controller.jobs, 1.0))
        time.sleep(0.05)
        self._events.close()
        self._sock_diag.close()

    def _paced(self) -> list[PacedQdisc]:
        return [qdisc for qdisc in self._qdiscs.values() if self._states[qdisc.interface] == PACED]
