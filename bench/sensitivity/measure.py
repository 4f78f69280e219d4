"""Measures the points of a plan that a folder does not have yet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench.compare.results.journal import writable
from bench.sensitivity.arena import arena
from bench.sensitivity.plan import Point, SensitivityPlan
from bench.sensitivity.run import SensitivityRun, run_from_line
from placement.experiments.run_journal import open_journal


def measured(plan: SensitivityPlan, folder: Path, step: Callable[[Point, int], None]) -> list[SensitivityRun]:
    """All runs of a plan, in its order.

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
    with open_journal(folder, run_from_line) as journal:
        missing = [point for point in plan.points() if plan.key(point) not in journal.runs]
        if missing:
            with arena(plan) as place:
                for number, point in enumerate(missing):
                    step(point, len(missing) - number)
                    journal.add(place.run(point))
        return [journal.runs[plan.key(point)] for point in plan.points()]
