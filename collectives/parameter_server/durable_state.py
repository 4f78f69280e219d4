"""What a server has on disk: checkpoints in the elastic format, and a log of the gradients applied since.

A gradient is in the log before it is acknowledged. So the newest checkpoint and the logs from there on lead to every
update that a worker was told of, whatever processes die; with `sync` also when the host loses power.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from collectives.elastic.checkpoints.checkpoint_directory import CheckpointDirectory, RunLock
from collectives.elastic.checkpoints.header import CheckpointError, Header, difference, stored_file
from collectives.elastic.checkpoints.stored_values import read_values, write_values
from collectives.parameter_server.gradient_service import Progress, ServedState
from collectives.parameter_server.messages import GradientHeader
from mltcp.core.atomic_files import sync_directory

_STATE = "state.pt"
_LOCK = "lock"
_PROGRESS = "progress"

# -- the log ------------------------------------------------------------------------------------

_LOG = re.compile(r"updates-([0-9]{15})\.log")
_RECORD = struct.Struct("<QQQQQI")
_CHECK = struct.Struct("<I")
_HEAD_BYTES = _RECORD.size + _CHECK.size


@dataclass(frozen=True)
class LoggedUpdate:
    """A record of the log: the gradient that led to `version`, from a step of a worker over so many samples."""

    version: int
    worker: int
    step: int
    samples: int


class UpdateLog:
    """A file of the gradients applied since a checkpoint, in order; a `GradientLog`.

    A record is a head with a checksum of itself and of the payload, and the payload. One that was cut short at the end
    of the last file was never acknowledged, and is dropped.

    Args:
        path: of the file; made if it is missing, else continued.
        sync: whether a gradient is on disk, and not only with the kernel, before it is acknowledged.
    """

    def __init__(self, path: Path, sync: bool) -> None:
        self.path, self._sync = path, sync
        try:
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115  # until `close`
            sync_directory(path.parent)
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror}") from None
        self.size_bytes = self._before = self._file.tell()

    def append(self, version: int, worker: int, header: GradientHeader, payload: Tensor) -> None:
        """See `GradientLog`."""
        content = payload.numpy().data
        record = _RECORD.pack(version, worker, header.step, header.samples, len(content), zlib.crc32(content))
        self._before = self.size_bytes
        try:
            for each in (memoryview(record + _CHECK.pack(zlib.crc32(record))), content):
                written = 0
                while written < len(each):
                    written += self._file.write(each[written:]) or 0
            if self._sync:
                os.fdatasync(self._file.fileno())
        except OSError as error:
            self.drop_last()
            raise CheckpointError(f"{self.path}: update {version}: {error.strerror}") from None
        self.size_bytes = self._before + _HEAD_BYTES + len(content)

    def drop_last(self) -> None:
        """See `GradientLog`."""
        self._file.truncate(self._before)
        self.size_bytes = self._before

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_log(path: Path, payload: Tensor, is_last: bool) -> Iterator[LoggedUpdate]:
    """The records of a log; while one is at hand, `payload` has its gradient.

    What is cut short at the end of the last log is removed.

    Raises:
        CheckpointError: a record is damaged, or its gradient is of another size.
    """
    content = payload.numpy().data
    try:
        with open(path, "r+b") as file:
            end = 0
            while (record := _read_head(file, path)) is not None:
                *numbers, size, digest = record
                found = LoggedUpdate(*numbers)
                if size != len(content):
                    raise CheckpointError(
                        f"{path}: update {found.version}: expected a gradient of {len(content)} bytes, got {size}"
                    )
                if file.readinto(content) < size:
                    break
                if (now := zlib.crc32(content)) != digest:
                    raise CheckpointError(
                        f"{path}: update {found.version}: crc32: expected {digest:08x}, got {now:08x}"
                    )
                yield found
                end = file.tell()
            if is_last:
                file.truncate(end)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from None


def _read_head(file: BinaryIO, path: Path) -> tuple[int, ...] | None:
    """The numbers of the next record; None if there is no whole head any more."""
    begin, head = file.tell(), file.read(_HEAD_BYTES)
    if len(head) < _HEAD_BYTES:
        return None
    if _CHECK.unpack(head[_RECORD.size :])[0] != zlib.crc32(head[: _RECORD.size]):
        raise CheckpointError(f"{path}: expected a record at byte {begin}, got a damaged one")
    return _RECORD.unpack(head[: _RECORD.size])


# -- checkpoints --------------------------------------------------------------------------------


class ServerCheckpoints:
    """The checkpoints and logs of one server in a directory of its own; a `GradientLog`.

    Args:
        path: of the directory, made if it is missing.
        model: the identity of what the server keeps.
        sync: as of `UpdateLog`.

    Raises:
        MltcpError: the directory cannot be made.
    """

    def __init__(self, path: Path, model: Mapping[str, str], sync: bool = False) -> None:
        self._directory = CheckpointDirectory(path.absolute())
        self._directory.prepare()
        self._model, self._sync = model, sync
        self._lock = RunLock(self.path / _LOCK)
        self._log: UpdateLog | None = None

    @property
    def path(self) -> Path:
        """The directory."""
        return self._directory.path

    @property
    def log(self) -> UpdateLog:
        """The log that is written to, from `recover` on."""
        assert self._log is not None, "recovered before"
        return self._log

    def append(self, version: int, worker: int, header: GradientHeader, payload: Tensor) -> None:
        """See `GradientLog`."""
        self.log.append(version, worker, header, payload)

    def drop_last(self) -> None:
        """See `GradientLog`."""
        self.log.drop_last()

    def lock(self, wait_s: float = 0.0) -> None:
        """Keep other servers from using the directory, until this process ends or `close`.

        Raises:
            MltcpError: another one uses it.
        """
        self._lock.acquire(wait_s)
        self._directory.remove_unfinished()

    def close(self) -> None:
        """Close the log, and give the lock back."""
        if self._log is not None:
            self._log.close()
        self._lock.release()

    def recover(self, state: ServedState) -> Progress:
        """Restore the newest checkpoint that is whole, and apply the updates since; returns the progress.

        Without a checkpoint the present state becomes the first one. A damaged one is passed over, since the logs
        since the one before it lead further.

        Raises:
            CheckpointError: there is none that is whole, it is of another model, or updates are missing.
        """
        names = self._directory.checkpoints()
        found = self._directory.newest_whole()
        if found is None:
            if logs := self._logs():
                raise CheckpointError(f"{self.path}: expected a checkpoint beside {logs[0].name}, got none")
            self._write(Progress(), state.state())
            self._log = UpdateLog(self._log_path(0), self._sync)
            return Progress()
        path, header = found
        if (different := difference(self._model, header.model)) is not None:
            raise CheckpointError(f"{path}: {different}")
        progress = self._apply_logs(state, self._restore(state, path, header))
        if progress.samples < (newest := int(names[0].name.rpartition("-")[2])):
            raise CheckpointError(
                f"{names[0]}: it is damaged, and the updates since {path.name} are missing: expected "
                f"{newest} samples, got {progress.samples}"
            )
        last = self._logs()
        self._log = UpdateLog(last[-1] if last else self._log_path(progress.samples), self._sync)
        return progress

    def begin_log(self, progress: Progress) -> None:
        """Have the gradients from now on in a log of their own: the state of this moment becomes a checkpoint.

        Called between two updates. Raises CheckpointError if the file cannot be made.
        """
        former, self._log = self._log, UpdateLog(self._log_path(progress.samples), self._sync)
        if former is not None:
            former.close()

    def save(self, progress: Progress, state: Mapping[str, Any], updates: int | None = None) -> Path | None:
        """Write a checkpoint, durably, and remove the logs that no checkpoint needs; None if there is this one.

        Args:
            progress: of the state.
            state: what `ServedState.state` has returned.
            updates: that the job is to have in all.

        Raises:
            CheckpointError: it could not be written; the earlier ones are as they were, and no log is removed.
        """
        names = self._directory.checkpoints()
        if names and names[0].name.endswith(f"-{progress.samples:015}"):
            return None
        path = self._write(progress, state, updates)
        oldest = self._directory.checkpoints()[-1].name.rpartition("-")[2]
        for log in self._logs():
            if _LOG.fullmatch(log.name)[1] < oldest:  # type: ignore[index]  # it is one of these
                log.unlink()
        return path

    def _write(self, progress: Progress, state: Mapping[str, Any], updates: int | None = None) -> Path:
        unfinished = self._directory.unfinished(progress.samples)
        numbers = {"version": progress.version, "samples": progress.samples, "steps": dict(progress.steps)}
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            write_values(unfinished / _STATE, {**state, _PROGRESS: numbers})
            return self._directory.commit(unfinished, self._header(progress, updates, unfinished))
        except (OSError, RuntimeError) as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise CheckpointError(f"{unfinished}: {why}") from None

    def _header(self, progress: Progress, updates: int | None, unfinished: Path) -> Header:
        done, version = progress.samples, progress.version
        # The samples of updates to come are not known: taken as those of the updates so far.
        total = round(done * updates / version) if updates is not None and version else done
        files = {_STATE: stored_file(unfinished / _STATE)}
        return Header(done, max(done, total), max(1, done), 0, "server", self._model, (), files)

    def _restore(self, state: ServedState, path: Path, header: Header) -> Progress:
        values = read_values(path / _STATE)
        try:
            numbers = values[_PROGRESS]
            progress = Progress(numbers["version"], numbers["samples"], numbers["steps"])
        except (KeyError, TypeError):
            raise CheckpointError(f"{path}: state: expected server, got {header.state}") from None
        try:
            state.load(values)
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from None
        return progress

    def _apply_logs(self, state: ServedState, progress: Progress) -> Progress:
        payload = torch.zeros(state.payload_bytes, dtype=torch.uint8)
        version, samples, steps = progress.version, progress.samples, dict(progress.steps)
        logs = [each for each in self._logs() if each.name >= self._log_path(samples).name]
        for path in logs:
            for update in read_log(path, payload, path is logs[-1]):
                if update.version != version + 1:
                    raise CheckpointError(f"{path}: expected update {version + 1}, got {update.version}")
                state.apply(payload, update.worker, update.step)
                version, samples = version + 1, samples + update.samples
                steps[update.worker] = update.step
        return Progress(version, samples, steps)

    def _logs(self) -> list[Path]:
        return [self.path / name for name in sorted(filter(_LOG.fullmatch, os.listdir(self.path)))]

    def _log_path(self, samples: int) -> Path:
        return self.path / f"updates-{samples:015}.log"
