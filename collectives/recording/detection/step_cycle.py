"""The cycle in which the optimizers of a job step."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from collectives.recording.detection.repetition import Boundary, BrokenCycles, repetition

LARGEST_HISTORY = 4096
"""At least this many steps are kept; a cycle is at most half as long."""

RECENT_HISTORY = 256
"""Number of steps that are searched after a cycle was broken."""

FORGIVEN_TURNS = 16
"""A cycle of optimizers that lasted for this many turns was right, though it ended."""


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
