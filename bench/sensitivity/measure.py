"""Measures the points of a plan that a folder does not have yet."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from bench.compare.results.journal import writable
from bench.sensitivity.arena import Arena, arena
from bench.sensitivity.drift import second_attempts
from bench.sensitivity.plan import Point, SensitivityPlan
from bench.sensitivity.run import SensitivityRun, run_from_line
from placement.experiments.run_journal import open_journal


def measured(plan: SensitivityPlan, folder: Path, step: Callable[[Point, int], None]) -> list[SensitivityRun]:
    """All runs of a plan, in its order; blocks of pairs during which the reference drifted are measured once more.

    Args:
        plan: what is measured.
        folder: where each run is kept as soon as it is done, and from which runs are taken.
        step: called before each run that is missing, with how many are missing then.

    Raises:
        NotAvailableError: not root, or the kernel lacks something; not if the folder has all runs.
        MltcpError: a run failed; those before it are kept.
    """
    with writable(folder):
        pass
    with open_journal(folder, run_from_line) as journal, ExitStack() as stack:

        @cache
        def place() -> Arena:
            return stack.enter_context(arena(plan))

        def measure(points: Collection[Point]) -> None:
            missing = [point for point in points if plan.key(point) not in journal.runs]
            for number, point in enumerate(missing):
                step(point, len(missing) - number)
                journal.add(place().run(point))

        points = list(plan.points())
        measure(points)
        again = second_attempts(plan, points, journal.runs)
        measure(again.values())
        return [journal.runs[plan.key(again.get(point, point))] for point in points]
