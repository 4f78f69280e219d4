"""The kinds of changes that the daemon makes to a host, and how each is undone.

A change is not undone if somebody else has changed the same thing since; it is then reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mltcp.core.owner import Owner
from mltcp.ebpf.congestion_controls import Controls
from mltcp.pacing.edt.edt_change import EdtChange
from mltcp.pacing.tc.qdisc_change import QdiscChange, UndoOutcome
from mltcp.pacing.tc.qdiscs import SavedQdisc


@dataclass(frozen=True)
class ControlChange:
    """A congestion control was loaded."""

    name: str

    def __str__(self) -> str:
        return f"the congestion control {self.name}"

    def undo(self) -> UndoOutcome:
        """Unload it, of whatever build. Its flows keep it until they close: the kernel holds it for them."""
        controls = Controls()
        state = controls.registration(self.name).state
        if state not in ("loaded", "older"):
            return UndoOutcome(True, "it is not loaded any more")
        # The jobs of another build cannot be read; their connections keep what they have.
        foreign_jobs = [
            job.name
            for job in (controls.jobs().values() if state == "loaded" else ())
            if job.owner != Owner.current() and job.is_owned
        ]
        if foreign_jobs:
            return UndoOutcome(False, f"job {foreign_jobs[0]}, which was started without the daemon, uses it")
        controls.unload([self.name], force=True)
        return UndoOutcome(True, "unloaded")


Change = QdiscChange | EdtChange | ControlChange

_KINDS: dict[str, type[Change]] = {"qdisc": QdiscChange, "edt": EdtChange, "control": ControlChange}


def document_of(change: Change) -> dict[str, Any]:
    """The change as a JSON document."""
    kind = next(name for name, kind in _KINDS.items() if type(change) is kind)
    return {"kind": kind, **asdict(change)}


def change_from(document: Mapping[str, Any]) -> Change:
    """The change that a JSON document describes.

    Raises:
        KeyError, TypeError: it does not describe a change.
    """
    fields = dict(document)
    kind = _KINDS[fields.pop("kind")]
    if kind is ControlChange:
        fields.pop("root", None)  # of versions that pinned controls in a directory
    if isinstance(fields.get("former"), dict):
        fields["former"] = SavedQdisc(**fields["former"])
    if "children" in fields:
        fields["children"] = tuple((queue, SavedQdisc(**saved)) for queue, saved in fields["children"])
    return kind(**fields)
