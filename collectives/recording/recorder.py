"""The one place of a process where its job's operations are counted, cut into iterations, and told to hooks.

All process groups of a process belong to one job and so share one recorder.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic_ns

from collectives.core.notices import say_once
from collectives.group.admission import Entrance, Ticket
from collectives.group.completion import AnyWork, CompletionThread
from collectives.recording import traffic
from collectives.recording.detector import Boundary, Detection, IterationDetector, Seen
from collectives.recording.hooks import HookList
from collectives.recording.records import Iteration, IterationStart, Operation

KEPT_ITERATIONS = 64
"""So many finished iterations are remembered."""

KEPT_OPERATIONS = 1024
"""A job without recognisable iterations remembers this many operations of its last one."""

LARGEST_ITERATION = 100_000
"""Of an iteration that does not end (an evaluation after the last step) no more operations than this are kept."""

_DRAIN_S = 1.0
_FIRST_SEARCH = 6


AckedBytes = Callable[[], int | None]
"""What a group's sockets have had acknowledged since they were opened, if that is known."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupLabel:
    """A process group as its operations remember it: without keeping it, and its connections, alive.

    ``numbers`` counts its collective operations, where there is an entrance.
    """

    name: str
    rank: int
    size: int
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1), repr=False)


class Submission:
    """An operation under way; frozen into an Operation when it is looked at."""

    __slots__ = ("bytes", "completed_ns", "group", "name", "on_failure", "root", "submitted_ns", "ticket")

    def __init__(
        self,
        name: str,
        group: GroupLabel,
        nbytes: int,
        root: int,
        submitted_ns: int,
        on_failure: Callable[[], None],
        ticket: Ticket | None = None,
    ) -> None:
        self.name = name
        self.group = group
        self.bytes = nbytes
        self.root = root
        self.submitted_ns = submitted_ns
        self.on_failure = on_failure
        self.ticket = ticket
        self.completed_ns: int | None = None

    def complete(self, now_ns: int | None) -> None:
        """Take note of the time of completion; None if it failed."""
        self.completed_ns = now_ns
        if self.ticket is not None:
            self.ticket.done()
        if now_ns is None:
            self.on_failure()

    def release(self) -> None:
        """It has ended, or nobody will notice when it does: nothing is kept from others for it any more."""
        if self.ticket is not None:
            self.ticket.done()

    def record(self) -> Operation:
        """The operation as of now."""
        group = self.group
        sent = traffic.sent_bytes(self.name, self.bytes, group.rank, group.size, self.root)
        number, held_ns = (None, 0) if self.ticket is None else (self.ticket.number, self.ticket.held_ns)
        return Operation(
            self.name, group.name, self.bytes, sent, self.submitted_ns, self.completed_ns, group.size, number, held_ns
        )  # fmt: skip


@dataclass(frozen=True)
class _Finished:
    """An iteration whose last operations may still be under way."""

    number: int
    started_ns: int
    ended_ns: int
    submissions: tuple[Submission, ...]
    acked_bytes: int | None

    def record(self) -> Iteration:
        operations = tuple(submission.record() for submission in self.submissions)
        return Iteration(self.number, self.started_ns, self.ended_ns, operations, self.acked_bytes)


class Recorder:
    """Counts operations, finds iterations, and tells the hooks.

    ``submit`` is called on whichever thread asks for an operation. ``on_iteration_start`` and ``on_operation`` are
    called on that thread, before the operation is passed on, so that they can hold it back;
    ``on_iteration_end`` on the completion thread, when the iteration's operations are complete.
    """

    def __init__(self) -> None:
        self.on_iteration_start: HookList[IterationStart] = HookList("on_iteration_start")
        self.on_operation: HookList[Operation] = HookList("on_operation")
        self.on_iteration_end: HookList[Iteration] = HookList("on_iteration_end")
        self.completion = CompletionThread()
        self.entrance: Entrance | None = None
        self.after_last_group: Callable[[], None] | None = None
        self.after_iteration: Callable[[], None] | None = None
        self.keep_now: Callable[[], None] | None = None
        self._groups: dict[GroupLabel, AckedBytes] = {}
        self._acked: dict[GroupLabel, int] = {}
        self._detector = IterationDetector()
        self._lock = threading.RLock()
        self._open: list[Submission] = []
        self._before_open = 0
        self._number = 0
        self._started_ns = monotonic_ns()
        self._last: Submission | None = None
        self._finished: deque[_Finished] = deque(maxlen=KEPT_ITERATIONS)
        self._inside = False
        self._searching = False
        self._followed = 0
        self._search_every, self._unsearched = _FIRST_SEARCH, 0

    # -- groups ------------------------------------------------------------------------------------------------------

    def attach(self, group: GroupLabel, acked_bytes: AckedBytes) -> None:
        """The sockets of this group count from now on."""
        with self._lock:
            self._groups[group] = acked_bytes
            acked = acked_bytes()
            if acked is not None:
                self._acked[group] = acked

    def detach(self, group: GroupLabel) -> bool:
        """The group is going away; returns whether it was the last one. A second time does nothing."""
        with self._lock:
            self._acked.pop(group, None)
            return self._groups.pop(group, None) is not None and not self._groups

    # -- operations --------------------------------------------------------------------------------------------------

    def submit(
        self, name: str, group: GroupLabel, nbytes: int, root: int, ticket: Ticket | None = None
    ) -> Submission:
        """An operation is about to be passed on; one that has come through the entrance has a ticket."""
        detector = self._detector
        if detector.needs_operations:
            self._consult(name, nbytes)
        if self.on_operation.callbacks:
            now_ns = monotonic_ns()
            self.on_operation(Submission(name, group, nbytes, root, now_ns, self.failed).record())
        submission = Submission(name, group, nbytes, root, monotonic_ns(), self.failed, ticket)
        self._open.append(submission)
        self._last = submission
        if len(self._open) > LARGEST_ITERATION:
            self._forget_excess(LARGEST_ITERATION // 2)
        return submission

    def watch(self, submission: Submission, work: AnyWork, by_polling: bool) -> None:
        """Find out when the work completes."""
        self.completion.watch(work, submission.complete, by_polling)

    def failed(self) -> None:
        """An operation has failed: what is known so far should be kept."""
        if self.keep_now:
            self.completion.run(self.keep_now)

    def _consult(self, name: str, nbytes: int) -> None:
        """Ask the detector about an operation; a search takes long, and so is left to the completion thread."""
        detector = self._detector
        if not detector.following:
            self._unsearched += 1
            if self._unsearched >= self._search_every and not self._searching:
                self._searching = True
                self.completion.run(self._search)
            return
        count = self._before_open + len(self._open)
        if self._followed < count:
            # One that was on its way here (held back by a hook) when a search found the pattern without it.
            with self._lock:
                self._catch_up(self._followed)
            if not detector.following:
                return
        last = self._last
        since_ns = monotonic_ns() if last is None else (last.completed_ns or last.submitted_ns)
        boundaries = detector.follow((name, nbytes), count, since_ns)
        self._followed = count + 1
        if boundaries is None:
            self._search_every, self._unsearched = _FIRST_SEARCH, 0
        elif boundaries:
            with self._lock:
                self._cut(boundaries, since_ns)
            self._tell_start()

    def _search(self) -> None:
        """On the completion thread: look for a pattern in the operations since the last boundary."""
        with self._lock:
            history = self._history()
            if self._detector.needs_operations and not self._detector.following:
                self._followed = history[-1].operations + 1 if history else 0
                boundaries = self._detector.search(history)
                self._cut(boundaries, monotonic_ns())
                self._catch_up(self._followed)
                if len(self._open) > 2 * KEPT_OPERATIONS:
                    self._forget_excess(KEPT_OPERATIONS)
            if self._detector.following:
                self._search_every = _FIRST_SEARCH
            else:
                # Half as much again each time: what has no pattern costs no more than a few searches.
                self._search_every += max(1, self._search_every // 2)
            self._unsearched = 0
            self._searching = False

    def _catch_up(self, operations: int) -> None:
        """Follow a pattern through what was submitted while it was being found."""
        while self._detector.following and operations < self._before_open + len(self._open):
            submission = self._open[operations - self._before_open]
            boundaries = self._detector.follow(
                (submission.name, submission.bytes), operations, submission.submitted_ns
            )
            operations += 1
            self._cut(boundaries or (), monotonic_ns())
        self._followed = operations

    def _history(self) -> list[Seen]:
        """The operations since the last boundary, as the detector wants to see them."""
        history = []
        since_ns = None
        for place, each in enumerate(list(self._open)):
            idle_ns = 0 if since_ns is None else max(0, each.submitted_ns - since_ns)
            seen = Seen(
                (each.name, each.bytes), self._before_open + place, idle_ns, each.submitted_ns - idle_ns
            )
            history.append(seen)
            since_ns = each.completed_ns or each.submitted_ns
        return history

    def _forget_excess(self, kept: int) -> None:
        """Of the operations since the last boundary, remember only so many."""
        with self._lock:
            excess = max(0, len(self._open) - kept)
            del self._open[:excess]
            self._before_open += excess

    # -- iterations --------------------------------------------------------------------------------------------------

    def step(self, optimizer: int) -> None:
        """An outermost optimizer step has ended. Never raises: it is called from inside the user's training."""
        try:
            now_ns = monotonic_ns()
            with self._lock:
                count = self._before_open + len(self._open)
                if self._detector.needs_operations:
                    self._take_back()
                boundaries = self._detector.step(optimizer, count, now_ns)
                self._cut(boundaries, now_ns)
            if boundaries:
                self._tell_start()
        except Exception as error:
            say_once("step", f"mltcp: iterations are no longer followed: {error!r}")

    def _take_back(self) -> None:
        """The first optimizer step: what was taken for iterations before it is all part of the first one."""
        if self._finished:
            earlier = [submission for each in self._finished for submission in each.submissions]
            self._started_ns = self._finished[0].started_ns
            self._open = earlier + self._open
            self._before_open -= len(earlier)
            self._finished.clear()
        self._number = 0

    def begin(self) -> bool:
        """The user's own mark: an iteration begins; what came since the last one belongs to none.

        False, and nothing, inside another such iteration.
        """
        with self._lock:
            if self._inside:
                return False
            now_ns = monotonic_ns()
            count = self._before_open + len(self._open)
            self._detector.mark(count, now_ns)
            self._inside = True
            self._before_open = count
            self._open = []
            self._started_ns = now_ns
            self._acked_growth()
        self._tell_start()
        return True

    def end(self) -> None:
        """The user's own mark: the iteration ends."""
        with self._lock:
            self._inside = False
            self._close(len(self._open), monotonic_ns(), self._acked_growth())

    def _cut(self, boundaries: tuple[Boundary, ...], now_ns: int) -> None:
        if not boundaries:
            return
        growth = self._acked_growth()
        for boundary in boundaries:
            # What the sockets say now is what they said at the boundary only if nothing was sent since.
            known = len(boundaries) == 1 and boundary.at_ns == now_ns
            length = max(0, boundary.operations - self._before_open)
            self._close(length, boundary.at_ns, growth if known else None)

    def _close(self, length: int, ended_ns: int, acked_bytes: int | None) -> None:
        submissions = tuple(self._open[:length])
        del self._open[:length]
        self._before_open += length
        finished = _Finished(self._number, self._started_ns, ended_ns, submissions, acked_bytes)
        self._finished.append(finished)
        self._number += 1
        self._started_ns = ended_ns
        if self.on_iteration_end.callbacks:
            self.completion.run(lambda: self.on_iteration_end(finished.record()))
        if self.after_iteration:
            self.completion.run(self.after_iteration)

    def _tell_start(self) -> None:
        if self.on_iteration_start.callbacks:
            self.on_iteration_start(IterationStart(self._number, self._started_ns))

    def _acked_growth(self) -> int | None:
        """By how much all sockets' bytes_acked grew since the last call; None if that cannot be told."""
        growth, known = 0, bool(self._groups)
        for group, acked_bytes in self._groups.items():
            now, before = acked_bytes(), self._acked.pop(group, None)
            if now is not None:
                self._acked[group] = now
            if now is None or before is None:
                known = False
            else:
                growth += now - before
        return growth if known else None

    # -- what was found ----------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The job's groups are gone: count the iterations that were still in doubt."""
        with self._lock:
            now_ns = monotonic_ns()
            count = self._before_open + len(self._open)
            self._cut(self._detector.finish(self._history(), count, now_ns), now_ns)
            # Groups may be made again, and the pattern that was found at the end go on.
            self._followed = count
        if self.keep_now:
            self.completion.run(self.keep_now)

    def detection(self) -> Detection:
        """Which detector is in force, and what it has learned."""
        with self._lock:
            return self._detector.learned()

    def iterations(self) -> tuple[Iteration, ...]:
        """The last finished iterations, oldest first."""
        if not self.completion.is_current_thread():
            self.completion.drain(_DRAIN_S)
        with self._lock:
            finished = tuple(self._finished)
        return tuple(each.record() for each in finished)

    def last_iteration(self) -> Iteration | None:
        """The last finished iteration, if there is one."""
        with self._lock:
            finished = self._finished[-1] if self._finished else None
        return None if finished is None else finished.record()

    @property
    def count(self) -> int:
        """How many iterations have finished."""
        return self._number
