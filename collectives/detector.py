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
"""So many steps are remembered while no repetition has been found."""

PAUSE_SHARE = 0.1
"""A pattern is trusted at once if its pauses make up this share of the time."""

SHORTEST_ITERATION_NS = 1_000_000
"""What repeats faster than this is a loop of operations, not of iterations."""

LONG_PAUSE = 4.0
"""Pauses up to this many times shorter than the longest one are as good as it."""

FEW_PAUSES = 12
"""With fewer pauses than this, pauses of different lengths may have a rhythm that does not show yet."""

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
    takes back. While `needs_operations`, the caller asks `follow` before each operation if `following`, and else
    `search` from time to time.
    """

    def __init__(self) -> None:
        self.needs_operations = True
        self._explicit = False
        self._steps: StepCycle | None = None
        self._cycle: tuple[Token, ...] = ()
        self._at = 0
        self._gap = IterationTracker()
        self._gap_operations = 0
        self._emitted = 0
        self._iterations = 0

    @property
    def following(self) -> bool:
        """Whether a pattern of operations is known."""
        return bool(self._cycle)

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

    def follow(self, token: Token, operations: int, idle_since_ns: int) -> tuple[Boundary, ...] | None:
        """An operation is about to be submitted, `operations` after the job's first.

        `idle_since_ns` is when the one before it completed (or was submitted, if that is unknown). Returns the boundary
        before it, if it begins an iteration; None if it breaks the pattern.
        """
        at = self._at
        cycle = self._cycle
        if cycle[at] != token:
            self._cycle = ()
            return None
        self._at = at + 1 if at + 1 < len(cycle) else 0
        return () if at else self._found((Boundary(operations, idle_since_ns),))

    def search(self, history: Sequence[Seen], at_the_end: bool = False) -> tuple[Boundary, ...]:
        """Look for a pattern in the operations since the last boundary, and for gaps if there is none.

        `at_the_end` of a job, what repeats is taken for iterations however short its pauses are.
        """
        pattern = find_pattern(history, at_the_end)
        if pattern is not None:
            self._cycle, self._at = pattern.cycle, pattern.at
            return self._found(pattern.boundaries)
        return self._found(self._gaps(history))

    def finish(self, history: Sequence[Seen], operations: int, now_ns: int) -> tuple[Boundary, ...]:
        """The job ends after so many operations: the iterations that were still in doubt."""
        if self._explicit:
            return ()
        if self._steps is not None:
            return self._found(self._steps.finish())
        boundaries = () if self.following else self.search(history, at_the_end=True)
        if self.following and self._at == 0:
            boundaries += self._found((Boundary(operations, now_ns),))
        return boundaries

    def learned(self) -> Detection:
        """Which detector is in force, and what it has learned."""
        if self._explicit:
            return Detection("explicit", self._iterations)
        if self._steps is not None:
            return Detection("optimizer", self._iterations, optimizer_steps=self._steps.period)
        if self._cycle:
            size = sum(nbytes for _, nbytes in self._cycle)
            return Detection("pattern", self._iterations, operations=len(self._cycle), bytes=size)
        gap = self._gap
        if gap.recognised:
            return Detection("gap", self._iterations, bytes=gap.total_bytes, gap_s=gap.gap_ns / 1e9)
        return Detection("none", self._iterations)

    def _gaps(self, history: Sequence[Seen]) -> list[Boundary]:
        """The boundaries that the gap finds, once there were many operations without a pattern."""
        boundaries = []
        for seen in history:
            if seen.operations < self._gap_operations:
                continue
            self._gap_operations = seen.operations + 1
            closed = self._gap.observe(max(1, seen.idle_since_ns + seen.idle_ns), seen.token[1])
            if closed is not None and self._gap.recognised:
                boundaries.append(seen.boundary())
        return boundaries if self._gap_operations > OPERATIONS_BEFORE_GAP else []

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
class Seen:
    """An operation of the past: what it was, how many came before it, the pause before it, and since when that was."""

    token: Token
    operations: int
    idle_ns: int
    idle_since_ns: int

    def boundary(self) -> Boundary:
        """The boundary before it, should it begin an iteration."""
        return Boundary(self.operations, self.idle_since_ns)


@dataclass(frozen=True)
class Pattern:
    """A repeating sequence of operations, turned so that it begins where iterations do.

    `at` is the place in `cycle` of the operation that comes next, `boundaries` those in the history.
    """

    cycle: tuple[Token, ...]
    at: int
    boundaries: tuple[Boundary, ...]


def find_pattern(history: Sequence[Seen], at_the_end: bool) -> Pattern | None:
    """The pattern in which the history ends, if it can be trusted.

    It can if its pauses make up a share of the time and it takes long enough; at the job's end in any case.
    """
    repetition = _repetition([seen.token for seen in history])
    if repetition is None:
        return None
    period, start = repetition
    parted = _parted(history, period, start)
    if parted is None and not at_the_end:
        return None
    period, phase, pause_ns = parted or (period, *_longest_pause(history, period, start))
    last = history[-1]
    elapsed_ns = max(1, last.idle_since_ns + last.idle_ns - history[start].idle_since_ns)
    repetitions = (len(history) - start) // period
    paused = pause_ns * repetitions >= PAUSE_SHARE * elapsed_ns
    if not at_the_end and (not paused or elapsed_ns < SHORTEST_ITERATION_NS * repetitions):
        return None
    return _pattern(history, period, start, phase, pause_ns if paused else None)


def _parted(history: Sequence[Seen], period: int, start: int) -> tuple[int, int, float] | None:
    """The length of an iteration, where in the history's repeating end it begins, and the pause before it.

    Iterations part where the pause is longest. Repetitions within an iteration (buckets of equal size) are joined if
    pauses much longer than the others come at a constant distance. None while there are too few to tell.
    """
    phase, pause_ns = _longest_pause(history, period, start)
    places = range(phase, len(history), period)
    longest_ns = max(history[place].idle_ns for place in places)
    # The first operation of all has no pause before it that would mean anything.
    long = [place for place in places if place > 0 and history[place].idle_ns * LONG_PAUSE > longest_ns]
    distances = {after - before for before, after in pairwise(long)}
    if len(long) >= 3 and len(distances) == 1:
        return distances.pop(), long[0], median(history[place].idle_ns for place in long)
    pauses = [history[place].idle_ns for place in places if place > 0]
    if len(pauses) < FEW_PAUSES and pauses and max(pauses) > LONG_PAUSE * min(pauses):
        return None
    return period, phase, pause_ns


def _longest_pause(history: Sequence[Seen], period: int, start: int) -> tuple[int, float]:
    def pause_ns(phase: int) -> float:
        places = range(phase or period, len(history), period)
        return median([history[place].idle_ns for place in places] or [0])

    phase = max(range(start, start + period), key=pause_ns)
    return phase, pause_ns(phase)


def _pattern(history: Sequence[Seen], period: int, start: int, phase: int, pause_ns: float | None) -> Pattern:
    count = len(history)
    cycle = tuple(history[place].token for place in range(count - period, count))
    turn = (phase - count) % period
    places = {place for place in range(phase % period, count, period) if place >= start}
    if pause_ns is not None:
        # Iterations before the pattern set in (a bucket rebuild) show by their pauses only.
        places |= {place for place in range(start) if history[place].idle_ns >= pause_ns / 2}
    boundaries = tuple(history[place].boundary() for place in sorted(places) if history[place].operations > 0)
    return Pattern(cycle[turn:] + cycle[:turn], (count - phase) % period, boundaries)


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
