"""Measures the points of a sweep that a folder does not have yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.async_sgd.arena import arena
from bench.async_sgd.run import AsyncRun, run_from_line
from bench.async_sgd.sweep import AsyncSweep, Point
from bench.compare.results.journal import writable
from placement.experiments.run_journal import RunJournal, open_journal

Step = Callable[[Point], None]


def measured(
    sweep: AsyncSweep, folder: Path | None, step: Step, capture: Path | None = None
) -> list[AsyncRun]:
    """All runs of a sweep, in its order.

    Args:
        sweep: what is measured.
        folder: where each run is kept as soon as it is done, and from which runs are taken; None: nowhere.
        step: called after every update.
        capture: a file for the packets of the first run with one worker.

    Raises:
        NotAvailableError: not root, or the kernel lacks something; not if the folder has all runs.
        MltcpError: a run failed; those before it are kept.
    """
    with _kept(folder) as journal:
        found = dict(journal.runs) if journal is not None else {}
        missing = [point for point in sweep.points() if sweep.key(point) not in found]
        if missing:
            with arena(sweep) as place:
                for point in missing:
                    wanted = capture if point.workers == 1 else None
                    run = place.run(point, lambda point=point: step(point), wanted)  # type: ignore[misc]
                    capture = None if wanted is not None else capture
                    found[run.key] = run
                    if journal is not None:
                        journal.add(run)
    return [found[sweep.key(point)] for point in sweep.points()]


def updates_missing(sweep: AsyncSweep, folder: Path | None) -> int:
    """The updates that are still to be measured: the length of the progress bar."""
    with _kept(folder) as journal:
        found = set(journal.runs) if journal is not None else set()
    return sum(sweep.updates for point in sweep.points() if sweep.key(point) not in found)


@contextmanager
def _kept(folder: Path | None) -> Iterator[RunJournal[AsyncRun] | None]:
    if folder is None:
        yield None
        return
    with writable(folder):
        pass
    with open_journal(folder, run_from_line) as journal:
        yield journal
