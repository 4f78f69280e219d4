"""The kinds of change that the daemon makes on a host, and how each is undone.

Nothing is undone that somebody else has changed since: it is left alone, and reported.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mltcp.ebpf.congestion_controls import Controls, is_alive
from mltcp.pacing import qdiscs


@dataclass(frozen=True)
class Outcome:
    """What became of a change: whether the host is as before in this respect, and why, or why not."""

    undone: bool
    why: str


@dataclass(frozen=True)
class QdiscChange:
    """The root queueing discipline of an interface is ours; `former` is what was there, None: the kernel's default."""

    interface: str
    index: int
    former: qdiscs.Saved | None = None

    def __str__(self) -> str:
        return f"the tree on {self.interface}"

    def undo(self) -> Outcome:
        """Put back what was there."""
        now = self._now()
        if now is None:
            return Outcome(True, "the interface is gone, and its tree with it")
        if not now.is_ours:
            return self._without_ours(now)
        if self.former is None:
            qdiscs.remove_root(self.index)
            return Outcome(True, "removed; the kernel's default is back")
        # In one step: killed between two, nobody would know that the former one is still to be put back.
        qdiscs.put_back(self.index, self.former)
        return Outcome(True, f"removed; {self.former.kind} is back")

    def _now(self) -> qdiscs.Root | None:
        """What is there, whatever the interface is called meanwhile."""
        try:
            return qdiscs.root_of(socket.if_indextoname(self.index))
        except OSError:
            return None

    def _without_ours(self, now: qdiscs.Root) -> Outcome:
        if now.is_default:
            return Outcome(True, "it is not there any more")
        if self.former is not None and now.saved() == self.former:
            return Outcome(True, f"{now} is there, as before")
        return Outcome(False, f"someone has put {now} there since")


@dataclass(frozen=True)
class ControlChange:
    """A congestion control that we loaded; `root` is where its pins are."""

    name: str
    root: str

    def __str__(self) -> str:
        return f"the congestion control {self.name}"

    def undo(self) -> Outcome:
        """Unload it. Flows that are under it keep it until they close: the kernel holds it for them."""
        controls = Controls(Path(self.root))
        if self.name not in controls.loaded():
            controls.unload([self.name], force=True)  # a pin of one that was never registered
            return Outcome(True, "it is not loaded any more")
        strangers = [
            job.name
            for job in controls.jobs().values()
            if job.owner and job.owner != os.getpid() and is_alive(job.owner)
        ]
        if strangers:
            return Outcome(False, f"job {strangers[0]}, started without the daemon, is running under it")
        controls.unload([self.name], force=True)
        return Outcome(True, "unloaded")


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
        fields["former"] = qdiscs.Saved(**fields["former"])
    return kind(**fields)
