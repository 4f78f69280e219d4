"""Where one iteration of a training job ends and the next begins, as its process can tell without asking the user.

Four detectors, in this order; each gives way to the ones before it for good once those have something to go by:

* explicit: the user marks iterations.
* optimizer: the end of the outermost optimizer step. Where several optimizers take turns (a GAN's, or one for each
  parameter), an iteration is one cycle of the sequence in which they step.
* pattern: the repeating sequence of (operation, bytes), cut where the pause before an operation is longest.
* gap: pauses that always enclose the same bytes (mltcp.iteration, as the kernel does it).

Pure logic: no torch, no clock. Times are nanoseconds of any monotonic clock.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from mltcp.iteration import IterationTracker

LARGEST_HISTORY = 4096
"""So many steps or operations are remembered while no repetition has been found."""

PAUSE_SHARE = 0.1
"""A pattern is trusted at once if its pauses make up this share of the time; else only at the job's end, or when a
quarter of the history shows nothing else."""

LONG_PAUSE = 4.0
"""A pause this many times the usual one between repetitions sets repetitions apart."""

OPERATIONS_BEFORE_GAP = 64
"""The gap is asked only after so many operations without a pattern."""

Token = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Boundary:
    """The first `operations` operations of the job lie before it; it was at `at_ns`."""

    operations: int
    at_ns: int


@dataclass(frozen=True)
class Detection:
    """Which detector is in force, and what it has learned (None: nothing, or it does not apply).

    Attributes:
        detector: explicit, optimizer, pattern, gap, or none.
        iterations: how many have been found.
        optimizer_steps: outermost optimizer steps in an iteration.
        operations: operations in an iteration of the pattern.
        bytes: their payload.
        gap_s: the pause that ends an iteration.
    """

    detector: str
    iterations: int
    optimizer_steps: int | None = None
    operations: int | None = None
    bytes: int | None = None
    gap_s: float | None = None


class IterationDetector:
    """Follows one process of a job.

    Every boundary that a method returns is final, and later than all before it, but for what the first optimizer step
    takes back.
    """

    def __init__(self) -> None:
        self.needs_operations = True
        self._explicit = False
        self._steps: StepCycle | None = None
        self._pattern = OperationPattern()
        self._gap = IterationTracker()
        self._unmatched = 0
        self._by_gap = False
        self._emitted = 0
        self._iterations = 0

    def mark(self, operations: int, now_ns: int) -> None:
        """The user marks iterations himself; `operations` came before this first or further mark."""
        self._explicit = True
        self.needs_operations = False
        self._iterations += 1

    def step(self, optimizer: int, operations: int, now_ns: int) -> tuple[Boundary, ...]:
        """An outermost step of `optimizer` has ended after so many operations.

        The first step takes back what a pattern or gap has found before it: that was inside the first iteration.
        """
        if self._explicit:
            return ()
        if self._steps is None:
            self._steps = StepCycle()
            self.needs_operations = False
            self._iterations = self._emitted = 0
        return self._found(self._steps.step(optimizer, Boundary(operations, now_ns)))

    def operation(
        self, name: str, nbytes: int, operations: int, idle_ns: int, now_ns: int
    ) -> tuple[Boundary, ...]:
        """An operation is about to be submitted; `operations` came before it, the last one `idle_ns` ago."""
        if not self.needs_operations:
            return ()
        boundaries = self._pattern.operation((name, nbytes), operations, idle_ns, now_ns)
        closed = self._gap.observe(max(1, now_ns), nbytes)
        if self._pattern.locked:
            self._unmatched, self._by_gap = 0, False
            return self._found(boundaries)
        self._unmatched += 1
        self._by_gap = self._unmatched > OPERATIONS_BEFORE_GAP and self._gap.recognised
        if self._by_gap and closed is not None:
            return self._found((Boundary(operations, now_ns - idle_ns),))
        return ()

    def finish(self, operations: int, now_ns: int) -> tuple[Boundary, ...]:
        """The job ends: the iterations that were still in doubt."""
        if self._explicit:
            return ()
        if self._steps is not None:
            return self._found(self._steps.finish())
        return self._found(self._pattern.finish(operations, now_ns))

    def learned(self) -> Detection:
        """Which detector is in force, and what it has learned."""
        if self._explicit:
            return Detection("explicit", self._iterations)
        if self._steps is not None:
            return Detection("optimizer", self._iterations, optimizer_steps=self._steps.period)
        if self._pattern.locked:
            cycle = self._pattern.cycle
            size = sum(nbytes for _, nbytes in cycle)
            return Detection("pattern", self._iterations, operations=len(cycle), bytes=size)
        if self._by_gap:
            gap = self._gap
            return Detection("gap", self._iterations, bytes=gap.total_bytes, gap_s=gap.gap_ns / 1e9)
        return Detection("none", self._iterations)

    def _found(self, boundaries: Sequence[Boundary]) -> tuple[Boundary, ...]:
        fresh = []
        for boundary in boundaries:
            # A pattern that is found late also sees what the gap has found before it. Steps may follow each
            # other with no operation between them.
            if self._steps is not None or boundary.operations > self._emitted:
                self._emitted = boundary.operations
                fresh.append(boundary)
        self._iterations += len(fresh)
        return tuple(fresh)


# -- optimizer steps -------------------------------------------------------------------------------------------------


class StepCycle:
    """The cycle in which optimizers step, learned as the smallest period of the sequence so far.

    The prefix function of Knuth, Morris and Pratt gives the period with every step in amortised constant time.
    """

    def __init__(self) -> None:
        self.period: int | None = None
        self._history: list[Hashable] = []
        self._prefix: list[int] = []
        self._pending: list[Boundary] = []
        self._leader: Hashable = None
        self._without_cycle = False

    def step(self, optimizer: Hashable, boundary: Boundary) -> list[Boundary]:
        """A step and the boundary that it may be; returns the boundaries that are now certain."""
        if self._leader is None:
            self._leader = optimizer
        if self._without_cycle:
            return [boundary] if optimizer == self._leader else []
        self._pending.append(boundary)
        if self.period is not None and optimizer != self._expected():
            self._start_anew()
        self._append(optimizer)
        if self.period is None:
            self._find_period()
        return self._certain()

    def finish(self) -> list[Boundary]:
        """A sequence too short to repeat is taken for one iteration."""
        last, self._pending = self._pending[-1:], []
        return last if self.period is None else []

    def _expected(self) -> Hashable:
        assert self.period is not None
        return self._history[len(self._history) % self.period]

    def _append(self, optimizer: Hashable) -> None:
        if self.period is not None:
            # Known: only the place in the cycle counts.
            self._history.append(optimizer)
            if len(self._history) == 2 * self.period:
                del self._history[self.period :]
            return
        matched = self._prefix[-1] if self._prefix else 0
        while matched and self._history[matched] != optimizer:
            matched = self._prefix[matched - 1]
        if self._history and self._history[matched] == optimizer:
            matched += 1
        self._history.append(optimizer)
        self._prefix.append(matched)

    def _find_period(self) -> None:
        if self._prefix[-1] > 0:
            self.period = len(self._history) - self._prefix[-1]
        elif len(self._history) > LARGEST_HISTORY:
            self._without_cycle = True
            self._history, self._prefix, self._pending = [], [], []

    def _start_anew(self) -> None:
        """The cycle is broken: look for another in its last turn and what follows."""
        assert self.period is not None
        turn = len(self._history) % self.period
        known = self._history[: self.period] + self._history[:turn]
        self.period, self._history, self._prefix = None, [], []
        for optimizer in known:
            self._append(optimizer)

    def _certain(self) -> list[Boundary]:
        """Of the pending steps, those that end a cycle; the ones before them are inside of it."""
        if self.period is None:
            return []
        first = len(self._history) - len(self._pending)
        ends = [at for at in range(len(self._pending)) if (first + at + 1) % self.period == 0]
        certain = [self._pending[at] for at in ends]
        if ends:
            del self._pending[: ends[-1] + 1]
        self._shorten()
        return certain

    def _shorten(self) -> None:
        assert self.period is not None
        self._history = self._history[: self.period] + self._history[: len(self._history) % self.period]


# -- the pattern of operations ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Seen:
    """An operation of the history: what it was, how many came before it, and the pause before it."""

    token: Token
    operations: int
    idle_ns: int
    idle_since_ns: int

    def boundary(self) -> Boundary:
        return Boundary(self.operations, self.idle_since_ns)


class OperationPattern:
    """The repeating sequence of (operation, bytes), and the place in it where iterations part."""

    def __init__(self) -> None:
        self.cycle: tuple[Token, ...] = ()
        self._at = 0
        self._history: list[_Seen] = []
        self._search_at = 6

    @property
    def locked(self) -> bool:
        """Whether a pattern is known. It begins at the longest pause, so a boundary is where it begins."""
        return bool(self.cycle)

    def operation(self, token: Token, operations: int, idle_ns: int, now_ns: int) -> list[Boundary]:
        """An operation is about to be submitted; returns the boundaries that are certain by now."""
        seen = _Seen(token, operations, idle_ns, now_ns - idle_ns)
        if self.cycle:
            if self.cycle[self._at] == token:
                boundary = [seen.boundary()] if self._at == 0 else []
                self._at = (self._at + 1) % len(self.cycle)
                return boundary
            self._unlock()
        self._history.append(seen)
        return self._search() if len(self._history) >= self._search_at else []

    def finish(self, operations: int, now_ns: int) -> list[Boundary]:
        """The job ends. What repeated is taken for iterations, however short its pauses; the last one ends here."""
        boundaries = [] if self.cycle else self._search(at_the_end=True)
        if self.cycle and self._at == 0:
            boundaries.append(Boundary(operations, now_ns))
        return boundaries

    def _unlock(self) -> None:
        self.cycle = ()
        self._history = []
        self._search_at = 6

    def _search(self, at_the_end: bool = False) -> list[Boundary]:
        history = self._history
        self._search_at = len(history) + 1 + len(history) // 8
        repetition = _repetition([seen.token for seen in history])
        if repetition is not None:
            period, start = repetition
            period, phase, pause_ns = self._parted(period, start)
            elapsed_ns = max(
                1, history[-1].idle_since_ns + history[-1].idle_ns - history[start].idle_since_ns
            )
            repetitions = (len(history) - start) // period
            share = pause_ns * repetitions / elapsed_ns
            if at_the_end or share >= PAUSE_SHARE or len(history) >= LARGEST_HISTORY // 4:
                return self._lock(period, start, phase, pause_ns if share >= PAUSE_SHARE else None)
        if len(history) > LARGEST_HISTORY:
            del history[: LARGEST_HISTORY // 2]
            self._search_at = len(history) + len(history) // 8
        return []

    def _parted(self, period: int, start: int) -> tuple[int, int, float]:
        """The length of an iteration, where in the history's repeating end it begins, and the pause before it.

        Iterations part where the pause is longest. Repetitions within an iteration (buckets of equal size) are
        joined if pauses much longer than the others come at a constant distance.
        """
        phase, pause_ns = self._longest_pause(period, start)
        places = range(phase, len(self._history), period)
        usual_ns = median(self._history[place].idle_ns for place in places)
        longest_ns = max(self._history[place].idle_ns for place in places)
        # The first operation of all has no pause before it that would mean anything.
        long = [
            place
            for place in places
            if place > 0
            and self._history[place].idle_ns > max(LONG_PAUSE * usual_ns, longest_ns / LONG_PAUSE)
        ]
        distances = {after - before for before, after in pairwise(long)}
        if len(long) >= 3 and len(distances) == 1:
            return distances.pop(), long[0], median(self._history[place].idle_ns for place in long)
        return period, phase, pause_ns

    def _longest_pause(self, period: int, start: int) -> tuple[int, float]:
        def pause_ns(phase: int) -> float:
            places = range(phase or period, len(self._history), period)
            return median([self._history[place].idle_ns for place in places] or [0])

        phase = max(range(start, start + period), key=pause_ns)
        return phase, pause_ns(phase)

    def _lock(self, period: int, start: int, phase: int, pause_ns: float | None) -> list[Boundary]:
        history = self._history
        count = len(history)
        self.cycle = tuple(history[place].token for place in range(count - period, count))
        # The cycle, turned so that it begins where iterations do.
        turn = (phase - (count - period)) % period
        self.cycle = self.cycle[turn:] + self.cycle[:turn]
        self._at = (count - phase) % period
        first = range(phase % period, count, period)
        places = {place for place in first if place >= start}
        if pause_ns is not None:
            # Iterations before the pattern set in (a bucket rebuild) show by their pauses only.
            places |= {place for place in range(start) if history[place].idle_ns >= pause_ns / 2}
        boundaries = [history[place].boundary() for place in sorted(places) if history[place].operations > 0]
        self._history = []
        return boundaries


def _repetition(tokens: Sequence[Token]) -> tuple[int, int] | None:
    """The smallest period of the sequence's end, and from which index on it holds; None if nothing repeats.

    Two repetitions will do, and three for periods below three, which buckets of equal size also show.
    """
    backwards = tokens[::-1]
    alike = _alike_from(backwards)
    for period in range(1, len(tokens) // 2 + 1):
        needed = 2 * period if period < 3 else period
        if alike[period] >= needed:
            return period, len(tokens) - period - alike[period]
    return None


def _alike_from(tokens: Sequence[Token]) -> list[int]:
    """For each index, how many tokens from it on are the same as from the beginning on (the Z function)."""
    count = len(tokens)
    alike = [0] * (count + 1)
    left = right = 0
    for index in range(1, count):
        if index < right:
            alike[index] = min(right - index, alike[index - left])
        while index + alike[index] < count and tokens[alike[index]] == tokens[index + alike[index]]:
            alike[index] += 1
        if index + alike[index] > right:
            left, right = index, index + alike[index]
    return alike
