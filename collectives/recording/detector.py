"""Detects where an iteration of a training job ends and the next begins, from within its process.

Four detectors, in order of precedence; a detector is abandoned for good once one before it applies:

* explicit: the training script marks iterations.
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
"""At least this many steps are kept; a cycle is at most half as long."""

RECENT_HISTORY = 256
"""Number of steps that are searched after a cycle was broken."""

LARGEST_MEMORY = 64
"""Number of broken cycles that are kept."""

FORGIVEN_TURNS = 16
"""A cycle of optimizers that lasted for this many turns was right, though it ended."""

FORGIVEN_REPETITIONS = 64
"""A pattern of operations that lasted for this many repetitions was right: models have fewer equal layers."""

PAUSE_SHARE = 0.1
"""A pattern is trusted at once if its pauses make up this share of the time."""

TOLERATED_STRAYS = 2
"""This many operations from outside the pattern do not break it, if a complete iteration follows."""

REPETITIONS_WITHOUT_LONG_PAUSE = 16
"""A short pattern that had a long pause counts as an iteration after this many repetitions without one."""

SHORTEST_ITERATION_NS = 1_000_000
"""A pattern that repeats faster than this is a loop of operations, not of iterations."""

LONG_PAUSE = 4.0
"""A pause this many times the usual one between repetitions sets repetitions apart."""

OPERATIONS_BEFORE_GAP = 64
"""The gap detector is used only after this many operations without a pattern."""

Signature = tuple[str, int]
"""Name and bytes of an operation."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """The end of an iteration: `operations` operations of the job came before it, and it was at `at_ns`."""

    operations: int
    at_ns: int


@dataclass(frozen=True)
class Detection:
    """The detector in use and its parameters (None: not learned yet, or not applicable).

    Attributes:
        detector: explicit, optimizer, pattern, gap, or none.
        iterations: number of iterations found.
        optimizer_steps: outermost optimizer steps per iteration.
        operations: operations per iteration of the pattern.
        bytes: payload per iteration.
        gap_s: the pause that ends an iteration.
    """

    detector: str
    iterations: int
    optimizer_steps: int | None = None
    operations: int | None = None
    bytes: int | None = None
    gap_s: float | None = None


class IterationDetector:
    """Detects the iterations of one process of a job.

    Every returned boundary is final, and later than all before it, except that the first optimizer step invalidates all
    boundaries before it. While `needs_operations` is set, the caller has to call `follow` before each operation if
    `following` is set, and otherwise `search` from time to time.
    """

    def __init__(self) -> None:
        self.needs_operations = True
        self._explicit = False
        self._steps: StepCycle | None = None
        self._cycle: tuple[Signature, ...] = ()
        self._at = 0
        self._since = 0
        self._strays = 0
        self._strayed = False
        self._broken = BrokenCycles(FORGIVEN_REPETITIONS)
        self._joiner: _BucketJoiner | None = None
        self._gap = IterationTracker()
        self._gap_operations = 0
        self._emitted = 0
        self._iterations = 0

    @property
    def following(self) -> bool:
        """Whether a pattern of operations is known."""
        return bool(self._cycle)

    def mark(self, operations: int, now_ns: int) -> None:
        """The training script marks the beginning of an iteration, after `operations` operations."""
        self._explicit = True
        self.needs_operations = False
        self._iterations += 1

    def step(self, optimizer: int, operations: int, now_ns: int) -> tuple[Boundary, ...]:
        """An outermost step of `optimizer` has ended after `operations` operations.

        The first step invalidates the boundaries found by pattern or gap: they were inside the first iteration.
        """
        if self._explicit:
            return ()
        if self._steps is None:
            self._steps = StepCycle()
            self.needs_operations = False
            self._iterations = self._emitted = 0
        return self._found(self._steps.step(optimizer, Boundary(operations, now_ns)))

    def follow(
        self, signature: Signature, operations: int, idle_since_ns: int
    ) -> tuple[Boundary, ...] | None:
        """An operation is about to be submitted after `operations` others.

        `idle_since_ns` is when the previous one completed (or was submitted, if that is unknown). Returns the boundary
        before this operation, if it begins an iteration; None if it breaks the pattern.
        """
        at = self._at
        cycle = self._cycle
        if cycle[at] != signature:
            return self._stray(signature, operations)
        self._at = at + 1 if at + 1 < len(cycle) else 0
        if at:
            return ()
        if not self._strayed:
            self._strays = 0
        self._strayed = False
        if self._joiner is not None and (joined := self._joiner.add(idle_since_ns)) > 1:
            # This operation begins the second repetition of an iteration that began with the previous one.
            self._joiner = None
            self._cycle = cycle * joined
            self._at = (len(cycle) + 1) % len(self._cycle)
            return ()
        return self._found((Boundary(operations, idle_since_ns),))

    def _stray(self, signature: Signature, operations: int) -> tuple[Boundary, ...] | None:
        """Handle an unexpected operation; one that occurs now and then (logging a loss) does not break the pattern."""
        self._strays += 1
        self._strayed = True
        if signature not in self._cycle and self._strays <= TOLERATED_STRAYS:
            return ()
        self._broken.add(self._cycle, operations - self._since)
        self._cycle = ()
        return None

    def search(self, history: Sequence[PastOperation], at_the_end: bool = False) -> tuple[Boundary, ...]:
        """Search the operations since the last boundary for a pattern, and for gaps if there is none.

        `at_the_end` of a job, a repeating sequence counts as iterations however short its pauses are.
        """
        pattern = find_pattern(history, at_the_end, self._broken)
        if pattern is not None:
            self._cycle, self._at, self._since = pattern.cycle, pattern.at, pattern.since
            self._strays, self._strayed = 0, False
            self._joiner = _BucketJoiner() if len(pattern.cycle) < 3 else None
            return self._found(pattern.boundaries)
        return self._found(self._gaps(history))

    def finish(self, history: Sequence[PastOperation], operations: int, now_ns: int) -> tuple[Boundary, ...]:
        """The boundaries that were still in doubt when the job ended, after `operations` operations."""
        if self._explicit:
            return ()
        if self._steps is not None:
            return self._found(self._steps.finish())
        boundaries = () if self.following else self.search(history, at_the_end=True)
        rest = [seen.signature for seen in history if seen.operations >= self._emitted]
        if self.following and _volume(rest, self._cycle) >= _volume(self._cycle, self._cycle):
            boundaries += self._found((Boundary(operations, now_ns),))
        return boundaries

    def learned(self) -> Detection:
        """The detector in use and its parameters."""
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

    def _gaps(self, history: Sequence[PastOperation]) -> list[Boundary]:
        """The boundaries found by the gap detector, once there were many operations without a pattern."""
        boundaries = []
        for seen in history:
            if seen.operations < self._gap_operations:
                continue
            self._gap_operations = seen.operations + 1
            closed = self._gap.observe(max(1, seen.idle_since_ns + seen.idle_ns), seen.signature[1])
            if closed is not None and self._gap.recognised:
                boundaries.append(seen.boundary())
        return boundaries if self._gap_operations > OPERATIONS_BEFORE_GAP else []

    def _found(self, boundaries: Sequence[Boundary]) -> tuple[Boundary, ...]:
        fresh = []
        for boundary in boundaries:
            # A pattern that is found late repeats boundaries found by the gap. Optimizer steps may follow each other
            # without an operation between them.
            if self._steps is not None or boundary.operations > self._emitted:
                self._emitted = boundary.operations
                fresh.append(boundary)
        self._iterations += len(fresh)
        return tuple(fresh)


# -- optimizer steps ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Step:
    """A past optimizer step; `closed` if an iteration ended with it."""

    optimizer: Hashable
    boundary: Boundary
    closed: bool = False


class StepCycle:
    """The cycle in which optimizers step, learned from the sequence so far.

    The first cycle is adopted as soon as the job's first optimizer steps again, any other after two turns. A cycle that
    turned out to be only part of the real one (a discriminator's first steps) is adopted again only after it has lasted
    longer than before.
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
        """Add a step and the boundary that it may be; returns the boundaries that are now certain."""
        step = _Step(optimizer, boundary)
        self._remember(step)
        if self.period is not None:
            if optimizer == self._cycle[self._at]:
                return self._turn(step)
            self._give_up(self.period)
        self._pending += 1
        return self._search()

    def finish(self) -> list[Boundary]:
        """The boundaries in the pending steps at the end of the job: before each second step of the same optimizer."""
        if self.period is not None or not self._pending:
            return []
        groups = self._groups(len(self._history) - self._pending)
        optimizers = [{step.optimizer for step in group} for group in groups]
        usual = optimizers[-2] if len(groups) > 1 else set(self._cycle)
        if not usual <= optimizers[-1]:
            # Some of the optimizers have not stepped in the last group.
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
        # Older steps only make the search longer.
        kept = max(RECENT_HISTORY, 8 * period)
        if len(self._history) > kept:
            del self._history[:-kept]
            self._complete = False

    def _turn(self, step: _Step) -> list[Boundary]:
        """Handle the expected step."""
        self._lasted += 1
        self._at += 1
        if self._at < len(self._cycle):
            self._pending += 1
            return []
        self._at = self._pending = 0
        return [_close(step)]

    def _search(self) -> list[Boundary]:
        """Search the end of the history for a cycle, less often the longer the history is."""
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
        """Number of steps after which this cycle is trusted; twice as many if others stepped shortly before."""
        period = len(cycle)
        turns = 2 if set(before[-4 * period :]) <= set(cycle) else 4
        if not self._cycle:
            turns = FORGIVEN_TURNS
        return max(turns * period, self._broken.lasted(cycle) + 1)

    def _take(self, period: int, lasted: int) -> list[Boundary]:
        """Adopt this cycle; returns the boundaries so far."""
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
            # A turn that contains a boundary already gets no second one, so that the number of iterations is right.
            if end >= max(count - lasted, count - self._pending) and not any(step.closed for step in turn):
                boundaries.append(_close(self._history[end]))
        self._pending = self._at
        return boundaries

    def _first_of_cycle(self, period: int, start: int) -> int:
        """Index in the history of the first step of a cycle.

        A cycle that begins later in the history begins with the optimizer that was seen first.
        """
        if start == 0 and self._complete:
            return 0
        optimizers = [step.optimizer for step in self._history]
        rank = {optimizer: place for place, optimizer in enumerate(dict.fromkeys(optimizers))}
        return min(
            range(start, start + period), key=lambda at: [rank[each] for each in optimizers[at : at + period]]
        )

    def _before_cycle(self, start: int) -> list[Boundary]:
        """The boundaries in the pending steps before the cycle; their last group is part of its first turn."""
        pending = len(self._history) - self._pending
        return [_close(group[-1]) for group in self._groups(pending, start)[:-1]]

    def _overflow(self) -> list[Boundary]:
        """Give up waiting for a cycle after many pending steps, and divide them at repeated optimizers."""
        first = len(self._history) - self._pending
        different = len({step.optimizer for step in self._history[first:]})
        if self._pending <= 64 + 4 * different:
            return []
        groups = self._groups(first)
        self._pending = len(groups[-1])
        return [_close(group[-1]) for group in groups[:-1]]

    def _groups(self, start: int, stop: int | None = None) -> list[list[_Step]]:
        """Divide steps of the history before each one whose optimizer is in the same group already."""
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
class PastOperation:
    """A past operation.

    Attributes:
        signature: its name and bytes.
        operations: number of operations before it.
        idle_ns: length of the pause before it.
        idle_since_ns: when that pause began.
    """

    signature: Signature
    operations: int
    idle_ns: int
    idle_since_ns: int

    def boundary(self) -> Boundary:
        """The boundary before it, if it begins an iteration."""
        return Boundary(self.operations, self.idle_since_ns)


@dataclass(frozen=True)
class Pattern:
    """A repeating sequence of operations, rotated so that it begins where iterations do.

    Attributes:
        cycle: signatures of the operations of one iteration.
        at: index in `cycle` of the next operation.
        since: number of operations before its first repetition.
        boundaries: those in the history.
    """

    cycle: tuple[Signature, ...]
    at: int
    since: int
    boundaries: tuple[Boundary, ...]


def find_pattern(
    history: Sequence[PastOperation], at_the_end: bool, broken: BrokenCycles | None = None
) -> Pattern | None:
    """The pattern at the end of the history, if it can be trusted.

    It is trusted if its pauses have a sufficient share of the time and an iteration takes long enough, and at the job's
    end in any case; but not if it is one of the `broken` ones (equal layers of a model) that has not lasted longer than
    before.
    """

    def needed(cycle: Sequence[Hashable], before: Sequence[Hashable]) -> int:
        # A short cycle may be buckets of equal size, and so needs three repetitions.
        turns = 3 if len(cycle) < 3 else 2
        return max(turns * len(cycle), broken.lasted(cycle) + 1 if broken else 0)

    found = repetition([seen.signature for seen in history], needed)
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
    history: Sequence[PastOperation], period: int, start: int, at_the_end: bool
) -> tuple[int, int, float] | None:
    """The length of an iteration, its first index in the history's repeating end, and the pause before it.

    Iterations begin after the longest pause. Repetitions within an iteration (buckets of equal size) are joined if
    pauses much longer than the others are at a constant distance; None while that is not certain.
    """
    phase, pause_ns = _longest_pause(history, period, start)
    # The pause before the first operation has no meaning.
    places = range(phase or period, len(history), period)
    pauses = sorted(history[place].idle_ns for place in places) or [0]
    # With two equal buckets every second pause is long; the usual pause is a short one.
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
    """The distance of the last long pauses, if it is constant and not more than may be joined to an iteration."""
    distances = {after - before for before, after in pairwise(long[-3:])}
    if len(long) < needed or len(distances) != 1:
        return None
    distance = distances.pop()
    return distance if distance <= LARGEST_REGROUPING * period else None


def _longest_pause(history: Sequence[PastOperation], period: int, start: int) -> tuple[int, float]:
    def pause_ns(phase: int) -> float:
        places = range(phase or period, len(history), period)
        return median([history[place].idle_ns for place in places] or [0])

    phase = max(range(start, start + period), key=pause_ns)
    return phase, pause_ns(phase)


def _pattern(
    history: Sequence[PastOperation], period: int, start: int, phase: int, pause_ns: float | None
) -> Pattern:
    count = len(history)
    cycle = tuple(history[place].signature for place in range(count - period, count))
    turn = (phase - count) % period
    places = {place for place in range(phase % period, count, period) if place >= start}
    if pause_ns is not None:
        # Iterations before the pattern (before a bucket rebuild) are recognised by their pauses only.
        places |= {place for place in range(start) if history[place].idle_ns >= pause_ns / 2}
    boundaries = []
    since = 0
    for place in sorted(places):
        # Operations during the set-up of a job are part of its first iteration.
        if 2 * _volume([seen.signature for seen in history[since:place]], cycle) >= _volume(cycle, cycle):
            boundaries.append(history[place].boundary())
            since = place
    return Pattern(
        cycle[turn:] + cycle[:turn], (count - phase) % period, history[start].operations, tuple(boundaries)
    )


def _volume(signatures: Sequence[Signature], cycle: Sequence[Signature]) -> int:
    """Bytes of the kind of operation that sends most in the cycle (a barrier counts as one byte)."""
    by_name: dict[str, int] = {}
    for name, nbytes in cycle:
        by_name[name] = by_name.get(name, 0) + nbytes + 1
    main = max(by_name, key=lambda name: by_name[name])
    return sum(nbytes + 1 for name, nbytes in signatures if name == main)


class _BucketJoiner:
    """Recognises that a short pattern being followed is one of several buckets of equal size."""

    def __init__(self) -> None:
        self._last_ns: int | None = None
        self._durations: deque[int] = deque(maxlen=2 * LARGEST_REGROUPING)
        self._count = 0
        self._long: list[int] = []

    def add(self, boundary_ns: int) -> int:
        """Add a boundary; returns the number of repetitions per iteration if it is known now, and else 0."""
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
    """Cycles that were followed and then broken, with the number of steps that each lasted.

    A cycle that lasted for `forgiven_turns` turns was right, and is not kept.
    """

    def __init__(self, forgiven_turns: int) -> None:
        self._forgiven_turns = forgiven_turns
        self._lasted: dict[frozenset[tuple[Hashable, int]], int] = {}

    def add(self, cycle: Sequence[Hashable], lasted: int) -> None:
        """Add a cycle that was broken after `lasted` steps."""
        if lasted >= self._forgiven_turns * len(cycle):
            return
        key = _kind(cycle)
        self._lasted[key] = max(lasted, self._lasted.pop(key, 0))
        if len(self._lasted) > LARGEST_MEMORY:
            del self._lasted[next(iter(self._lasted))]

    def lasted(self, cycle: Sequence[Hashable]) -> int:
        """The largest number of steps that a cycle lasted; 0 if it is not among the broken ones."""
        return self._lasted.get(_kind(cycle), 0) if self._lasted else 0


def _kind(cycle: Sequence[Hashable]) -> frozenset[tuple[Hashable, int]]:
    """A key that is the same for all rotations of a cycle."""
    return frozenset(Counter(cycle).items())


def repetition(
    sequence: Sequence[Hashable], needed: Callable[[list[Hashable], list[Hashable]], int]
) -> tuple[int, int] | None:
    """The smallest sufficiently long-lasting period at the end of the sequence, and the index from which it holds.

    `needed` returns how many items a cycle has to last, given the cycle and the items before its first repetition.
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


def _alike_from(items: Sequence[Hashable]) -> list[int]:
    """For each index, how many items from it on equal those from the beginning on (the Z function)."""
    count = len(items)
    alike = [0] * (count + 1)
    left = right = 0
    for index in range(1, count):
        if index < right:
            alike[index] = min(right - index, alike[index - left])
        while index + alike[index] < count and items[alike[index]] == items[index + alike[index]]:
            alike[index] += 1
        if index + alike[index] > right:
            left, right = index, index + alike[index]
    return alike
