"""The agent of a job, on its rank 0: reports to the placement service, and has all ranks apply its delays.

One thread handles every event: finished iterations, decisions, outcomes of delays. Another thread reads the stream of
decisions. A service that is not reachable is retried; the job is not affected.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue

from torch.distributed import DistError

from collectives.agent.announcements import (
    Announcer,
    Applied,
    IterationReport,
    PlacementService,
    Report,
    ServiceStream,
    StreamError,
)
from collectives.agent.iteration_starts import IterationStarts
from collectives.agent.learned_profile import LearnedProfile, began_to_send_ns
from collectives.agent.time_shift import LATE, LONGEST_NS, ServiceClock, TimeShifts
from collectives.core.notices import warn_once
from collectives.recording.records import Iteration
from mltcp.core.delay import Decision, Delay, Detach
from mltcp.core.one_line import one_line

_log = logging.getLogger("mltcp")

RETRY_S, LONGEST_RETRY_S = 1.0, 10.0
"""First and longest interval between attempts to reach the service; the interval doubles in between."""

REPORT_EVERY_S = 0.1
"""At most one iteration is reported in this time."""

WAIT_FOR_RANKS_S = 2.0
"""How long after a delay the acknowledgements of the other ranks are waited for."""

TIMED_FOR = 100
"""A job follows a timetable for this many iterations: the jobs that it was made for may be gone by then."""

ESTIMATED_WITHIN = 0.25
"""By how much of a period the beginning of an iteration may come sooner or later than was estimated a few before."""

_MOST_QUEUED = 256
_JOIN_S = 2.0


@dataclass
class _Pending:
    """A delay that the ranks are applying.

    Attributes:
        delay: with the operation that it was assigned to.
        iteration: the one in which that operation was found.
        outcome_s: when this rank reported its outcome; 0 before that.
        late: whether this rank received it too late.
    """

    delay: Delay
    iteration: int | None = None
    outcome_s: float = 0.0
    late: bool = False


@dataclass(frozen=True)
class _Timed:
    """A delay with a period, and the first iteration that was delayed by it."""

    delay: Delay
    iteration: int


class Agent:
    """The agent of a job, from its first process group to its last.

    Args:
        service: the placement service.
        job: the job's name at the service.
        ranks: number of ranks of the job.
        shifts: the pending delays of this rank; their outcomes must be passed to `outcome`.
        announcer: announces delays to the other ranks.
        clock: translates between the service's clock and CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        service: PlacementService,
        job: str,
        ranks: int,
        shifts: TimeShifts,
        announcer: Announcer,
        clock: ServiceClock | None = None,
    ) -> None:
        self._service = service
        self._job, self._ranks = job, ranks
        self._shifts = shifts
        self._announcer = announcer
        self._clock = clock or ServiceClock()
        self._starts = IterationStarts(ranks)
        self._profile = LearnedProfile()
        self._events: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._stream: ServiceStream | None = None
        self._next_try_s, self._retry_s = 0.0, RETRY_S
        self._reported_s = 0.0
        self._pending: _Pending | None = None
        self._timed: _Timed | None = None
        self._waiting: list[Delay] = []
        self._detached = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="mltcp-placement", daemon=True)
        self._thread.start()

    # -- called from other threads -------------------------------------------------------------------------------------

    def iteration_ended(self, iteration: Iteration) -> None:
        """An iteration of this rank has finished."""
        if self._events.qsize() < _MOST_QUEUED:
            self._events.put(lambda: self._on_iteration(iteration))

    def outcome(self, delay: Delay, outcome: str) -> None:
        """A delay was applied on this rank, or was received too late."""
        self._events.put(lambda: self._on_outcome(delay, outcome))

    def close(self) -> None:
        """End the stream: the service drops the job's shift after its lease, unless the job attaches again."""
        self._closing = True
        self._events.put(lambda: None)
        self._thread.join(_JOIN_S)
        self._announcer.close()

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            self._attach()
            timeout_s = self._seconds_to_next_try() if self._stream is None else None
            with suppress(Empty):
                self._handle(self._events.get(timeout=timeout_s))
        self._end_stream()

    def _handle(self, event: Callable[[], object]) -> None:
        try:
            event()
        except StreamError as error:
            self._end_stream()
            _log.debug("mltcp: the placement service: %s", error)
        except DistError as error:
            _log.debug("mltcp: the job's store: %s", error)
        except Exception:
            _log.exception("mltcp: the agent of the placement service failed; the job continues")

    # -- the stream ----------------------------------------------------------------------------------------------------

    def _seconds_to_next_try(self) -> float | None:
        return None if self._detached else max(0.0, self._next_try_s - time.monotonic())

    def _attach(self) -> None:
        """Open a stream if there is none and the next attempt is due."""
        if self._stream is not None or self._detached or time.monotonic() < self._next_try_s:
            return
        self._next_try_s = time.monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)
        try:
            stream = self._service.open(self._job, self._ranks)
            self._stream = stream
            # The service may have moved to another host, with another clock.
            self._clock.renew(stream.clock_ns)
            if self._profile.sent is not None:
                stream.send(self._profile.sent.report)
            self._retry_s = RETRY_S
        except StreamError as error:
            self._end_stream()
            warn_once("placement", f"mltcp: {error}; the job runs without the placement service")
            return
        threading.Thread(target=self._read, args=(stream,), name="mltcp-decisions", daemon=True).start()

    def _read(self, stream: ServiceStream) -> None:
        """Queue the decisions of a stream, and its end, as events; runs on a thread of its own."""
        try:
            for decision in stream.decisions():
                self._queue_decision(stream, decision)
        except StreamError as error:
            if not self._closing:
                warn_once("placement", f"mltcp: {error}; the job runs without the placement service")
        self._queue_decision(stream, None)

    def _queue_decision(self, stream: ServiceStream, decision: Decision | None) -> None:
        self._events.put(lambda: self._on_decision(stream, decision))

    def _end_stream(self) -> None:
        stream, self._stream = self._stream, None
        self._drop_timetable()
        if stream is not None:
            stream.close()

    def _send(self, report: Report) -> None:
        if self._stream is not None:
            self._stream.send(report)

    def _on_decision(self, stream: ServiceStream, decision: Decision | None) -> None:
        """Handle a decision, or with None the end of the stream; those of an earlier stream are ignored."""
        if stream is not self._stream:
            return
        if decision is None:
            self._end_stream()
        elif isinstance(decision, Detach):
            _log.info("mltcp: the placement service has detached this job: %s", one_line(decision.reason))
            self._detached = True
            self._end_stream()
        else:
            self._waiting.append(decision)
            self._start_next_delay()

    # -- iterations ----------------------------------------------------------------------------------------------------

    def _on_iteration(self, iteration: Iteration) -> None:
        self._starts.add(iteration)
        self._find_delayed_operation(iteration)
        profile = self._profile.add(iteration)
        if profile is not None:
            self._send(profile)
        self._report(iteration)
        self._finish_pending()
        self._start_next_delay()
        self._update_timetable(iteration.number)

    def _report(self, iteration: Iteration) -> None:
        began_ns, now_s = began_to_send_ns(iteration), time.monotonic()
        if began_ns is None and self._ranks == 1:  # it sends nothing, and has a duration all the same
            began_ns = iteration.started_ns
        if self._stream is None or began_ns is None or now_s - self._reported_s < REPORT_EVERY_S:
            return
        self._reported_s = now_s
        if self._clock.is_due:
            self._clock.renew(self._stream.clock_ns)
        duration_ns = max(0, iteration.ended_ns - iteration.started_ns - iteration.held_ns)
        self._send(IterationReport(iteration.number, self._clock.at(began_ns), duration_ns))

    # -- delays --------------------------------------------------------------------------------------------------------

    def _start_next_delay(self) -> None:
        """Assign the next delay to an operation and announce it, unless another one is pending."""
        if self._pending is not None or not self._waiting:
            return
        group = self._starts.group
        reached = 0 if group is None else self._shifts.reached(group)
        start = self._starts.next_start(reached, time.monotonic_ns())
        if start is None:
            return
        decided = self._waiting.pop(0)
        wait_ns = max(0, min(decided.wait_ns(self._clock.at(start.begins_ns)), LONGEST_NS))
        delay = decided.before(start.group, start.number, wait_ns)
        self._pending = _Pending(delay)
        self._drop_timetable()
        # When the operation comes is an estimate. This rank waits until the time itself; the others wait for it in the
        # operation, and by themselves for less, so that none of them is what the operation waits for.
        less_ns = round(ESTIMATED_WITHIN * decided.period_ns)
        self._announcer.announce(replace(delay, period_ns=0, delay_ns=max(0, wait_ns - less_ns)))
        self._shifts.add(replace(delay, at_ns=self._clock.monotonic_at(decided.at_ns)))
        _log.info(
            "mltcp: all ranks wait for about %.1f ms before operation %d: %s",
            wait_ns / 1e6, delay.number, delay.reason,
        )  # fmt: skip

    def _on_outcome(self, delay: Delay, outcome: str) -> None:
        if self._pending is not None and self._pending.delay.sequence == delay.sequence:
            self._pending.outcome_s = time.monotonic()
            self._pending.late = outcome == LATE

    def _find_delayed_operation(self, iteration: Iteration) -> None:
        """Note the iteration that contains the operation of the pending delay."""
        pending = self._pending
        if pending is None or pending.iteration is not None:
            return
        numbers = [each.number for each in iteration.operations if each.group == pending.delay.group]
        if any(number is not None and number >= pending.delay.number for number in numbers):
            pending.iteration = iteration.number

    def _finish_pending(self) -> None:
        """Report the pending delay as applied, once all ranks have acknowledged it or had time to."""
        pending = self._pending
        if pending is None or pending.iteration is None or not pending.outcome_s or self._stream is None:
            return
        sequence = pending.delay.sequence
        if (
            not self._announcer.all_acknowledged(sequence)
            and time.monotonic() - pending.outcome_s < WAIT_FOR_RANKS_S
        ):
            return
        late = (*([0] if pending.late else []), *self._announcer.late_ranks(sequence))
        if late:
            _log.info("mltcp: ranks that received a delay too late: %s", ", ".join(map(str, late)))
        self._announcer.forget(sequence)
        self._pending = None
        self._timed = _Timed(pending.delay, pending.iteration) if pending.delay.period_ns > 0 else None
        self._send(Applied(sequence, pending.iteration, late))

    def _drop_timetable(self) -> None:
        self._timed = None
        self._shifts.follow_timetable(None)

    def _update_timetable(self, number: int) -> None:
        """After iteration `number`, have the next ones begin no earlier than the last delay's times.

        Only this rank follows the timetable: the others wait for it in the operation.
        """
        timed = self._timed
        timetable = None
        if timed is not None and number < timed.iteration + TIMED_FOR:
            at_ns = self._clock.monotonic_at(timed.delay.at_ns)
            timetable = self._starts.timetable(at_ns, timed.delay.period_ns)
        self._shifts.follow_timetable(timetable)
