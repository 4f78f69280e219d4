"""Admission of operations by an admission policy: the logic of the gate, without its sockets.

An operation is admitted for its whole job when the first of its ranks asks, and the decision holds for all ranks. All
operations of a job that are under way form one transfer: an operation that a rank asks for while it is sending joins
the transfer without being decided on, as the simulator sends the next ready bucket without asking again. The transfer
ends when all of its operations have ended. A rank that finishes before the others is decided on again for its next
operation, unless no other job shares the links. Where the policy grants links (SRTF-Yield), nothing joins the transfer
of a job to which they are not granted any more.

A transfer of which nothing is heard for much longer than it should take is stalled: it no longer counts as running, so
that a job that is stopped holds up nobody else, and counts again as soon as one of its ranks is heard.

Users take turns, not runs, of which a user may have many: the user who has held the links for the least time goes
first, and nobody overtakes him there; the policy ranks the runs of one user. While another user waits, a transfer takes
no further operations that need not be, and counts as running for `LONGEST_TURN_NS` at most, whatever is heard of it.

There is no deadlock, because no rank waits for a rank that waits itself: while an admitted operation of a job lacks
ranks, everything that the job asks for is admitted, since a missing rank may be waiting for it; an operation that has
all of its ranks needs no further admission to end.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

from mltcp.core.accounts import NAMELESS
from mltcp.core.errors import UsageError
from mltcp.core.one_line import one_line
from mltcp.core.user_lines import of_user
from placement.gate.messages import Ask, GateJob
from placement.gate.turns import GateUser, HeldTimes
from placement.policies.gate_state import GateState

_log = logging.getLogger("placement.gate")

PATIENCE_NS = 60_000_000_000
"""An operation that has waited this long is admitted, whatever the policy decides."""

GRACE_NS = 1_000_000_000
"""How long an operation that has ended on all ranks that asked is kept for the remaining ranks."""

STALLED_NS = 5_000_000_000
"""A transfer is stalled if its ranks are silent for this long and `STALLED_TIMES` its time alone on its links."""

STALLED_TIMES = 10
"""See `STALLED_NS`: room for contention, and for links that are slower than described."""

LONGEST_TURN_NS = 5_000_000_000
"""A transfer for which another user waits no longer counts as running after this time."""

UNKNOWN_SERVICE = 1 << 62
"""The rank of jobs of which it is unknown what they have left: last."""

MOST_OPERATIONS = 10_000
"""Most operations of one run at a time."""

MOST_RUNS_OF_USER = 256
"""Most runs of one user at a time."""

MOST_RUNS = 1024
"""Most runs at a time; a quarter is kept for accounts with a name."""

MOST_KNOWN = 10_000
"""Most job descriptions kept; the oldest is dropped."""

Peer = TypeVar("Peer")
RunId = tuple[str, str, str]
"""A run: the names of its job, of its instance and of its user (empty over TCP: its ranks have several addresses)."""

OperationKey = tuple[int, int]
"""An operation: its process group and its number in that group."""


@dataclass(frozen=True, slots=True)
class Grant(Generic[Peer]):
    """The admission of an operation, to be sent to a waiting peer."""

    peer: Peer
    key: OperationKey


@dataclass(slots=True)
class GateOperation(Generic[Peer]):
    """An operation that at least one rank has asked for."""

    nbytes: int
    size: int
    asked_ns: int
    order: int
    granted: bool = False
    ended_ns: int | None = None
    ranks: set[int] = field(default_factory=set)
    unfinished: set[int] = field(default_factory=set)
    waiting: dict[int, Peer] = field(default_factory=dict)

    @property
    def lacks_ranks(self) -> bool:
        """Whether some ranks have not asked for it yet."""
        return len(self.ranks) < self.size


@dataclass(slots=True)
class GateRun(Generic[Peer]):
    """A run of a job with at least one connected rank.

    Attributes:
        user: whose turns it takes: the user of the rank that came first.
        asked_bytes: of all operations that it has asked for.
        heard_ns: when one of its ranks last said something.
        turn_ns: when its running transfer began.
        charged_ns: until when that has been added to the user's time.
        stalled: its transfer does not count as running, because nothing is heard of it.
        overdue: its transfer does not count as running, because it lasts too long for others.
    """

    name: RunId
    number: int
    job: GateJob
    user: GateUser
    connections: dict[int, int] = field(default_factory=dict)
    iterations: int = 0
    asked_bytes: int = 0
    heard_ns: int = 0
    turn_ns: int = 0
    charged_ns: int = 0
    stalled: bool = False
    overdue: bool = False
    operations: dict[OperationKey, GateOperation[Peer]] = field(default_factory=dict)

    def waiting(self) -> list[GateOperation[Peer]]:
        """Its operations that have not been admitted."""
        return [each for each in self.operations.values() if not each.granted]

    def admitted_bytes(self) -> int:
        """The bytes of its admitted operations."""
        return sum(each.nbytes for each in self.operations.values() if each.granted)

    def must_not_wait(self) -> bool:
        """Whether an admitted operation lacks ranks, which a further operation may be keeping away."""
        return any(each.granted and each.lacks_ranks for each in self.operations.values())

    def is_sending_on(self, rank: int) -> bool:
        """Whether an admitted operation has not ended on this rank."""
        return any(each.granted and rank in each.unfinished for each in self.operations.values())


@dataclass
class GateCounts:
    """Counters of operations per job, not per rank (asked, waiting, admitted against the policy), and of stalls."""

    asked: int = 0
    waited: int = 0
    overruled: int = 0
    stalled: int = 0


class Gatekeeper(Generic[Peer]):
    """Admits the operations of all jobs.

    A peer is the connection to which an admission is sent. Times are nanoseconds of one monotonic clock.
    """

    def __init__(self, state: GateState) -> None:
        self.counts = GateCounts()
        self._state = state
        self._runs: dict[RunId, GateRun[Peer]] = {}
        self._running: dict[int, GateRun[Peer]] = {}
        self._held = HeldTimes()
        self._known: dict[str, GateJob] = {}
        self._orders = count()

    @property
    def runs(self) -> tuple[GateRun[Peer], ...]:
        """All runs with a connected rank."""
        return tuple(self._runs.values())

    # -- connections -------------------------------------------------------------------------------------------------

    def describe(self, job: GateJob, now_ns: int) -> list[Grant[Peer]]:
        """Replace the description of a job, and return the admissions that follow."""
        self._known.pop(job.name, None)
        self._known[job.name] = job
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        for run in self._runs.values():
            if run.name[0] == job.name:
                run.job = job
                self._state.put(run.number, job.links)
        return self._admit(now_ns)

    def enter(self, name: RunId, rank: int, user: GateUser) -> None:
        """Add a connection of a rank.

        Raises:
            UsageError: the user, or all users, have as many runs as they may have.
        """
        run = self._runs.get(name)
        if run is None:
            self._check_another_run(user)
            numbers = {each.number for each in self._runs.values()}
            number = next(number for number in count() if number not in numbers)
            job = self._known.get(name[0], GateJob(name[0]))
            run = self._runs[name] = GateRun(name, number, job, user)
            self._state.put(number, run.job.links)
        run.connections[rank] = run.connections.get(rank, 0) + 1

    def _check_another_run(self, user: GateUser) -> None:
        own = sum(run.user == user for run in self._runs.values())
        if own >= MOST_RUNS_OF_USER:
            raise UsageError(f"runs: expected at most {MOST_RUNS_OF_USER} of {user.name}, got one more")
        most = MOST_RUNS - MOST_RUNS // 4 if user.share == NAMELESS else MOST_RUNS
        if len(self._runs) >= most:
            raise UsageError(f"runs: expected at most {most} of all users, got one more")

    def leave(self, name: RunId, rank: int, now_ns: int) -> list[Grant[Peer]]:
        """Remove a connection of a rank, and with its last one the rank from all operations; returns admissions."""
        run = self._runs[name]
        run.connections[rank] -= 1
        if run.connections[rank]:
            return []
        del run.connections[rank]
        for key in list(run.operations):
            self._abandon(run, key, rank, now_ns)
        self._end_transfer(run, now_ns)
        if not run.connections:
            del self._runs[name]
            self._running.pop(run.number, None)
            self._state.remove(run.number)
        return self._admit(now_ns)

    def withdraw(self, name: RunId, rank: int, key: OperationKey, now_ns: int) -> list[Grant[Peer]]:
        """Remove a waiting rank from an operation, and return the admissions that follow."""
        run = self._runs[name]
        if key not in run.operations:
            return []
        self._abandon(run, key, rank, now_ns)
        self._end_transfer(run, now_ns)
        return self._admit(now_ns)

    def _abandon(self, run: GateRun[Peer], key: OperationKey, rank: int, now_ns: int) -> None:
        operation = run.operations[key]
        operation.waiting.pop(rank, None)
        if operation.granted:
            self._finish(run, key, rank, now_ns)
        else:
            operation.ranks.discard(rank)
            operation.unfinished.discard(rank)
            if not operation.ranks:
                del run.operations[key]

    # -- operations --------------------------------------------------------------------------------------------------

    def ask(self, name: RunId, rank: int, ask: Ask, peer: Peer, now_ns: int) -> list[Grant[Peer]]:
        """Handle a rank that asks for admission of an operation; returns admissions, of this or other ranks.

        Raises:
            UsageError: the run has too many operations.
        """
        run, key = self._runs[name], (ask.group, ask.number)
        self._hear(run, now_ns)
        run.iterations = max(run.iterations, ask.iterations)
        self._note_activity(run.user, now_ns)
        must_go = self._may_join(run, rank, now_ns)
        operation = run.operations.get(key) or self._new(run, key, ask, now_ns)
        operation.ranks.add(rank)
        operation.unfinished.add(rank)
        operation.ended_ns = None
        if operation.granted:
            self._set_moving(run, operation, now_ns)
            return [Grant(peer, key)]
        operation.waiting[rank] = peer
        going = self._join(run, now_ns, must_go) if must_go else self._admit(now_ns)
        if not operation.granted and len(operation.ranks) == 1:
            self.counts.waited += 1
        return going

    def _new(self, run: GateRun[Peer], key: OperationKey, ask: Ask, now_ns: int) -> GateOperation[Peer]:
        if len(run.operations) >= MOST_OPERATIONS:
            raise UsageError(f"operations: expected at most {MOST_OPERATIONS} at a time, got one more")
        self.counts.asked += 1
        run.asked_bytes += ask.nbytes
        operation = run.operations[key] = GateOperation(ask.nbytes, ask.size, now_ns, next(self._orders))
        return operation

    def _may_join(self, run: GateRun[Peer], rank: int, now_ns: int) -> bool:
        """Whether an operation of this rank joins the job's transfer without a decision."""
        if run.overdue:
            return run.must_not_wait()
        return self._state.is_running(run.number) and (
            run.must_not_wait()
            or self._is_alone(run)
            or (
                run.is_sending_on(rank)
                and not self._another_user_waits(run)
                and not self._yields(run, now_ns)
            )
        )

    def _yields(self, run: GateRun[Peer], now_ns: int) -> bool:
        """Whether the links on which a run sends are granted to another one."""
        return self._state.grants_links and run.number not in self._granted(now_ns)

    def _granted(self, now_ns: int) -> frozenset[int]:
        """The numbers of the runs to which links are granted, of those that wait or send."""
        asking = [run for run in self._runs.values() if run.waiting() or self._state.is_running(run.number)]
        return self._state.granted([run.number for run in self._in_order(asking, now_ns)])

    def _another_user_waits(self, run: GateRun[Peer]) -> bool:
        """Whether an operation of another user waits on the links of this run."""
        return any(other.waiting() for other in self._runs_of_others(run))

    def _another_user_is_active(self, run: GateRun[Peer]) -> bool:
        """Whether an operation of another user waits or runs on the links of this run."""
        return any(
            other.waiting() or self._state.is_running(other.number) for other in self._runs_of_others(run)
        )

    def _runs_of_others(self, run: GateRun[Peer]) -> Iterator[GateRun[Peer]]:
        """The runs of other users on the links of this run."""
        for other in self._runs.values():
            if other.user != run.user and self._state.share_a_link(run.number, other.number):
                yield other

    def _note_activity(self, user: GateUser, now_ns: int) -> None:
        active = {run.user for run in self._runs.values() if run.operations}
        if user not in active:
            self._charge(now_ns)
            self._held.begin(user, active)

    def _is_alone(self, run: GateRun[Peer]) -> bool:
        """Whether no other job sends or waits on the links of this one."""
        return not any(
            other is not run
            and (self._state.is_running(other.number) or other.waiting())
            and self._state.share_a_link(run.number, other.number)
            for other in self._runs.values()
        )

    def done(self, name: RunId, rank: int, key: OperationKey, now_ns: int) -> list[Grant[Peer]]:
        """Record that an operation has ended on a rank, and return the admissions that follow."""
        run = self._runs[name]
        if key not in run.operations or not run.operations[key].granted:
            return []
        self._hear(run, now_ns)
        self._finish(run, key, rank, now_ns)
        return self._admit(now_ns) if self._end_transfer(run, now_ns) else []

    def _finish(self, run: GateRun[Peer], key: OperationKey, rank: int, now_ns: int) -> None:
        operation = run.operations[key]
        operation.unfinished.discard(rank)
        if operation.unfinished:
            return
        if operation.lacks_ranks and len(run.connections) >= operation.size:
            operation.ended_ns = now_ns  # kept for GRACE_NS
        else:
            del run.operations[key]

    def _end_transfer(self, run: GateRun[Peer], now_ns: int) -> bool:
        """End the job's transfer if its last operation has ended, and return whether it did."""
        if any(each.granted for each in run.operations.values()):
            return False
        run.overdue = False
        if not self._state.is_running(run.number):
            return False
        self._stop(run, now_ns)
        return True

    def _start(self, run: GateRun[Peer], nbytes: int, now_ns: int) -> None:
        """Start the transfer of a run, and its user's turn."""
        self._state.start(run.number, nbytes, now_ns)
        run.turn_ns = run.charged_ns = now_ns
        self._running[run.number] = run

    def _stop(self, run: GateRun[Peer], now_ns: int) -> None:
        self._charge(now_ns)
        self._state.stop(run.number, now_ns)
        del self._running[run.number]

    def _charge(self, now_ns: int) -> None:
        """Add the time that transfers have run to that of their users."""
        for run in self._running.values():
            self._held.charge(run.user, now_ns - run.charged_ns)
            run.charged_ns = now_ns

    def _hear(self, run: GateRun[Peer], now_ns: int) -> None:
        """Note that the run was heard; a stalled transfer of it counts as running again."""
        run.heard_ns = now_ns
        if run.stalled and run.admitted_bytes():
            self._start(run, run.admitted_bytes(), now_ns)
            for operation in run.operations.values():
                if operation.granted:
                    self._set_moving(run, operation, now_ns)
        run.stalled = False

    def _stalls_ns(self, run: GateRun[Peer]) -> int:
        """When a running transfer is stalled, unless its run is heard before."""
        alone_ns = self._state.alone_ns(run.number, run.admitted_bytes())
        return run.heard_ns + STALLED_NS + round(STALLED_TIMES * alone_ns)

    def due_ns(self) -> int | None:
        """The next time at which a transfer that others wait for no longer counts as running; None: nobody waits."""
        ends = []
        if any(run.waiting() for run in self._runs.values()):
            for run in self._running.values():
                ends.append(self._stalls_ns(run))
                if self._another_user_waits(run):
                    ends.append(run.turn_ns + LONGEST_TURN_NS)
        return min(ends, default=None)

    def _end_turn(self, run: GateRun[Peer], now_ns: int) -> None:
        """Stop to count a transfer as running if nothing is heard of it, or if it lasts too long for others."""
        why = ""
        if now_ns >= self._stalls_ns(run):
            run.stalled = True
            why = f"silent for {(now_ns - run.heard_ns) / 1e9:.0f} s while it is admitted"
        elif now_ns - run.turn_ns >= LONGEST_TURN_NS and self._another_user_waits(run):
            run.overdue = True
            why = f"a turn of {(now_ns - run.turn_ns) / 1e9:.0f} s"
        if why:
            self.counts.stalled += 1
            self._stop(run, now_ns)
            _log.warning(
                "%s: %s; others no longer wait for it",
                one_line(run.name[0]),
                why,
                extra=of_user(run.user.name),
            )

    def expire(self, now_ns: int) -> list[Grant[Peer]]:
        """Apply `GRACE_NS`, `STALLED_NS`, `LONGEST_TURN_NS` and `PATIENCE_NS`; returns admissions.

        To be called periodically, and when it is :meth:`due_ns`.
        """
        for run in self._runs.values():
            for key, operation in list(run.operations.items()):
                if operation.ended_ns is not None and now_ns - operation.ended_ns > GRACE_NS:
                    del run.operations[key]
            self._end_transfer(run, now_ns)
            if self._state.is_running(run.number):
                self._end_turn(run, now_ns)
        going = self._admit(now_ns)
        # One of each user; where another user is there, the user's next turn is that of the run that is impatient.
        impatient = {run.user: run for run in reversed(self._runs.values()) if _is_impatient(run, now_ns)}
        for run in impatient.values():
            if not self._another_user_is_active(run):
                self.counts.overruled += 1
                going += self._join(run, now_ns)
        return going

    # -- decisions ---------------------------------------------------------------------------------------------------

    def _admit(self, now_ns: int) -> list[Grant[Peer]]:
        """Ask the policy about each waiting job, in the order of users and then of rank, until it admits none.

        One more running transfer can make AdaDUAL accept another one, so all are asked again after an admission.
        """
        self._charge(now_ns)
        granted = self._granted(now_ns) if self._state.grants_links else None
        going: list[Grant[Peer]] = []
        before = -1
        while len(going) != before:
            before = len(going)
            waited_for: dict[GateUser, set[str]] = {}
            for run in self._waiting(now_ns):
                links = set(run.job.links)
                if any(user != run.user and links & waited_for[user] for user in waited_for):
                    continue  # it would overtake another user
                nbytes = sum(operation.nbytes for operation in run.waiting())
                may_ask = granted is None or run.number in granted
                if may_ask and self._state.may_start(run.number, nbytes, now_ns):
                    going += self._join(run, now_ns)
                else:
                    waited_for.setdefault(run.user, set()).update(links)
        return going

    def _waiting(self, now_ns: int) -> list[GateRun[Peer]]:
        """The runs that wait and have no running transfer, in order."""
        runs = self._runs.values()
        return self._in_order(
            [run for run in runs if run.waiting() and not self._state.is_running(run.number)], now_ns
        )

    def _in_order(self, runs: list[GateRun[Peer]], now_ns: int) -> list[GateRun[Peer]]:
        """Runs that have operations, by their users' turns, rank and order of asking."""
        return sorted(
            runs,
            key=lambda run: (self._held.order(run.user), not _is_impatient(run, now_ns), self._rank(run)),
        )

    def _rank(self, run: GateRun[Peer]) -> tuple[float, int]:
        left: float | None
        if self._state.ranks_by_time:
            of_iteration = run.asked_bytes // (run.iterations + 1)
            left = run.job.time_left_ns(run.iterations, self._state.alone_ns(run.number, of_iteration))
        else:
            left = run.job.service_left_ns(run.iterations)
        first = min(operation.order for operation in run.waiting() or run.operations.values())
        return (UNKNOWN_SERVICE if left is None else left, first)

    def _join(self, run: GateRun[Peer], now_ns: int, must_go: bool = False) -> list[Grant[Peer]]:
        """Admit all waiting operations of a run into its transfer, or into an overdue one that needs them to end."""
        waiting = {key: each for key, each in run.operations.items() if not each.granted}
        nbytes = sum(operation.nbytes for operation in waiting.values())
        if self._state.is_running(run.number):
            self._state.extend(run.number, nbytes, now_ns)
        elif not must_go:
            self._start(run, nbytes, now_ns)
            run.overdue = False
        run.heard_ns, run.stalled = now_ns, False
        going = []
        for key, operation in waiting.items():
            operation.granted = True
            going += [Grant(peer, key) for peer in operation.waiting.values()]
            operation.waiting.clear()
            self._set_moving(run, operation, now_ns)
        return going

    def _set_moving(self, run: GateRun[Peer], operation: GateOperation[Peer], now_ns: int) -> None:
        if not operation.lacks_ranks and self._state.is_running(run.number):
            self._state.move(run.number, now_ns)


def _is_impatient(run: GateRun[Peer], now_ns: int) -> bool:
    return any(now_ns - each.asked_ns > PATIENCE_NS for each in run.waiting())
