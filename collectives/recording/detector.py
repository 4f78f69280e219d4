"""Where one iteration of a training job ends and the next begins, as its process can tell without asking the user.

Four detectors, in this order; each gives way to the ones before it for good once those have something to go by:

* explicit: the user marks iterations.
* optimizer: the end of the outermost optimizer step. Where several optimizers take turns (a GAN's, or one for each
  parameter), an iteration is one cycle of the sequence in which they step.
* pattern: the repeating sequence of (operation, bytes), cut where the pause before an operation is longest.
* gap: pauses that always enclose the same bytes (mltcp.control.iteration, as the kernel does it).

Pure logic: no torch, no clock. Times are nanoseconds of any monotonic clock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from mltcp.control.iteration import LARGEST_REGROUPING, IterationTracker

LARGEST_HISTORY = 4096
"""At least so many steps are remembered, if there were as many; a cycle is at most half as long."""

RECENT_HISTORY = 256
"""So many steps are still looked at when a cycle is broken."""

LARGEST_MEMORY = 64
"""So many cycles are remembered that did not last."""

FORGIVEN_TURNS = 16
"""A cycle of optimizers that lasted for so many turns was the right one, though it ended."""

FORGIVEN_REPETITIONS = 64
"""A pattern of operations that lasted for so many repetitions was the right one: models have fewer equal layers."""

PAUSE_SHARE = 0.1
"""A pattern is trusted at once if its pauses make up this share of the time."""

TOLERATED_STRAYS = 2
"""So many operations that are none of the pattern's do not break it, if it has one whole iteration then."""

REPETITIONS_WITHOUT_LONG_PAUSE = 16
"""A short pattern that had a long pause is an iteration of its own after so many without one."""

SHORTEST_ITERATION_NS = 1_000_000
"""What repeats faster than this is a loop of operations, not of iterations."""

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
    takes back. While `needs_operations`, the caller asks `follow` before each operation if `following`, and else
    `search` from time to time.
    """

    def __init__(self) -> None:
        self.needs_operations = True
        self._explicit = False
        self._steps: StepCycle | None = None
        self._cycle: tuple[Token, ...] = ()
        self._at = 0
        self._since = 0
        self._strays = 0
        self._strayed = False
        self._broken = BrokenCycles(FORGIVEN_REPETITIONS)
        self._joining: _Joining | None = None
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
            return self._stray(token, operations)
        self._at = at + 1 if at + 1 < len(cycle) else 0
        if at:
            return ()
        if not self._strayed:
            self._strays = 0
        self._strayed = False
        if self._joining is not None and (joined := self._joining.add(idle_since_ns)) > 1:
            # This operation is the second repetition of an iteration, which has begun before the one before it.
            self._joining = None
            self._cycle = cycle * joined
            self._at = (len(cycle) + 1) % len(self._cycle)
            return ()
        return self._found((Boundary(operations, idle_since_ns),))

    def _stray(self, token: Token, operations: int) -> tuple[Boundary, ...] | None:
        """An operation that was not expected: a loss that is logged now and then does not break the pattern."""
        self._strays += 1
        self._strayed = True
        if token not in self._cycle and self._strays <= TOLERATED_STRAYS:
            return ()
        self._broken.add(self._cycle, operations - self._since)
        self._cycle = ()
        return None

    def search(self, history: Sequence[Seen], at_the_end: bool = False) -> tuple[Boundary, ...]:
        """Look for a pattern in the operations since the last boundary, and for gaps if there is none.

        `at_the_end` of a job, what repeats is taken for iterations however short its pauses are.
        """
        pattern = find_pattern(history, at_the_end, self._broken)
        if pattern is not None:
            self._cycle, self._at, self._since = pattern.cycle, pattern.at, pattern.since
            self._strays, self._strayed = 0, False
            self._joining = _Joining() if len(pattern.cycle) < 3 else None
            return self._found(pattern.boundaries)
        return self._found(self._gaps(history))

    def finish(self, history: Sequence[Seen], operations: int, now_ns: int) -> tuple[Boundary, ...]:
        """The job ends after so many operations: the iterations that were still in doubt."""
        if self._explicit:
            return ()
        if self._steps is not None:
            return self._found(self._steps.finish())
        boundaries = () if self.following else self.search(history, at_the_end=True)
        rest = [seen.token for seen in history if seen.operations >= self._emitted]
        if self.following and _volume(rest, self._cycle) >= _volume(self._cycle, self._cycle):
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


# -- optimizer steps ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Step:
    """A step that has happened; `closed` if an iteration has been ended at it."""

    optimizer: Hashable
    boundary: Boundary
    closed: bool = False


class StepCycle:
    """The cycle in which optimizers step, learned from the sequence so far.

    The first is taken to be complete as soon as the job's first optimizer steps again, any other after two turns. What
    turned out to be only a part of the cycle (a discriminator's first steps) is not taken again before it has lasted
    longer than then.
    """

    def __init__(self) -> None:
        self.period: int | None = None
        self._history: list[_Step] = []
        self._complete = True
        self._cycle: list[Hashable] = []
        self._at = 0
        self._lasted = 0
        self._pending = 0
        self._searched = 0
        self._broken = BrokenCycles(FORGIVEN_TURNS)

    def step(self, optimizer: Hashable, boundary: Boundary) -> list[Boundary]:
        """A step and the boundary that it may be; returns the boundaries that are now certain."""
        step = _Step(optimizer, boundary)
        self._remember(step)
        if self.period is not None:
            if optimizer == self._cycle[self._at]:
                return self._turn(step)
            self._give_up(self.period)
        self._pending += 1
        return self._search()

    def finish(self) -> list[Boundary]:
        """The job ends: what has not repeated yet ends where an optimizer would have stepped a second time."""
        if self.period is not None or not self._pending:
            return []
        groups = self._groups(len(self._history) - self._pending)
        optimizers = [{step.optimizer for step in group} for group in groups]
        usual = optimizers[-2] if len(groups) > 1 else set(self._cycle)
        if not usual <= optimizers[-1]:
            # Some of the optimizers have not had their turn any more.
            groups.pop()
        self._pending = 0
        return [_close(group[-1]) for group in groups]

    def _remember(self, step: _Step) -> None:
        self._history.append(step)
        if len(self._history) > 2 * LARGEST_HISTORY:
            del self._history[:-LARGEST_HISTORY]
            self._complete = False
            self._pending = min(self._pending, LARGEST_HISTORY - 1)

    def _give_up(self, period: int) -> None:
        self._broken.add(self._cycle, self._lasted)
        self.period, self._searched = None, 0
        # What is long past only makes the search longer.
        kept = max(RECENT_HISTORY, 8 * period)
        if len(self._history) > kept:
            del self._history[:-kept]
            self._complete = False

    def _turn(self, step: _Step) -> list[Boundary]:
        """The step that was expected."""
        self._lasted += 1
        self._at += 1
        if self._at < len(self._cycle):
            self._pending += 1
            return []
        self._at = self._pending = 0
        return [_close(step)]

    def _search(self) -> list[Boundary]:
        """Look for a cycle at the end of the history; the longer that is, the less often."""
        count = len(self._history)
        first = not self._cycle and self._complete and count > 1
        if first and self._history[-1].optimizer == self._history[0].optimizer:
            return self._take(count - 1, count)
        self._searched += 1
        if self._searched > 128 and self._searched % (1 + (count >> 6)):
            return []
        found = repetition([step.optimizer for step in self._history], self._needed)
        if found is None:
            return self._overflow()
        period, start = found
        return self._take(period, count - start)

    def _needed(self, cycle: list[Hashable], before: list[Hashable]) -> int:
        """After how many steps this cycle can be trusted; twice as many if others stepped shortly before."""
        period = len(cycle)
        turns = 2 if set(before[-4 * period :]) <= set(cycle) else 4
        if not self._cycle:
            turns = FORGIVEN_TURNS
        return max(turns * period, self._broken.lasted(cycle) + 1)

    def _take(self, period: int, lasted: int) -> list[Boundary]:
        """Follow this cycle from now on; returns the boundaries up to now."""
        count = len(self._history)
        first = self._first_of_cycle(period, count - lasted)
        self.period = period
        self._cycle = [step.optimizer for step in self._history[first : first + period]]
        self._lasted = lasted
        self._at = (count - first) % period
        ends = range((first - 1) % period, count, period)
        boundaries = self._before_cycle(count - lasted)
        for end in ends:
            turn = self._history[max(0, end - period + 1) : end + 1]
            # A turn of which a part was taken for an iteration gets no other one, so that their number is right.
            if end >= max(count - lasted, count - self._pending) and not any(step.closed for step in turn):
                boundaries.append(_close(self._history[end]))
        self._pending = self._at
        return boundaries

    def _first_of_cycle(self, period: int, start: int) -> int:
        """From which index of the history on cycles are counted.

        A cycle that sets in later begins with the optimizer that was seen first.
        """
        if start == 0 and self._complete:
            return 0
        optimizers = [step.optimizer for step in self._history]
        rank = {optimizer: place for place, optimizer in enumerate(dict.fromkeys(optimizers))}
        return min(
            range(start, start + period), key=lambda at: [rank[each] for each in optimizers[at : at + period]]
        )

    def _before_cycle(self, start: int) -> list[Boundary]:
        """The boundaries in the pending steps before the cycle; the last group of them runs into its first turn."""
        pending = len(self._history) - self._pending
        return [_close(group[-1]) for group in self._groups(pending, start)[:-1]]

    def _overflow(self) -> list[Boundary]:
        """Where nothing repeats for long, do not wait for ever."""
        first = len(self._history) - self._pending
        different = len({step.optimizer for step in self._history[first:]})
        if self._pending <= 64 + 4 * different:
            return []
        groups = self._groups(first)
        self._pending = len(groups[-1])
        return [_close(group[-1]) for group in groups[:-1]]

    def _groups(self, start: int, stop: int | None = None) -> list[list[_Step]]:
        """Steps of the history, parted before each one whose optimizer has stepped in the same group already."""
        groups: list[list[_Step]] = []
        seen: set[Hashable] = set()
        for step in self._history[start:stop]:
            if not groups or step.optimizer in seen:
                groups.append([])
                seen = set()
            groups[-1].append(step)
            seen.add(step.optimizer)
        return groups


def _close(step: _Step) -> Boundary:
    step.closed = True
    return step.boundary


# -- the pattern of operations -----------------------------------------------------------------------------------------


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

    `at` is the place in `cycle` of the operation that comes next, `since` how many operations came before its first
    repetition, `boundaries` those in the history.
    """

    cycle: tuple[Token, ...]
    at: int
    since: int
    boundaries: tuple[Boundary, ...]


def find_pattern(
    history: Sequence[Seen], at_the_end: bool, broken: BrokenCycles | None = None
) -> Pattern | None:
    """The pattern in which the history ends, if it can be trusted.

    It can if its pauses make up a share of the time and it takes long enough; at the job's end in any case. Not if it
    is one of the `broken` ones (equal layers of a model) and has not lasted longer than then.
    """

    def needed(cycle: Sequence[Hashable], before: Sequence[Hashable]) -> int:
        # Three repetitions of what buckets of equal size also show.
        turns = 3 if len(cycle) < 3 else 2
        return max(turns * len(cycle), broken.lasted(cycle) + 1 if broken else 0)

    found = repetition([seen.token for seen in history], needed)
    if found is None:
        return None
    period, start = found
    parted = _parted(history, period, start, at_the_end)
    if parted is None:
        return None
    period, phase, pause_ns = parted
    last = history[-1]
    elapsed_ns = max(1, last.idle_since_ns + last.idle_ns - history[start].idle_since_ns)
    repetitions = (len(history) - start) // period
    paused = pause_ns * repetitions >= PAUSE_SHARE * elapsed_ns
    if not at_the_end and (not paused or elapsed_ns < SHORTEST_ITERATION_NS * repetitions):
        return None
    return _pattern(history, period, start, phase, pause_ns if paused else None)


def _parted(
    history: Sequence[Seen], period: int, start: int, at_the_end: bool
) -> tuple[int, int, float] | None:
    """The length of an iteration, where in the history's repeating end it begins, and the pause before it.

    Iterations part where the pause is longest. Repetitions within an iteration (buckets of equal size) are joined if
    pauses much longer than the others come at a constant distance; None while that is not clear.
    """
    phase, pause_ns = _longest_pause(history, period, start)
    # The first operation has no pause before it that would mean anything.
    places = range(phase or period, len(history), period)
    pauses = sorted(history[place].idle_ns for place in places) or [0]
    # Of two equal buckets every second pause is long: the usual one is a short one.
    usual_ns = pauses[(len(pauses) - 1) // 4]
    threshold_ns = max(LONG_PAUSE * usual_ns, pauses[-1] / LONG_PAUSE)
    long = [place for place in places if history[place].idle_ns > threshold_ns]
    if not long or period >= 3:
        return period, phase, pause_ns
    since_long = len(history) - long[-1]
    distance = _distance([0, *long] if at_the_end else long, period, 2 if at_the_end else 3)
    if distance is not None and since_long <= distance:
        return distance, long[-1], median(history[place].idle_ns for place in long[-3:])
    certain = at_the_end or since_long > REPETITIONS_WITHOUT_LONG_PAUSE * period
    return (period, phase, pause_ns) if certain else None


def _distance(long: Sequence[int], period: int, needed: int) -> int | None:
    """How far apart the last of the long pauses are, if that is constant and no more than an iteration may join."""
    distances = {after - before for before, after in pairwise(long[-3:])}
    if len(long) < needed or len(distances) != 1:
        return None
    distance = distances.pop()
    return distance if distance <= LARGEST_REGROUPING * period else None


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
    boundaries = []
    since = 0
    for place in sorted(places):
        # What a job sends while it is set up is part of its first iteration.
        if 2 * _volume([seen.token for seen in history[since:place]], cycle) >= _volume(cycle, cycle):
            boundaries.append(history[place].boundary())
            since = place
    return Pattern(
        cycle[turn:] + cycle[:turn], (count - phase) % period, history[start].operations, tuple(boundaries)
    )


def _volume(tokens: Sequence[Token], cycle: Sequence[Token]) -> int:
    """How much is sent by the kind of operation that sends most in the cycle (a barrier counts as a byte)."""
    by_name: dict[str, int] = {}
    for name, nbytes in cycle:
        by_name[name] = by_name.get(name, 0) + nbytes + 1
    main = max(by_name, key=lambda name: by_name[name])
    return sum(nbytes + 1 for name, nbytes in tokens if name == main)


class _Joining:
    """Watches a short pattern that is being followed: is it one of several buckets of equal size?"""

    def __init__(self) -> None:
        self._last_ns: int | None = None
        self._durations: deque[int] = deque(maxlen=2 * LARGEST_REGROUPING)
        self._count = 0
        self._long: list[int] = []

    def add(self, boundary_ns: int) -> int:
        """A boundary; returns how many repetitions make up an iteration if that shows now, and else 0."""
        last_ns, self._last_ns = self._last_ns, boundary_ns
        if last_ns is None:
            return 0
        duration_ns = boundary_ns - last_ns
        self._count += 1
        self._durations.append(duration_ns)
        usual_ns = sorted(self._durations)[(len(self._durations) - 1) // 4]
        if duration_ns <= LONG_PAUSE * usual_ns:
            return 0
        self._long = [*self._long[-2:], self._count]
        return _distance(self._long, 1, 3) or 0


# -- repetition --------------------------------------------------------------------------------------------------------


class BrokenCycles:
    """Cycles that were once followed and then broken: how long each lasted.

    One that had lasted for `forgiven_turns` turns was no mistake, and is not remembered.
    """

    def __init__(self, forgiven_turns: int) -> None:
        self._forgiven_turns = forgiven_turns
        self._lasted: dict[frozenset[tuple[Hashable, int]], int] = {}

    def add(self, cycle: Sequence[Hashable], lasted: int) -> None:
        """This cycle was broken after so many steps."""
        if lasted >= self._forgiven_turns * len(cycle):
            return
        key = _kind(cycle)
        self._lasted[key] = max(lasted, self._lasted.pop(key, 0))
        if len(self._lasted) > LARGEST_MEMORY:
            del self._lasted[next(iter(self._lasted))]

    def lasted(self, cycle: Sequence[Hashable]) -> int:
        """The most steps that it lasted, 0 if it is not known."""
        return self._lasted.get(_kind(cycle), 0) if self._lasted else 0


def _kind(cycle: Sequence[Hashable]) -> frozenset[tuple[Hashable, int]]:
    """The same for all rotations of a cycle."""
    return frozenset(Counter(cycle).items())


def repetition(
    sequence: Sequence[Hashable], needed: Callable[[list[Hashable], list[Hashable]], int]
) -> tuple[int, int] | None:
    """The smallest period of the sequence's end that lasts long enough, and from which index on it holds.

    `needed` says how long that is for a cycle, given it and what came before all its repetitions.
    """
    backwards = sequence[::-1]
    alike = _alike_from(backwards)
    count = len(sequence)
    smaller: list[int] = []
    for period in range(1, count // 2 + 1):
        lasts = period + alike[period]
        if lasts < 2 * period or any(period % each == 0 and each + alike[each] >= period for each in smaller):
            continue
        smaller.append(period)
        if lasts >= needed(list(sequence[count - period :]), list(sequence[: count - lasts])):
            return period, count - lasts
    return None


def _alike_from(tokens: Sequence[Hashable]) -> list[int]:
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
