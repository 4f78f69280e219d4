"""The paced side of the daemon: a tree on every interface, a class in each for every job, and the rates in force."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from mltcp.control.aggressiveness import Aggressiveness
from mltcp.control.iteration import IterationTracker
from mltcp.core.errors import MltcpError
from mltcp.pacing.controller import PacedJob, PacingController
from mltcp.pacing.sock_diag import FlowKey, SocketDiagnosis

_log = logging.getLogger("mltcp.daemon")

MARK = 0x6D6C0000
"""A job's number in the lower half makes the priority and the mark of its flows."""

MARK_MASK = 0xFFFF0000

DRAIN_S = 1.0
"""So long a class stays, at line rate, after its job has gone: its last packets are on their way."""


class Tree(Protocol):
    """What is on an interface: :class:`mltcp.pacing.htb.HtbTree`."""

    interface: str

    @property
    def line_rate_bps(self) -> int:
        """Of the interface."""

    def install(self) -> None:
        """Put the tree there, or take over the one that a former daemon left."""

    def add_class(self, minor: int, rate_bps: float) -> None:
        """A class for a job."""

    def remove_class(self, minor: int) -> None:
        """Remove a class, with what is queued in it."""

    def change_rates(self, rates: Mapping[int, float]) -> None:
        """Give classes other rates, in place."""

    def classes(self) -> set[int]:
        """The classes of jobs that are there."""

    def state(self) -> str:
        """``paced``, ``absent`` or ``left alone``."""

    def remove(self) -> None:
        """Undo the tree."""


@dataclass(frozen=True)
class Cost:
    """What the control loop took: processor time, and the time in which it was taken."""

    cpu_s: float
    wall_s: float

    @property
    def share(self) -> float:
        """Of one core."""
        return self.cpu_s / self.wall_s if self.wall_s > 0 else 0.0


class Pacer:
    """Paces jobs on some interfaces.

    Args:
        trees: one for each interface, installed or not (an interface may come later).
        controller: the control loop.
        diagnosis: where it gets its samples from, and who else carries a mark.
    """

    def __init__(
        self, trees: Iterable[Tree], controller: PacingController, diagnosis: SocketDiagnosis
    ) -> None:
        self._trees = {tree.interface: tree for tree in trees}
        self._states = {tree.interface: tree.state() for tree in self._trees.values()}
        self._controller = controller
        self._diagnosis = diagnosis
        self._retiring: dict[int, float] = {}
        self._cpu_s = 0.0
        self._since_s = time.monotonic()
        left = {number for tree in self._paced() for number in tree.classes()}
        self.largest_left = max(left, default=0)
        for number in left:
            self._retiring[number] = time.monotonic() + 5 * DRAIN_S

    # -- jobs --------------------------------------------------------------------------------------------------------

    def add_job(self, number: int, aggressiveness: Aggressiveness, total_bytes: int, gap_ns: int) -> PacedJob:
        """A class for a job on every interface, and a rate that follows the law.

        Raises:
            MltcpError: a class cannot be made.
        """
        self._retiring.pop(number, None)
        for tree in self._paced():
            tree.add_class(number, tree.line_rate_bps)
        return self._controller.add_job(number, aggressiveness, IterationTracker(total_bytes, gap_ns))

    def remove_job(self, number: int) -> None:
        """A job has gone: its class lets the last packets pass at line rate, and is then removed."""
        self._controller.remove_job(number)
        self._retiring[number] = time.monotonic() + DRAIN_S
        self._apply({number: 1.0})

    def job(self, number: int) -> PacedJob:
        """A job as the control loop has it."""
        return self._controller.jobs[number]

    def add_flow(self, number: int, flow: FlowKey) -> None:
        """Another connection of a job."""
        self._controller.add_flows(number, [flow])

    def change(self, number: int, aggressiveness: Aggressiveness) -> None:
        """Give a job another F."""
        self._controller.change(number, aggressiveness)

    def marked(self) -> list[tuple[FlowKey, int]]:
        """The connections of this host that carry a job's mark, each with the job's number."""
        return [(flow, mark & ~MARK_MASK) for flow, mark in self._diagnosis.marked(MARK, MARK_MASK)]

    # -- time --------------------------------------------------------------------------------------------------------

    def tick(self) -> list[FlowKey]:
        """One control interval; returns the flows that are gone."""
        began_s = time.thread_time()
        changed, gone = self._controller.tick(time.monotonic_ns())
        if changed:
            self._apply(changed)
        self._cpu_s += time.thread_time() - began_s
        return gone

    def _apply(self, shares: Mapping[int, float]) -> None:
        for tree in self._paced():
            try:
                tree.change_rates({number: share * tree.line_rate_bps for number, share in shares.items()})
            except MltcpError as error:
                # The next check of the interface finds out what has become of it, and repairs what can be.
                _log.warning("%s: rates not changed: %s", tree.interface, error)
                self._states[tree.interface] = "unknown"

    def cost(self) -> Cost:
        """What the control loop took since the last call."""
        now_s = time.monotonic()
        cost = Cost(self._cpu_s, now_s - self._since_s)
        self._cpu_s, self._since_s = 0.0, now_s
        return cost

    def check(self) -> None:
        """Once a second: remove classes whose time has come, and see what has become of the interfaces."""
        for tree in self._trees.values():
            self._check(tree)
        now_s = time.monotonic()
        for number in [number for number, until_s in self._retiring.items() if until_s <= now_s]:
            del self._retiring[number]
            self._each(lambda tree, number=number: tree.remove_class(number))  # type: ignore[misc]

    def _check(self, tree: Tree) -> None:
        before, now = self._states[tree.interface], tree.state()
        self._states[tree.interface] = now
        if now == "absent":
            if before == "paced":
                _log.warning("%s: the interface or its tree is gone; its jobs run unpaced", tree.interface)
            self._try_to_install(tree, quiet=before == "absent")
        elif now == "left alone" and before != now:
            _log.warning("%s: someone has changed its tree: it is left alone from now on", tree.interface)
        elif before == "unknown" and now == "paced":
            self._fill(tree)

    def _try_to_install(self, tree: Tree, quiet: bool) -> None:
        try:
            tree.install()
            self._fill(tree)
        except MltcpError as error:
            if not quiet:
                _log.warning("%s: not paced: %s", tree.interface, error)
            return
        self._states[tree.interface] = tree.state()
        _log.info(
            "%s: is there: its tree is installed, %d jobs in it", tree.interface, len(self._controller.jobs)
        )

    def _fill(self, tree: Tree) -> None:
        """Give a tree the classes that it lacks, and all of them the rates in force."""
        there = tree.classes()
        rates = {number: share * tree.line_rate_bps for number, share in self._controller.rates().items()}
        for number, rate_bps in rates.items():
            if number not in there:
                tree.add_class(number, rate_bps)
        tree.change_rates(rates)

    def states(self) -> list[tuple[str, str, int]]:
        """Each interface's name, state and line rate."""
        return [(name, self._states[name], tree.line_rate_bps) for name, tree in self._trees.items()]

    def close(self) -> None:
        """Let what is queued pass at line rate; the trees are undone by the journal."""
        self._apply(dict.fromkeys(self._controller.jobs, 1.0))
        time.sleep(0.05)
        self._diagnosis.close()

    def _paced(self) -> list[Tree]:
        return [tree for tree in self._trees.values() if self._states[tree.interface] == "paced"]

    def _each(self, act: Callable[[Tree], None]) -> None:
        for tree in self._paced():
            try:
                act(tree)
            except MltcpError as error:
                _log.warning("%s: %s", tree.interface, error)
