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

from collections.abc import Sequence
from dataclasses import dataclass

from collectives.recording.detection.operation_pattern import BucketJoiner, find_pattern, volume
from collectives.recording.detection.repetition import Boundary, BrokenCycles, PastOperation, Signature
from collectives.recording.detection.step_cycle import StepCycle
from mltcp.control.iteration import IterationTracker

FORGIVEN_REPETITIONS = 64
"""A pattern of operations that lasted for this many repetitions was right: models have fewer equal layers."""

TOLERATED_STRAYS = 2
"""This many operations from outside the pattern do not break it, if a complete iteration follows."""

OPERATIONS_BEFORE_GAP = 64
"""The gap detector is used only after this many operations without a pattern."""


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
        self._joiner: BucketJoiner | None = None
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
            self._joiner = BucketJoiner() if len(pattern.cycle) < 3 else None
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
        if self.following and volume(rest, self._cycle) >= volume(self._cycle, self._cycle):
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
