"""Undoes the changes in the journal: when the daemon ends, when it starts again, and in ``mltcp restore``."""

from __future__ import annotations

from collections.abc import Collection

from mltcp.core.errors import MltcpError
from mltcp.daemon.journal.changes import ControlChange
from mltcp.daemon.journal.journal import Entry, Journal
from mltcp.pacing.tc.qdisc_change import QdiscChange


def restore(
    journal: Journal, keep_interfaces: Collection[str] = (), keep_controls: Collection[str] = ()
) -> list[str]:
    """Undo every pending change, the last one first; returns a line for each, with the outcome and the reason.

    A change that somebody else has overridden is left alone, and not tried again.

    Args:
        journal: of the changes.
        keep_interfaces, keep_controls: not undone, because the daemon that is starting takes them over.
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
    # If one change cannot be undone, the others still are.
    try:
        outcome = entry.change.undo()
    except (MltcpError, OSError) as error:
        return f"{entry.change}: not undone: {error}"
    how = outcome.why if outcome.undone else f"left alone: {outcome.why}"
    try:
        journal.undone(entry.number, how)
    except MltcpError as error:
        how += f" (not recorded: {error})"
    return f"{entry.change}: {how}"
