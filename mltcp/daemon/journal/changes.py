"""The kinds of change that the daemon makes on a host, and how each is undone.

Nothing is undone that somebody else has changed since: it is left alone, and reported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mltcp.ebpf.congestion_controls import Controls, is_alive
from mltcp.pacing.qdisc_change import QdiscChange, UndoOutcome
from mltcp.pacing.qdiscs import SavedQdisc


@dataclass(frozen=True)
class ControlChange:
    """A congestion control that we loaded; `root` is where its pins are."""

    name: str
    root: str

    def __str__(self) -> str:
        return f"the congestion control {self.name}"

    def undo(self) -> UndoOutcome:
        """Unload it. Flows that are under it keep it until they close: the kernel holds it for them."""
        controls = Controls(Path(self.root))
        if self.name not in controls.loaded():
            controls.unload([self.name], force=True)  # a pin of one that was never registered
            return UndoOutcome(True, "it is not loaded any more")
        strangers = [
            job.name
            for job in controls.jobs().values()
            if job.owner and job.owner != os.getpid() and is_alive(job.owner)
        ]
        if strangers:
            return UndoOutcome(False, f"job {strangers[0]}, started without the daemon, is running under it")
        controls.unload([self.name], force=True)
        return UndoOutcome(True, "unloaded")


Change = QdiscChange | ControlChange

_KINDS: dict[str, type[QdiscChange] | type[ControlChange]] = {"qdisc": QdiscChange, "control": ControlChange}


def document_of(change: Change) -> dict[str, Any]:
    """A change as JSON."""
    kind = next(name for name, kind in _KINDS.items() if type(change) is kind)
    return {"kind": kind, **asdict(change)}


def change_from(document: Mapping[str, Any]) -> Change:
    """The change that a document describes.

    Raises:
        KeyError, TypeError: it is none.
    """
    fields = dict(document)
    kind = _KINDS[fields.pop("kind")]
    if isinstance(fields.get("former"), dict):
        fields["former"] = SavedQdisc(**fields["former"])
    return kind(**fields)
