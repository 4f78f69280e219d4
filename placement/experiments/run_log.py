"""The finished runs of `mltcp-placement compare` in a folder."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from placement.experiments.run import SimulationRun
from placement.experiments.run_journal import NAME, RunJournal, open_journal, read_journal

__all__ = ["NAME", "open_log", "read_log"]


def open_log(folder: Path) -> AbstractContextManager[RunJournal[SimulationRun]]:
    """See `open_journal`."""
    return open_journal(folder, SimulationRun.from_line)


def read_log(folder: Path) -> dict[str, SimulationRun]:
    """See `read_journal`."""
    return read_journal(folder, SimulationRun.from_line)
