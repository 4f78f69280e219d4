"""Which operation of which job may go, and when: the gate without its sockets.

What an operation needs before it goes is decided for its job, when the first of its ranks asks, and holds for all of
them. A job is one transfer: what a rank asks for while it is sending is let through with the rest, as the simulator
sends the next bucket that is ready without asking again, and the transfer ends when all of its operations have. A rank
that is done before the others asks anew; where there is no other job, it is not made to wait for them.

No rank waits for one that waits itself. A job with an operation of which some ranks have not come yet is let through
with whatever it asks for, since that may be what keeps them away; every other operation that was let through has all
of its ranks and needs nobody's leave any more to end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

from mltcp.core.errors import UsageError
from placement.gate.jobs import GateJob
from placement.gate.messages import Ask
from placement.gate.state import GateState

PATIENCE_NS = 60_000_000_000
"""Who has waited so long goes, whatever the policy says."""

GRACE_NS = 1_000_000_000
"""Of an operation that has ended on all ranks that asked, the others are waited for no longer than this."""

UNKNOWN_SERVICE = 1 << 62
"""Jobs of which it is not known what they have yet to compute come last."""

MOST_OPERATIONS = 10_000
"""Of one run, at a time."""

MOST_KNOWN = 10_000
"""So many jobs are remembered of which something was said; then the first is forgotten."""

Peer = TypeVar("Peer")
RunId = tuple[str, str]
"""The name of a job and of its run."""

OperationKey = tuple[int, int]
"""An operation: its group and number."""


@dataclass(frozen=True, slots=True)
class Grant(Generic[Peer]):
    """Tell this peer that its operation may go."""

    peer: Peer
    key: OperationKey


@dataclass(slots=True)
class GateOperation(Generic[Peer]):
    """One that at least one rank has asked for."""

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
        """Whether some ranks have yet to ask for it."""
        return len(self.ranks) < self.size


@dataclass(slots=True)
class GateRun(Generic[Peer]):
    """One run of a job, as long as any of its ranks is here."""

    name: RunId
    number: int
    job: GateJob
    connections: dict[int, int] = field(default_factory=dict)
    iterations: int = 0
    operations: dict[OperationKey, GateOperation[Peer]] = field(default_factory=dict)

    def wanted(self) -> list[GateOperation[Peer]]:
        """Its operations that wait."""
        return [each for each in self.operations.values() if not each.granted]

    def must_not_wait(self) -> bool:
        """Whether what it asks for now could be what an operation under way is waiting for."""
        return any(each.granted and each.lacks_ranks for each in self.operations.values())

    def is_sending_on(self, rank: int) -> bool:
        """Whether an operation of this rank's is under way."""
        return any(each.granted and rank in each.unfinished for each in self.operations.values())


@dataclass
class GateCounts:
    """What the gate has done so far, in operations of jobs (not of ranks)."""

    asked: int = 0
    waited: int = 0
    overruled: int = 0


class Gatekeeper(Generic[Peer]):
    """Decides for all jobs. A peer is whoever is to be told that it may go; times are ns of one monotonic clock."""

    def __init__(self, state: GateState) -> None:
        self.counts = GateCounts()
        self._state = state
        self._runs: dict[RunId, GateRun[Peer]] = {}
        self._known: dict[str, GateJob] = {}
        self._orders = count()

    @property
    def runs(self) -> tuple[GateRun[Peer], ...]:
        """All runs of which a rank is here."""
        return tuple(self._runs.values())

    # -- who is here -------------------------------------------------------------------------------------------------

    def describe(self, job: GateJob, now_ns: int) -> list[Grant[Peer]]:
        """What is known of a job has changed."""
        self._known.pop(job.name, None)
        self._known[job.name] = job
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        for run in self._runs.values():
            if run.name[0] == job.name:
                run.job = job
                self._state.put(run.number, job.links)
        return self._admit(now_ns)

    def enter(self, name: RunId, rank: int) -> None:
        """A connection of this rank."""
        run = self._runs.get(name)
        if run is None:
            numbers = {each.number for each in self._runs.values()}
            number = next(number for number in count() if number not in numbers)
            run = self._runs[name] = GateRun(name, number, self._known.get(name[0], GateJob(name[0])))
            self._state.put(number, run.job.links)
        run.connections[rank] = run.connections.get(rank, 0) + 1

    def leave(self, name: RunId, rank: int, now_ns: int) -> list[Grant[Peer]]:
        """A connection of this rank's is gone; with the last one, the rank has left all of its operations."""
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
            self._state.remove(run.number)
        return self._admit(now_ns)

    def withdraw(self, name: RunId, rank: int, key: OperationKey, now_ns: int) -> list[Grant[Peer]]:
        """A rank that waits does not wait any more."""
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
        """A rank wants to pass an operation on. Returns who may go now, which need not be this one.

        Raises:
            UsageError: the run has too many operations already.
        """
        run, key = self._runs[name], (ask.group, ask.number)
        run.iterations = max(run.iterations, ask.iterations)
        must_go = self._may_join(run, rank)
        operation = run.operations.get(key) or self._new(run, key, ask, now_ns)
        operation.ranks.add(rank)
        operation.unfinished.add(rank)
        operation.ended_ns = None
        if operation.granted:
            self._set_moving(run, operation, now_ns)
            return [Grant(peer, key)]
        operation.waiting[rank] = peer
        going = self._join(run, now_ns) if must_go else self._admit(now_ns)
        if not operation.granted and len(operation.ranks) == 1:
            self.counts.waited += 1
        return going

    def _new(self, run: GateRun[Peer], key: OperationKey, ask: Ask, now_ns: int) -> GateOperation[Peer]:
        if len(run.operations) >= MOST_OPERATIONS:
            raise UsageError(f"{MOST_OPERATIONS} operations are under way: no more are allowed")
        self.counts.asked += 1
        operation = run.operations[key] = GateOperation(ask.nbytes, ask.size, now_ns, next(self._orders))
        return operation

    def _may_join(self, run: GateRun[Peer], rank: int) -> bool:
        """Whether what this rank asks for belongs to the transfer that is under way."""
        return self._state.is_running(run.number) and (
            run.must_not_wait() or run.is_sending_on(rank) or self._is_alone(run)
        )

    def _is_alone(self, run: GateRun[Peer]) -> bool:
        """Whether no other job sends, or waits to, on its links: it need not wait for its own ranks to be done."""
        return not any(
            other is not run
            and (self._state.is_running(other.number) or other.wanted())
            and self._state.share_a_link(run.number, other.number)
            for other in self._runs.values()
        )

    def done(self, name: RunId, rank: int, key: OperationKey, now_ns: int) -> list[Grant[Peer]]:
        """An operation has ended on this rank. Returns who may go now."""
        run = self._runs[name]
        if key not in run.operations or not run.operations[key].granted:
            return []
        self._finish(run, key, rank, now_ns)
        return self._admit(now_ns) if self._end_transfer(run, now_ns) else []

    def _finish(self, run: GateRun[Peer], key: OperationKey, rank: int, now_ns: int) -> None:
        operation = run.operations[key]
        operation.unfinished.discard(rank)
        if operation.unfinished:
            return
        if operation.lacks_ranks and len(run.connections) >= operation.size:
            operation.ended_ns = now_ns  # the others get some time
        else:
            del run.operations[key]

    def _end_transfer(self, run: GateRun[Peer], now_ns: int) -> bool:
        """Whether the job's transfer has ended, which it has with its last operation."""
        if not self._state.is_running(run.number) or any(each.granted for each in run.operations.values()):
            return False
        self._state.stop(run.number, now_ns)
        return True

    def look(self, now_ns: int) -> list[Grant[Peer]]:
        """Some time has passed: see to those who wait too long, and to operations that not all ranks ask for."""
        for run in self._runs.values():
            for key, operation in list(run.operations.items()):
                if operation.ended_ns is not None and now_ns - operation.ended_ns > GRACE_NS:
                    del run.operations[key]
            self._end_transfer(run, now_ns)
        going = self._admit(now_ns)
        for run in self._runs.values():
            if any(now_ns - each.asked_ns > PATIENCE_NS for each in run.wanted()):
                self.counts.overruled += 1
                going += self._join(run, now_ns)
        return going

    # -- decisions ---------------------------------------------------------------------------------------------------

    def _admit(self, now_ns: int) -> list[Grant[Peer]]:
        """Ask the policy for each job that waits, in the order of rank, until none may start any more.

        One more running transfer can make AdaDUAL accept another, so that all are asked again after it.
        """
        going: list[Grant[Peer]] = []
        before = -1
        while len(going) != before:
            before = len(going)
            for run in self._waiting():
                nbytes = sum(operation.nbytes for operation in run.wanted())
                if self._state.may_start(run.number, nbytes, now_ns):
                    going += self._join(run, now_ns)
        return going

    def _waiting(self) -> list[GateRun[Peer]]:
        """The runs that wait and are not sending, in the order of SRSF, then in that of their asking."""
        waiting = [
            run for run in self._runs.values() if run.wanted() and not self._state.is_running(run.number)
        ]
        return sorted(waiting, key=_rank)

    def _join(self, run: GateRun[Peer], now_ns: int) -> list[Grant[Peer]]:
        """Let all that this run waits for go."""
        wanted = {key: each for key, each in run.operations.items() if not each.granted}
        nbytes = sum(operation.nbytes for operation in wanted.values())
        if self._state.is_running(run.number):
            self._state.extend(run.number, nbytes, now_ns)
        else:
            self._state.start(run.number, nbytes, now_ns)
        going = []
        for key, operation in wanted.items():
            operation.granted = True
            going += [Grant(peer, key) for peer in operation.waiting.values()]
            operation.waiting.clear()
            self._set_moving(run, operation, now_ns)
        return going

    def _set_moving(self, run: GateRun[Peer], operation: GateOperation[Peer], now_ns: int) -> None:
        if not operation.lacks_ranks:
            self._state.move(run.number, now_ns)


def _rank(run: GateRun[Peer]) -> tuple[int, int]:
    service = run.job.service_left_ns(run.iterations)
    first = min(operation.order for operation in run.wanted())
    return (UNKNOWN_SERVICE if service is None else service, first)
