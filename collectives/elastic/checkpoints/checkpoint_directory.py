"""The checkpoints of a job: one directory each, complete or absent, of which the last two are kept.

A checkpoint is written under a name that begins with a dot, synced, and renamed. So a name that does not is of a
checkpoint that was complete, and the one before it is removed only when two newer ones are.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from collectives.elastic.checkpoints.header import (
    NAME,
    CheckpointError,
    Header,
    check_files,
    encoded,
    read_header,
)
from mltcp.core.atomic_files import sync_directory
from mltcp.core.errors import MltcpError

KEPT = 2
_CHECKPOINT = re.compile(r"checkpoint-([0-9]{15})")
_UNFINISHED = ".unfinished-"
_REMOVED = ".removed-"
_DAMAGED = "damaged-"


class CheckpointDirectory:
    """The directory of a job's checkpoints, on a file system that all of its hosts share.

    Only the holder of the run lock may write; reading needs no lock.

    Args:
        path: of the directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def prepare(self) -> None:
        """Create the directory if it is missing. Raises MltcpError if that is not possible."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MltcpError(f"{self.path}: {error.strerror}") from None

    def checkpoints(self) -> list[Path]:
        """The checkpoints, newest first. Raises CheckpointError if the directory cannot be read."""
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"{self.path}: {error.strerror}") from None
        return [self.path / name for name in sorted(filter(_CHECKPOINT.fullmatch, names), reverse=True)]

    def newest(self) -> tuple[Path, Header] | None:
        """The newest checkpoint, whole by its digests; None if there is none yet.

        Raises:
            CheckpointError: it is damaged; the error names the one before it, if that is whole.
        """
        for path in self.checkpoints()[:1]:
            try:
                return path, _checked(path)
            except CheckpointError as error:
                raise CheckpointError(f"{error}; {self._former(path)}") from None
        return None

    def newest_whole(self) -> tuple[Path, Header] | None:
        """The newest checkpoint that is whole; damaged ones that are newer are renamed to ``damaged-...``.

        Raises:
            CheckpointError: there are checkpoints, but none is whole.
        """
        errors: list[str] = []
        for path in self.checkpoints():
            try:
                found = path, _checked(path)
            except CheckpointError as error:
                errors.append(str(error))
                continue
            for damaged in self.checkpoints()[: len(errors)]:
                os.rename(damaged, _unused(self.path / f"{_DAMAGED}{damaged.name}"))
            return found
        if errors:
            raise CheckpointError(f"{errors[0]}; no earlier checkpoint is whole")
        return None

    def remove_unfinished(self) -> None:
        """Remove what a run that was killed has left half written or half removed."""
        for name in os.listdir(self.path):
            if name.startswith((_UNFINISHED, _REMOVED)):
                shutil.rmtree(self.path / name, ignore_errors=True)

    def unfinished(self, samples_done: int) -> Path:
        """The directory in which a checkpoint's files are written, before `commit`."""
        return self.path / f"{_UNFINISHED}{_name(samples_done)}"

    def commit(self, unfinished: Path, header: Header) -> Path:
        """Add the header to a checkpoint whose files are written and synced, and give it its name, durably.

        Older checkpoints than the previous one are removed. Raises OSError.
        """
        with open(unfinished / NAME, "xb") as file:
            file.write(encoded(header))
            file.flush()
            os.fsync(file.fileno())
        sync_directory(unfinished)
        path = self.path / _name(header.samples_done)
        os.rename(unfinished, path)
        sync_directory(self.path)
        for old in self.checkpoints()[KEPT:]:
            removed = self.path / f"{_REMOVED}{old.name}"
            os.rename(old, removed)
            shutil.rmtree(removed, ignore_errors=True)
        return path

    def _former(self, damaged: Path) -> str:
        for path in self.checkpoints():
            if path < damaged:
                try:
                    header = _checked(path)
                except CheckpointError:
                    continue
                return (
                    f"{path.name} is whole, with {header.samples_done} samples: accept_previous resumes there"
                )
        return "no earlier checkpoint is whole"


def progress_of(path: Path) -> Header | None:
    """The header of a job's newest checkpoint, for programs that watch the job; None: it has none yet.

    Raises:
        CheckpointError: its header is damaged.
    """
    while True:
        found = CheckpointDirectory(path).checkpoints()
        if not found:
            return None
        try:
            return read_header(found[0])
        except CheckpointError:
            if found[0].exists():
                raise
            # It has been removed meanwhile, because there are newer ones.


def _checked(path: Path) -> Header:
    header = read_header(path)
    check_files(path, header)
    return header


def _name(samples_done: int) -> str:
    return f"checkpoint-{samples_done:015}"


def _unused(path: Path) -> Path:
    number = 0
    while (found := path if not number else path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return found
