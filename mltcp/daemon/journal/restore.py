"""Undoes what the journal says is changed: at the daemon's end, at its next start, and by ``mltcp restore``."""

from __future__ import annotations

from collections.abc import Collection

from mltcp.core.errors import MltcpError
from mltcp.daemon.journal.changes import ControlChange
from mltcp.daemon.journal.journal import Entry, Journal
from mltcp.pacing.qdisc_change import QdiscChange


def restore(
    journal: Journal, keep_interfaces: Collection[str] = (), keep_controls: Collection[str] = ()
) -> list[str]:
    """Undo every change that is not undone yet, the last first; returns a line for each, with what and why.

    What somebody else has changed since is left alone, and not tried again.

    Args:
        journal: of the changes.
        keep_interfaces, keep_controls: what a daemon that is starting would do again at once: it takes it over.
    """
    lines = []
    for entry in journal.pending():
        if not _is_kept(entry, keep_interfaces, keep_controls):
            lines.append(_undo(journal, entry))
    return lines


def _is_kept(entry: Entry, interfaces: Collection[str], controls: Collection[str]) -> bool:
    change = entry.change
    if isinstance(change, QdiscChange):
        return change.interface in interfaces
    return isinstance(change, ControlChange) and change.name in controls


def _undo(journal: Journal, entry: Entry) -> str:
    # Whatever becomes of one change, the others are undone too.
    try:
        outcome = entry.change.undo()
    except (MltcpError, OSError) as error:
        return f"{entry.change}: not undone: {error}"
    how = outcome.why if outcome.undone else f"left alone: {outcome.why}"
    try:
        journal.undone(entry.number, how)
    except MltcpError as error:
        how += f" (not noted: {error})"
    return f"{entry.change}: {how}"
