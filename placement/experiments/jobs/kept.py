"""The folder in which a comparison of schedulers on whole jobs keeps its runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mltcp.core.errors import MltcpError, UsageError
from placement.experiments.run_journal import Parse, Run, RunJournal, open_journal


@contextmanager
def kept_runs(folder: Path | None, parse: Parse[Run]) -> Iterator[RunJournal[Run] | None]:
    """The runs that a folder holds, to which finished ones are added; the folder is made if need be. None: no folder.

    Args:
        folder: where they are kept.
        parse: reads a line of the journal.

    Raises:
        UsageError: it is no folder, another command is at work there, or it holds something else.
        MltcpError: it cannot be made or written to.
    """
    if folder is None:
        yield None
        return
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: expected a folder, got another file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MltcpError(f"{folder}: {error.strerror or error}") from None
    with open_journal(folder, parse) as journal:
        yield journal
