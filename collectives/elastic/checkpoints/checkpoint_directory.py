"""The checkpoints of a job: one directory each, complete or absent, of which the last two are kept.

A checkpoint is written under a name that begins with a dot, synced, and renamed. So a name that does not is of a
checkpoint that was complete, and the one before it is removed only when two newer ones are.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import suppress
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

_POLL_S = 0.05
_LONGEST_OWNER = 200


class CheckpointsInUse(MltcpError):
    """Another run of the job still uses its checkpoints."""


class RunLock:
    """A lock that ends with the process that holds it, however that ends; its file names the holder.

    It is a lock of the process (fcntl), which workers that the process forks do not inherit.

    Args:
        path: the file, created if missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def acquire(self, wait_s: float, given_up: Callable[[], bool] = lambda: False) -> bool:
        """Take the lock, waiting for the other run; False if `given_up` before that.

        Raises:
            CheckpointsInUse: the other run has not ended within `wait_s`.
            MltcpError: the file cannot be opened, or its file system has no locks.
        """
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise MltcpError(f"{self._path}: {error.strerror}") from None
        end_s = time.monotonic() + wait_s
        while not self._locked(file):
            if given_up() or time.monotonic() >= end_s:
                owner = os.pread(file, _LONGEST_OWNER, 0).decode(errors="replace").strip()
                os.close(file)
                if given_up():
                    return False
                raise CheckpointsInUse(
                    f"{self._path.parent}: expected no other run within {wait_s:g} s, got {owner or 'one'}"
                )
            time.sleep(_POLL_S)
        self._file = file
        with suppress(OSError):  # on a full disk the lock holds all the same
            os.ftruncate(file, 0)
            os.pwrite(file, f"process {os.getpid()} on host {socket.gethostname()}\n".encode(), 0)
        return True

    def release(self) -> None:
        """Give the lock back, if it is held."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _locked(self, file: int) -> bool:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            os.close(file)
            raise MltcpError(
                f"{self._path}: expected a file system with locks (fcntl): {error.strerror or error}"
            ) from None
        return True


# -- the directory ------------------------------------------------------------------------------


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
