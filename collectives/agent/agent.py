"""The agent of a job, on its rank 0: reports to the placement service, and sees to it that all ranks keep its delays.

Everything happens on one thread, which waits for what comes: finished iterations, decisions, outcomes. The stream of
decisions is read by another. A service that is not there is tried again; the job does not notice.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from torch.distributed import DistError

from collectives.agent.agent_protocol import (
    Applied,
    Conversation,
    ConversationError,
    Decision,
    Delay,
    Detach,
    IterationReport,
    Report,
    Service,
)
from collectives.agent.announcements import Announcer
from collectives.agent.iteration_starts import IterationStarts
from collectives.agent.learned_profile import LearnedProfile, began_to_send_ns
from collectives.agent.service_clock import ServiceClock
from collectives.agent.time_shift import LATE, LONGEST_NS, Hold, TimeShifts
from collectives.core.notices import say_once
from collectives.recording.records import Iteration

_log = logging.getLogger("mltcp")

RETRY_S, LONGEST_RETRY_S = 1.0, 10.0
"""A service that is not there is tried again after so long, then twice as long, and so on up to the longest."""

REPORT_EVERY_S = 0.1
"""The service hears of at most one iteration in this time."""

WAIT_FOR_RANKS_S = 2.0
"""So long after a hold the other ranks are listened for."""

TIMED_FOR = 100
"""For so many iterations a job keeps to the time of a delay: the jobs that it was meant for may be gone."""

_MOST_WAITING = 256
_LEAVE_S = 2.0


@dataclass(frozen=True)
class _Heard:
    """Something from the service: a decision, or that the conversation has ended (None)."""

    conversation: Conversation
    decision: Decision | None


@dataclass(frozen=True)
class _Timed:
    """A delay to a time, that was kept first in this iteration."""

    delay: Delay
    iteration: int


@dataclass
class _Pending:
    """A delay that is being kept, by a hold."""

    delay: Delay
    hold: Hold
    iteration: int | None = None
    kept_s: float = 0.0
    late: bool = False


class Agent:
    """Lives from the first process group to the last.

    Args:
        service: the placement service.
        job: the job's name there.
        ranks: of the job.
        shifts: of this rank; what becomes of its holds is to be passed to `outcome`.
        announcer: that tells the other ranks.
        clock: that the service's time is told by.
    """

    def __init__(
        self,
        service: Service,
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
        self._inbox: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._conversation: Conversation | None = None
        self._next_try_s, self._retry_s = 0.0, RETRY_S
        self._reported_s = 0.0
        self._pending: _Pending | None = None
        self._timed: _Timed | None = None
        self._waiting: list[Delay] = []
        self._detached = False
        self._closing = False
        self._thread = threading.Thread(target=self._live, name="mltcp-placement", daemon=True)
        self._thread.start()

    # -- from other threads ------------------------------------------------------------------------------------------

    def iteration_ended(self, iteration: Iteration) -> None:
        """An iteration of this rank has finished."""
        if self._inbox.qsize() < _MOST_WAITING:
            self._inbox.put(lambda: self._on_iteration(iteration))

    def outcome(self, hold: Hold, outcome: str) -> None:
        """What has become of a hold on this rank."""
        self._inbox.put(lambda: self._on_outcome(hold, outcome))

    def close(self) -> None:
        """Leave: the service gives the job's shift back after its lease, unless the job comes back."""
        self._closing = True
        self._inbox.put(lambda: None)
        self._thread.join(_LEAVE_S)
        self._announcer.close()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        while not self._closing:
            self._attach()
            timeout_s = self._seconds_to_next_try() if self._conversation is None else None
            with suppress(Empty):
                self._do(self._inbox.get(timeout=timeout_s))
        self._end_conversation()

    def _do(self, task: Callable[[], object]) -> None:
        try:
            task()
        except ConversationError as error:
            self._end_conversation()
            _log.debug("mltcp: the placement service: %s", error)
        except DistError as error:
            _log.debug("mltcp: the job's store: %s", error)
        except Exception:
            _log.exception("mltcp: the placement service's agent failed; the job goes on")

    # -- the conversation --------------------------------------------------------------------------------------------

    def _seconds_to_next_try(self) -> float | None:
        return None if self._detached else max(0.0, self._next_try_s - time.monotonic())

    def _attach(self) -> None:
        """Be in conversation with the service, if it is there and it is time to try."""
        if self._conversation is not None or self._detached or time.monotonic() < self._next_try_s:
            return
        self._next_try_s = time.monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)
        try:
            conversation = self._service.open(self._job, self._ranks)
            self._conversation = conversation
            # The service may be another one than before, on another host.
            self._clock.renew(conversation.clock_ns)
            if self._profile.sent is not None:
                conversation.send(self._profile.sent.report)
            self._retry_s = RETRY_S
        except ConversationError as error:
            self._end_conversation()
            say_once("placement", f"mltcp: {error}; the job goes on without the placement service")
            return
        reader = threading.Thread(
            target=self._read, args=(conversation,), name="mltcp-decisions", daemon=True
        )
        reader.start()

    def _read(self, conversation: Conversation) -> None:
        """On a thread: pass on what the service decides."""
        try:
            for decision in conversation.decisions():
                self._inbox.put(self._task(conversation, decision))
        except ConversationError as error:
            if not self._closing:
                say_once("placement", f"mltcp: {error}; the job goes on without the placement service")
        self._inbox.put(self._task(conversation, None))

    def _task(self, conversation: Conversation, decision: Decision | None) -> Callable[[], object]:
        return lambda: self._on_heard(_Heard(conversation, decision))

    def _end_conversation(self) -> None:
        conversation, self._conversation = self._conversation, None
        self._keep_no_time()
        if conversation is not None:
            conversation.close()

    def _send(self, report: Report) -> None:
        if self._conversation is not None:
            self._conversation.send(report)

    def _on_heard(self, heard: _Heard) -> None:
        if heard.conversation is not self._conversation:
            return
        decision = heard.decision
        if decision is None:
            self._end_conversation()
        elif isinstance(decision, Detach):
            _log.info("mltcp: the placement service is done with this job: %s", decision.reason)
            self._detached = True
            self._end_conversation()
        else:
            self._waiting.append(decision)
            self._start_waiting()

    # -- iterations --------------------------------------------------------------------------------------------------

    def _on_iteration(self, iteration: Iteration) -> None:
        self._starts.add(iteration)
        self._look_for_hold(iteration)
        profile = self._profile.add(iteration)
        if profile is not None:
            self._send(profile)
        self._report(iteration)
        self._finish_pending()
        self._start_waiting()
        self._keep_time(iteration.number)

    def _report(self, iteration: Iteration) -> None:
        began_ns, now_s = began_to_send_ns(iteration), time.monotonic()
        if self._conversation is None or began_ns is None or now_s - self._reported_s < REPORT_EVERY_S:
            return
        self._reported_s = now_s
        if self._clock.is_due:
            self._clock.renew(self._conversation.clock_ns)
        duration_ns = max(0, iteration.ended_ns - iteration.started_ns - iteration.held_ns)
        self._send(IterationReport(iteration.number, self._clock.at(began_ns), duration_ns))

    # -- delays ------------------------------------------------------------------------------------------------------

    def _start_waiting(self) -> None:
        """Have all ranks keep the next delay, one at a time."""
        if self._pending is not None or not self._waiting:
            return
        group = self._starts.group
        reached = 0 if group is None else self._shifts.reached(group)
        start = self._starts.next_start(reached, time.monotonic_ns())
        if start is None:
            return
        delay = self._waiting.pop(0)
        wait_ns = delay.wait_ns(self._clock.at(start.begins_ns))
        hold = Hold(delay.sequence, start.group, start.number, max(0, min(wait_ns, LONGEST_NS)))
        self._pending = _Pending(delay, hold)
        self._keep_no_time()
        self._announcer.announce(hold)
        self._shifts.add(hold)
        _log.info(
            "mltcp: all ranks hold for %.1f ms before operation %d: %s",
            hold.delay_ns / 1e6, hold.number, delay.reason,
        )  # fmt: skip

    def _on_outcome(self, hold: Hold, outcome: str) -> None:
        if self._pending is not None and self._pending.hold == hold:
            self._pending.kept_s = time.monotonic()
            self._pending.late = outcome == LATE

    def _look_for_hold(self, iteration: Iteration) -> None:
        """Whether this is the iteration in which the pending delay was kept."""
        pending = self._pending
        if pending is None or pending.iteration is not None:
            return
        numbers = [each.number for each in iteration.operations if each.group == pending.hold.group]
        if any(number is not None and number >= pending.hold.number for number in numbers):
            pending.iteration = iteration.number

    def _finish_pending(self) -> None:
        """Tell the service that a delay was kept, when all ranks have said so or been given the time."""
        pending = self._pending
        if pending is None or pending.iteration is None or not pending.kept_s or self._conversation is None:
            return
        sequence = pending.hold.sequence
        if (
            not self._announcer.all_have_said(sequence)
            and time.monotonic() - pending.kept_s < WAIT_FOR_RANKS_S
        ):
            return
        late = (*([0] if pending.late else []), *self._announcer.late_ranks(sequence))
        if late:
            _log.info("mltcp: learned too late of a hold: ranks %s", ", ".join(map(str, late)))
        self._announcer.forget(sequence)
        self._pending = None
        self._timed = _Timed(pending.delay, pending.iteration) if pending.delay.period_ns > 0 else None
        self._send(Applied(sequence, pending.iteration, late))

    def _keep_no_time(self) -> None:
        self._timed = None
        self._shifts.keep_to(None)

    def _keep_time(self, number: int) -> None:
        """After an iteration: have the next ones begin no earlier than the last delay has it.

        This rank alone sees to it: the others wait for it in the operation.
        """
        timed = self._timed
        timetable = None
        if timed is not None and number < timed.iteration + TIMED_FOR:
            at_ns = self._clock.monotonic_at(timed.delay.at_ns)
            timetable = self._starts.timetable(at_ns, timed.delay.period_ns)
        self._shifts.keep_to(timetable)
