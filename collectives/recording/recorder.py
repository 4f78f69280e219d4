"""Records a job's operations on this rank, divides them into iterations, and calls the hooks.

All process groups of a process belong to one job and so share one recorder.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns, thread_time_ns
from typing import cast

from collectives.core.notices import warn_once
from collectives.recording.acked_bytes import AckedBytes, AckedGrowth
from collectives.recording.completion import AnyWork, CompletionThread
from collectives.recording.detection.detector import Detection, IterationDetector
from collectives.recording.detection.repetition import Boundary, PastOperation
from collectives.recording.operation import AwaitedOperation, GroupLabel, InFlightOperation, record_of
from collectives.recording.records import HookList, Iteration, IterationStart, Operation

KEPT_ITERATIONS = 64
"""Number of finished iterations that are kept."""

KEPT_OPERATIONS = 1024
"""Number of operations that are kept for a job without recognisable iterations."""

LARGEST_ITERATION = 100_000
"""Number of operations that are kept of an iteration that does not end (an evaluation after the last step)."""

_DRAIN_S = 1.0
_FIRST_SEARCH = 6
_LARGEST_SEARCH_SHARE = 0.02
_LONGEST_SEARCH_PAUSE_NS = 500_000_000


def _do_nothing() -> None:
    pass


@dataclass
class _Finished:
    """An iteration that has ended; its last operations may still be in flight, its sockets still be read."""

    number: int
    started_ns: int
    ended_ns: int
    operations: tuple[InFlightOperation | AwaitedOperation, ...]
    acked_bytes: int | None = None

    def record(self) -> Iteration:
        operations = tuple(map(record_of, self.operations))
        return Iteration(self.number, self.started_ns, self.ended_ns, operations, self.acked_bytes)


class Recorder:
    """Records operations, finds iterations, and calls the hooks.

    ``submit`` is called on the thread that issues an operation. ``on_iteration_start`` and ``on_operation`` hooks are
    called on that thread before the operation is passed on, so that they can hold it back; ``on_iteration_end`` hooks
    on the completion thread, when the iteration's operations are complete.

    Args:
        after_iteration: is called when an iteration has ended, on the thread that found its end; must be quick.
        after_last_group: is called when the last process group has been destroyed.
        save: is called when an operation has failed, and when the last group has been destroyed; must be quick.

    Attributes:
        attends: whether something may have to be done before an operation is passed on, so that it must be submitted.
    """

    def __init__(
        self,
        after_iteration: Callable[[], object] = _do_nothing,
        after_last_group: Callable[[], object] = _do_nothing,
        save: Callable[[], object] = _do_nothing,
    ) -> None:
        self.on_iteration_start: HookList[IterationStart] = HookList("on_iteration_start")
        self.on_operation: HookList[Operation] = HookList("on_operation", self._attend_or_not)
        self.on_iteration_end: HookList[Iteration] = HookList("on_iteration_end")
        self.completion = CompletionThread()
        self._after_iteration = after_iteration
        self._after_last_group = after_last_group
        self._save = save
        self._acked = AckedGrowth()
        self._detector = IterationDetector()
        self.attends = True
        self._lock = threading.RLock()
        self._open: list[InFlightOperation | AwaitedOperation] = []
        self._before_open = 0
        self._number = 0
        self._started_ns = monotonic_ns()
        self._last: InFlightOperation | None = None
        self._finished: deque[_Finished] = deque(maxlen=KEPT_ITERATIONS)
        self._inside = False
        self._searching = False
        self._followed = 0
        self._search_every, self._unsearched = _FIRST_SEARCH, 0
        self._next_search_ns = 0

    # -- groups --------------------------------------------------------------------------------------------------------

    def attach(self, group: GroupLabel, acked_bytes: AckedBytes) -> None:
        """Count the acknowledged bytes of this group's sockets from now on."""
        with self._lock:
            self._acked.attach(group, acked_bytes)

    def detach(self, group: GroupLabel) -> bool:
        """Stop counting the group's sockets; returns whether it was the last one. A second call does nothing."""
        with self._lock:
            return self._acked.detach(group)

    def leave(self, group: GroupLabel) -> None:
        """The group is being destroyed; with the last one, count the iterations that were still in doubt."""
        if self.detach(group):
            self.finish()
            self._after_last_group()

    # -- operations ----------------------------------------------------------------------------------------------------

    def submit(self, operation: InFlightOperation) -> None:
        """Record an operation that is about to be passed on."""
        if self._detector.needs_operations:
            self._consult(operation.name, operation.bytes)
        if self.on_operation.callbacks:
            operation.submitted_ns = monotonic_ns()
            self.on_operation(operation.record())
        operation.submitted_ns = monotonic_ns()
        self._last = operation
        self.add(operation)

    def add(self, operation: InFlightOperation | AwaitedOperation) -> None:
        """Record an operation that needs no preparation; from outside only while `attends` is not set."""
        # Without a lock: the list is only ever changed in place, so that no operation is appended to a former one.
        self._open.append(operation)
        if len(self._open) > LARGEST_ITERATION:
            self._forget_excess(LARGEST_ITERATION // 2)

    def _attend_or_not(self) -> None:
        """Note whether there is anything to do, so that it takes one look for each operation."""
        self.attends = self._detector.needs_operations or bool(self.on_operation.callbacks)

    def watch(self, operation: InFlightOperation, work: AnyWork, by_polling: bool) -> None:
        """Note on the completion thread when the work completes."""
        self.completion.watch(work, operation.complete, by_polling)

    def failed(self) -> None:
        """An operation has failed: save the profile, since the job may end now."""
        self._save()

    def _consult(self, name: str, nbytes: int) -> None:
        """Ask the detector about an operation; searches take long, and so run on the completion thread."""
        if not self._detector.following:
            self._unsearched += 1
            if self._unsearched >= self._search_every and not self._searching:
                self._search_soon()
            return
        with self._lock:
            begins = self._follow(name, nbytes)
        if begins:
            self._tell_start()

    def _follow(self, name: str, nbytes: int) -> bool:
        """Compare an operation with the pattern; whether an iteration begins with it."""
        detector = self._detector
        # Beside this operation, those of other threads that are about to be added.
        count = max(self._before_open + len(self._open), self._followed)
        if self._followed < count:
            # An operation was held back by a hook while a search found the pattern without it.
            self._catch_up(self._followed)
        if not detector.following:
            return False
        last = self._last
        since_ns = monotonic_ns() if last is None else (last.completed_ns or last.submitted_ns)
        boundaries = detector.follow((name, nbytes), count, since_ns)
        self._followed = count + 1
        if boundaries is None:
            self._search_every, self._unsearched = _FIRST_SEARCH, 0
        elif boundaries:
            # Read here: when the completion thread has read, this operation would be on its way.
            self._cut(boundaries, since_ns, read=self._acked.read)
        return bool(boundaries)

    def _search_soon(self) -> None:
        """Have the completion thread search, unless that would take too large a share of a busy loop's time."""
        if monotonic_ns() >= self._next_search_ns:
            self._searching = True
            self.completion.run(self._search)

    def _search(self) -> None:
        """Look for a pattern in the operations since the last boundary; runs on the completion thread."""
        began_ns = thread_time_ns()
        with self._lock:
            if self._detector.needs_operations and not self._detector.following:
                history = self._history()
                self._followed = history[-1].operations + 1 if history else 0
                boundaries = self._detector.search(history)
                self._cut(boundaries, monotonic_ns())
                self._catch_up(self._followed)
                if len(self._open) > 2 * KEPT_OPERATIONS:
                    self._forget_excess(KEPT_OPERATIONS)
            if self._detector.following:
                self._search_every = _FIRST_SEARCH
            else:
                # The interval grows by half each time, so that a job without a pattern costs few searches.
                self._search_every += max(1, self._search_every // 2)
            self._unsearched = 0
            took_ns = thread_time_ns() - began_ns
            pause_ns = min(int(took_ns / _LARGEST_SEARCH_SHARE), _LONGEST_SEARCH_PAUSE_NS)
            self._next_search_ns = monotonic_ns() + pause_ns
            self._searching = False

    def _catch_up(self, operations: int) -> None:
        """Follow a pattern through the operations that were submitted while it was being found."""
        while self._detector.following and operations < self._before_open + len(self._open):
            each = self._submitted[operations - self._before_open]
            boundaries = self._detector.follow((each.name, each.bytes), operations, each.submitted_ns)
            operations += 1
            self._cut(boundaries or (), monotonic_ns())
        self._followed = operations

    @property
    def _submitted(self) -> list[InFlightOperation]:
        """The operations since the last boundary, while the detector needs them: none is added unsubmitted then."""
        return cast("list[InFlightOperation]", self._open)

    def _history(self) -> list[PastOperation]:
        """The operations since the last boundary, in the form that the detector takes."""
        history = []
        since_ns = None
        for place, each in enumerate(list(self._submitted)):
            idle_ns = 0 if since_ns is None else max(0, each.submitted_ns - since_ns)
            seen = PastOperation(
                (each.name, each.bytes), self._before_open + place, idle_ns, each.submitted_ns - idle_ns
            )
            history.append(seen)
            since_ns = each.completed_ns or each.submitted_ns
        return history

    def _forget_excess(self, kept: int) -> None:
        """Drop all but the last `kept` operations since the last boundary."""
        with self._lock:
            self._forget(max(0, len(self._open) - kept))

    def _forget(self, excess: int) -> None:
        """Drop the first operations since the last boundary."""
        del self._open[:excess]
        self._before_open += excess

    # -- iterations ----------------------------------------------------------------------------------------------------

    def step(self, optimizer: int) -> None:
        """An outermost optimizer step has ended. Never raises: it is called from within the training loop."""
        try:
            now_ns = monotonic_ns()
            with self._lock:
                count = self._before_open + len(self._open)
                if self._detector.needs_operations:
                    self._take_back()
                boundaries = self._detector.step(optimizer, count, now_ns)
                self._attend_or_not()
                self._cut(boundaries, now_ns)
            if boundaries:
                self._tell_start()
        except Exception as error:
            warn_once("step", f"mltcp: iterations are no longer followed: {error!r}")

    def _take_back(self) -> None:
        """At the first optimizer step, merge all iterations found before it into the first one."""
        if self._finished:
            earlier = [operation for each in self._finished for operation in each.operations]
            self._started_ns = self._finished[0].started_ns
            self._open[:0] = earlier
            self._before_open -= len(earlier)
            self._finished.clear()
        self._number = 0

    def begin(self) -> bool:
        """Begin an explicitly marked iteration; operations since the last one belong to no iteration.

        Does nothing and returns False inside another marked iteration.
        """
        with self._lock:
            if self._inside:
                return False
            now_ns = monotonic_ns()
            excess = len(self._open)
            self._detector.mark(self._before_open + excess, now_ns)
            self._attend_or_not()
            self._inside = True
            self._forget(excess)
            self._started_ns = now_ns
            self._read_soon(None)
        self._tell_start()
        return True

    def end(self) -> None:
        """End an explicitly marked iteration."""
        with self._lock:
            self._inside = False
            finished = self._close(len(self._open), monotonic_ns())
            self._read_soon(finished)
            self._announce(finished)

    def _cut(
        self, boundaries: tuple[Boundary, ...], now_ns: int, read: Callable[[], int | None] | None = None
    ) -> None:
        """Close the iterations that end at these boundaries; the sockets are read with `read`, or else soon."""
        if not boundaries:
            return
        finished = [
            self._close(max(0, boundary.operations - self._before_open), boundary.at_ns)
            for boundary in boundaries
        ]
        # The sockets' counters are those at the boundary only if nothing was sent since.
        ends_now = finished[0] if len(finished) == 1 and finished[0].ended_ns == now_ns else None
        if read is None:
            self._read_soon(ends_now)
        else:
            growth = read()
            if ends_now is not None:
                ends_now.acked_bytes = growth
        for each in finished:
            self._announce(each)

    def _read_soon(self, ended: _Finished | None) -> None:
        """Have the completion thread read the sockets, for an iteration that ends now or the beginning of the next.

        It takes microseconds a socket, which the training thread does not wait for.
        """
        if not self._acked.has_sockets:
            return
        count = self._before_open + len(self._open)
        before = self._finished[-2] if ended is not None and len(self._finished) > 1 else None
        self.completion.run(lambda: self._read(ended, before, count))

    def _read(self, ended: _Finished | None, before: _Finished | None, count: int) -> None:
        """On the completion thread: read the sockets, unless an operation has been submitted since."""
        acked = self._acked
        if ended is not None and ended.operations and _submitted_ns(ended.operations[0]) < acked.read_ns:
            # An operation that its caller waits for was under way, which is known only now.
            acked.forget()
            if before is not None:
                before.acked_bytes = None
        growth = acked.read(lambda: self._before_open + len(self._open) == count)
        if ended is not None:
            ended.acked_bytes = growth

    def _close(self, length: int, ended_ns: int) -> _Finished:
        operations = tuple(self._open[:length])
        self._forget(len(operations))
        finished = _Finished(self._number, self._started_ns, ended_ns, operations)
        self._finished.append(finished)
        self._number += 1
        self._started_ns = ended_ns
        return finished

    def _announce(self, finished: _Finished) -> None:
        """Have those told that an iteration has ended, once its sockets have been read."""
        if self.on_iteration_end.callbacks:
            self.completion.run(lambda: self.on_iteration_end(finished.record()))
        self._after_iteration()

    def _tell_start(self) -> None:
        if self.on_iteration_start.callbacks:
            self.on_iteration_start(IterationStart(self._number, self._started_ns))

    # -- results -------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Count the iterations that were still in doubt; called when the job's groups are gone."""
        with self._lock:
            now_ns = monotonic_ns()
            count = self._before_open + len(self._open)
            history = self._history() if self._detector.needs_operations else []
            self._cut(self._detector.finish(history, count, now_ns), now_ns)
            # Groups may be made again, and the pattern that was found at the end may continue.
            self._followed = count
        self._save()

    def detection(self) -> Detection:
        """The detector in use, and the parameters it has learned."""
        with self._lock:
            return self._detector.learned()

    def iterations(self) -> tuple[Iteration, ...]:
        """The last finished iterations, oldest first."""
        if not self.completion.is_current_thread():
            self.completion.drain(_DRAIN_S)
        with self._lock:
            finished = tuple(self._finished)
        return tuple(each.record() for each in finished)

    def since_last_iteration(self) -> tuple[Operation, ...]:
        """The operations that belong to no finished iteration yet, as far as they are kept."""
        with self._lock:
            operations = tuple(self._open)
        return tuple(map(record_of, operations))

    def last_iteration(self) -> Iteration | None:
        """The last finished iteration, if there is one."""
        with self._lock:
            finished = self._finished[-1] if self._finished else None
        return None if finished is None else finished.record()

    @property
    def knows_iterations(self) -> bool:
        """Whether the program itself says where iterations end: it marks them, or an optimizer steps."""
        return not self._detector.needs_operations

    @property
    def count(self) -> int:
        """Number of finished iterations."""
        return self._number


def _submitted_ns(operation: InFlightOperation | AwaitedOperation) -> int:
    return operation[4] if isinstance(operation, tuple) else operation.submitted_ns
