"""Finished runs: a file to which each is added durably, and that no interruption spoils."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from mltcp.core.atomic_files import make_folder
from mltcp.core.errors import MltcpError, UsageError

NAME = "runs.jsonl"


class LoggedRun(Protocol):
    """A finished run."""

    @property
    def key(self) -> str:
        """Its key: equal runs have equal keys."""
        ...

    def line(self) -> str:
        """The run as a line of JSON, without a newline."""
        ...


Run = TypeVar("Run", bound=LoggedRun)
Parse = Callable[[bytes], Run]
"""Reads what `LoggedRun.line` gave; ValueError or TypeError if it is anything else."""


class RunJournal(Generic[Run]):
    """The runs in a folder; made by `open_journal`.

    Attributes:
        runs: by their keys.
    """

    def __init__(self, path: Path, file: FileIO, parse: Parse[Run]) -> None:
        content = file.readall()
        whole = content[: content.rfind(b"\n") + 1]
        self.runs = _runs(path, whole, parse)
        self._path, self._file = path, file
        # What follows the last end of a line is a run that was being written when the writer was stopped.
        file.truncate(len(whole))
        file.seek(len(whole))

    def add(self, *runs: Run) -> None:
        """Add runs; when this returns, they are on the disk.

        Raises:
            MltcpError: they cannot be written.
        """
        left = memoryview(b"".join(run.line().encode() + b"\n" for run in runs))
        try:
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _failed(self._path, error) from None
        self.runs.update((run.key, run) for run in runs)


@contextmanager
def kept_runs(folder: Path | None, parse: Parse[Run]) -> Iterator[RunJournal[Run] | None]:
    """The runs that a folder holds, to which finished ones are added; the folder is made if need be. None: no folder.

    Raises:
        UsageError: it cannot be made, another command is at work there, or it holds something else.
        MltcpError: it cannot be read or written.
    """
    if folder is None:
        yield None
        return
    make_folder(folder)
    with open_journal(folder, parse) as journal:
        yield journal


@contextmanager
def open_journal(folder: Path, parse: Parse[Run]) -> Iterator[RunJournal[Run]]:
    """Open the log of this folder, or begin one, and keep others from writing to it meanwhile.

    Raises:
        UsageError: another process is writing to it, or it holds something else.
        MltcpError: it cannot be read or written.
    """
    path = folder / NAME
    try:
        file = FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+")
    except OSError as error:
        raise _failed(path, error) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{folder}: another command is at work there") from None
        yield RunJournal(path, file, parse)


def read_journal(folder: Path, parse: Parse[Run]) -> dict[str, Run]:
    """The runs in this folder by their keys, without changing anything.

    Raises:
        UsageError: there is no log, or it holds something else.
    """
    path = folder / NAME
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror or error}; expected a folder that `compare -o` made"
        ) from None
    return _runs(path, content[: content.rfind(b"\n") + 1], parse)


def _runs(path: Path, content: bytes, parse: Parse[Run]) -> dict[str, Run]:
    runs = {}
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            run = parse(line)
        except (ValueError, TypeError):
            raise UsageError(f"{path}:{number}: this is no run of a comparison") from None
        runs[run.key] = run
    return runs


def _failed(path: Path, error: OSError) -> MltcpError:
    return MltcpError(f"{path}: {error.strerror or error}")
