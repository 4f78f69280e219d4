"""The journal of the daemon's changes to the host: each is on disk before it is made, so that it can always be undone.

The file has JSON lines: one for each change, with its number, and one when it has been undone. A last line that a crash
cut off is ignored, since its change was not made yet. So are changes of another boot, since none of them outlives one.
Whoever can write to its directory decides what root undoes, and so it must be root's alone.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from mltcp.core.atomic_files import write_atomically
from mltcp.core.errors import MltcpError, NotAvailableError
from mltcp.core.owner import Owner
from mltcp.core.processes import boot_id
from mltcp.core.trusted_directory import make_trusted_directory
from mltcp.ebpf.congestion_controls import Controls
from mltcp.pacing.edt.edt_pacing import EdtChange
from mltcp.pacing.tc.qdisc_change import QdiscChange, UndoOutcome
from mltcp.pacing.tc.qdiscs import SavedQdisc

# The kinds of changes that the daemon makes to a host, and how each is undone.
#
# A change is not undone if somebody else has changed the same thing since; it is then reported.


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


# -- the journal --------------------------------------------------------------------------------


JOURNAL = Path("/var/lib/mltcp/journal")


@dataclass(frozen=True)
class Entry:
    """A change that was made, or was about to be made, with its number."""

    number: int
    change: Change


class Journal:
    """The journal of one daemon, opened by :meth:`locked`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._boot = boot_id()
        self._pending = self._read()
        self._next = 1 + max(self._pending, default=0)
        self._rewrite()

    @classmethod
    @contextmanager
    def locked(cls, path: Path = JOURNAL) -> Iterator[Journal]:
        """Open the journal at a path and lock it for the time of the context.

        Raises:
            MltcpError: another daemon has locked it.
            UnsafeDirectoryError: another account could write a journal there.
            NotAvailableError: it cannot be written there.
        """
        make_trusted_directory(path.parent, holds="the journal")
        try:
            # Opened for appending, so that the owner's pid stays in the file if the lock is refused.
            lock = open(path.with_name(path.name + ".lock"), "a+")  # noqa: SIM115
        except OSError as error:
            raise NotAvailableError(f"the journal cannot be written: {path}: {error.strerror}") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                owner = lock.read().strip() or "?"
                raise MltcpError(f"mltcpd is already running (pid {owner}) with the journal {path}") from None
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            yield cls(path)

    def record(self, change: Change) -> int:
        """Write a change that is about to be made; returns its number. It is on disk when this returns.

        Raises:
            MltcpError: it cannot be written; the change must not be made then.
        """
        number, self._next = self._next, self._next + 1
        self._append({"number": number, "boot": self._boot, "change": document_of(change)})
        self._pending[number] = change
        return number

    def undone(self, number: int, how: str) -> None:
        """Write that a change was undone, and how.

        Raises:
            MltcpError: it cannot be written; the next start will find the change undone.
        """
        if self._pending.pop(number, None) is None:
            return
        self._append({"undone": number, "how": how})
        if not self._pending:
            self._rewrite()  # so that it does not grow while the daemon runs

    def pending(self) -> list[Entry]:
        """The changes that are not undone, the last one first."""
        return [Entry(number, self._pending[number]) for number in sorted(self._pending, reverse=True)]

    def _read(self) -> dict[int, Change]:
        found: dict[int, Change] = {}
        try:
            text = self._path.read_text(errors="replace")
        except FileNotFoundError:
            return found
        lines = text.split("\n")
        for line in lines[:-1]:  # a last line without a newline was cut off
            self._read_line(line, found)
        return found

    def _read_line(self, line: str, found: dict[int, Change]) -> None:
        try:
            document = json.loads(line)
            if "undone" in document:
                found.pop(document["undone"], None)
            elif document["boot"] == self._boot:
                found[document["number"]] = change_from(document["change"])
        except (ValueError, KeyError, TypeError) as error:
            raise MltcpError(f"the journal {self._path} has a malformed line: {error}") from None

    def _rewrite(self) -> None:
        """Leave out the changes that are undone, and a line that a crash cut off."""
        lines = [
            {"number": number, "boot": self._boot, "change": document_of(change)}
            for number, change in sorted(self._pending.items())
        ]
        try:
            write_atomically(self._path, "".join(json.dumps(line) + "\n" for line in lines).encode())
        except MltcpError as error:
            raise MltcpError(f"the journal cannot be written: {error}") from None

    def _append(self, line: dict[str, object]) -> None:
        try:
            with open(self._path, "ab", buffering=0) as file:
                end = file.tell()
                try:
                    _write_all(file, (json.dumps(line) + "\n").encode())
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(end)  # a partial line would spoil the next one
                    raise
        except OSError as error:
            raise MltcpError(f"the journal cannot be written: {self._path}: {error.strerror}") from None


def _write_all(file: FileIO, data: bytes) -> None:
    """Write all data. A full disk accepts a part first and reports the error at the next write."""
    while data:
        data = data[file.write(data) :]


# -- restoring ----------------------------------------------------------------------------------


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
