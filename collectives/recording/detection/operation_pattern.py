"""The repeating sequence of operations, cut where the pause before an operation is longest."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from collectives.recording.detection.repetition import (
    Boundary,
    BrokenCycles,
    PastOperation,
    Signature,
    repetition,
)
from mltcp.control.iteration import LARGEST_REGROUPING

PAUSE_SHARE = 0.1
"""A pattern is trusted at once if its pauses make up this share of the time."""

REPETITIONS_WITHOUT_LONG_PAUSE = 16
"""A short pattern that had a long pause counts as an iteration after this many repetitions without one."""

SHORTEST_ITERATION_NS = 1_000_000
"""A pattern that repeats faster than this is a loop of operations, not of iterations."""

LONG_PAUSE = 4.0
"""A pause this many times the usual one between repetitions sets repetitions apart."""


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
        if 2 * volume([seen.signature for seen in history[since:place]], cycle) >= volume(cycle, cycle):
            boundaries.append(history[place].boundary())
            since = place
    return Pattern(
        cycle[turn:] + cycle[:turn], (count - phase) % period, history[start].operations, tuple(boundaries)
    )


def volume(signatures: Sequence[Signature], cycle: Sequence[Signature]) -> int:
    """Bytes of the kind of operation that sends most in the cycle (a barrier counts as one byte)."""
    by_name: dict[str, int] = {}
    for name, nbytes in cycle:
        by_name[name] = by_name.get(name, 0) + nbytes + 1
    main = max(by_name, key=lambda name: by_name[name])
    return sum(nbytes + 1 for name, nbytes in signatures if name == main)


class BucketJoiner:
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
