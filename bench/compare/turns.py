"""Interleaves runs: every repeat runs every approach once, and the load of other programs is measured meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from bench.compare.approaches.approach import Approach
from bench.compare.results.runs import ApproachRun, Measured
from bench.lab.processors import BUSY, OtherPrograms

Progress = Callable[[str, int], None]
"""Called with the approach's name and the repeat whenever a job has finished an iteration."""

Turn = Callable[[Approach, int, Progress], ApproachRun]
"""Runs an approach once, in the given repeat."""


class LoadMeter(Protocol):
    """Measures the load of other programs from its construction on."""

    def share(self) -> float:
        """The share of the processors' time, from 0 to 1, that other programs have used so far."""


@dataclass(frozen=True)
class Turns:
    """The order of the runs of a comparison.

    Attributes:
        approaches: as listed in the result. Isolated jobs run first in a repeat: Cassini works with their profiles.
        repeat: how often each of them runs.
        retry_busy: how often a run is repeated that other programs disturbed.
        load_meter: starts to measure the load of other programs; None: on this machine.
    """

    approaches: Sequence[Approach]
    repeat: int = 1
    retry_busy: int = 0
    load_meter: Callable[[], LoadMeter] | None = None

    def run(
        self, measured: Measured, turn: Turn, progress: Progress, keep: Callable[[Measured], None]
    ) -> Measured:
        """Add all runs to `measured`; `keep` is called with the runs so far after each of them."""
        order = [approach.name for approach in self.approaches]
        for repeat in range(self.repeat):
            for approach in sorted(self.approaches, key=lambda approach: not approach.isolated):
                run = self._undisturbed(approach, repeat, turn, progress)
                runs = sorted((*measured.runs, run), key=lambda run: (run.repeat, order.index(run.approach)))
                measured = replace(measured, runs=tuple(runs))
                keep(measured)
        return measured

    def _undisturbed(self, approach: Approach, repeat: int, turn: Turn, progress: Progress) -> ApproachRun:
        """The first run that was not disturbed or, if none was, the one with the least load of other programs."""
        best = self._observed(approach, repeat, turn, progress)
        for _ in range(self.retry_busy):
            if _load(best) <= BUSY:
                break
            # Iterations of a retry are not counted: the progress bar has no steps for them.
            again = self._observed(approach, repeat, turn, lambda name, repeat: None)
            best = min(best, again, key=_load)
        return best

    def _observed(self, approach: Approach, repeat: int, turn: Turn, progress: Progress) -> ApproachRun:
        others = OtherPrograms() if self.load_meter is None else self.load_meter()
        run = turn(approach, repeat, progress)
        return replace(run, other_load=others.share())


def _load(run: ApproachRun) -> float:
    return run.other_load or 0.0
