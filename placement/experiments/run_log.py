"""The finished runs of a comparison: a file to which each is added durably, and that no interruption spoils."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from mltcp.core.errors import MltcpError, UsageError
from placement.experiments.run import SimulationRun

NAME = "runs.jsonl"


class RunLog:
    """The runs in a folder; made by `open_log`.

    Attributes:
        runs: by their keys.
    """

    def __init__(self, path: Path, file: FileIO) -> None:
        content = file.readall()
        whole = content[: content.rfind(b"\n") + 1]
        self.runs = _runs(path, whole)
        self._path, self._file = path, file
        # What follows the last end of a line is a run that was being written when the writer was stopped.
        file.truncate(len(whole))
        file.seek(len(whole))

    def add(self, run: SimulationRun) -> None:
        """Add a run; when this returns, it is on the disk.

        Raises:
            MltcpError: it cannot be written.
        """
        left = memoryview(run.line().encode() + b"\n")
        try:
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _failed(self._path, error) from None
        self.runs[run.key] = run


@contextmanager
def open_log(folder: Path) -> Iterator[RunLog]:
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
            raise UsageError(f"{folder}: another compare is at work there") from None
        yield RunLog(path, file)


def read_log(folder: Path) -> dict[str, SimulationRun]:
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
    return _runs(path, content[: content.rfind(b"\n") + 1])


def _runs(path: Path, content: bytes) -> dict[str, SimulationRun]:
    runs = {}
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            run = SimulationRun.from_line(line)
        except (ValueError, TypeError):
            raise UsageError(f"{path}:{number}: this is no run of a comparison") from None
        runs[run.key] = run
    return runs


def _failed(path: Path, error: OSError) -> MltcpError:
    return MltcpError(f"{path}: {error.strerror or error}")
