"""Writing and reading of a training's checkpoints by all of its ranks together."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from collectives.elastic.checkpoints.checkpoint_directory import CheckpointDirectory
from collectives.elastic.checkpoints.header import (
    CheckpointError,
    Header,
    StoredFile,
    difference,
    stored_file,
)
from collectives.elastic.checkpoints.stored_values import reason
from collectives.elastic.checkpoints.training_state import TakenState, TrainingState
from collectives.elastic.ranks import Ranks


class Checkpointer:
    """Saves and restores a training; all ranks call its methods at the same places, and all get the same errors.

    Args:
        directory: of the checkpoints.
        state: the training's objects.
        ranks: that train; rank 0 holds the run lock.
        beside: the same ranks in a group of its own, for writing while they train; None: never.

    Attributes:
        held_s: how long saving has kept the caller, in seconds.
    """

    def __init__(
        self, directory: CheckpointDirectory, state: TrainingState, ranks: Ranks, beside: Ranks | None
    ) -> None:
        self._directory, self._state, self._ranks, self._beside = directory, state, ranks, beside
        self._thread: threading.Thread | None = None
        self._copied = threading.Event()
        self._error: Exception | None = None
        self.held_s = 0.0

    def resume(self, wanted: Header, accept_previous: bool) -> Header | None:
        """Restore the newest checkpoint, and return its header; None if there is none.

        Args:
            wanted: what the script trains; its seed is not compared.
            accept_previous: go back to the previous checkpoint if the newest is damaged.

        Raises:
            CheckpointError: it is damaged, or of another training. No file has changed.
        """
        found = self._ranks.by_first(lambda: self._found(wanted, accept_previous))
        if found is None:
            return None
        path, header = found
        self._ranks.on_all(lambda: self._state.load(path))
        return header

    def save(self, header: Header) -> int:
        """Write a checkpoint; durable on return. Returns its size in bytes.

        Raises:
            CheckpointError: it could not be written; the earlier ones are as they were.
        """
        self.finish()
        with self._holding():
            return self._written(header, *self._taken(header, copied=False), self._ranks)

    def start(self, header: Header, written: Callable[[int], None]) -> None:
        """Begin to write a checkpoint while the ranks train; `written` gets its size, on another thread."""
        self.finish()
        with self._holding():
            taken, failed = self._taken(header, copied=True)
            self._copied.clear()
            arguments = (header, taken, failed, written)
            self._thread = threading.Thread(
                target=self._write_beside, args=arguments, name="checkpoint", daemon=True
            )
            self._thread.start()

    def await_copy(self) -> None:
        """Wait until the checkpoint that is being written no longer needs the tensors; before they change."""
        if self._thread is not None:
            with self._holding():
                self._copied.wait()

    @property
    def writing(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def failed(self) -> bool:
        """Whether writing one has failed: `finish` raises the error, on all ranks."""
        return self._error is not None

    def finish(self) -> None:
        """Wait for the checkpoint that is being written.

        Raises:
            CheckpointError: it could not be written; the earlier ones are as they were.
        """
        if self._thread is None:
            return
        with self._holding():
            self._thread.join()
        error, self._thread, self._error = self._error, None, None
        if error is not None:
            raise error

    @contextmanager
    def _holding(self) -> Iterator[None]:
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.held_s += time.monotonic() - began_s

    def _write_beside(
        self,
        header: Header,
        taken: TakenState | None,
        failed: CheckpointError | None,
        written: Callable[[int], None],
    ) -> None:
        assert self._beside is not None
        try:
            if taken is not None:
                taken.finish()
        except Exception as error:
            failed = self._cannot(header, error)
        self._copied.set()
        try:
            written(self._written(header, taken, failed, self._beside))
        except Exception as error:
            self._error = error

    def _taken(self, header: Header, copied: bool) -> tuple[TakenState | None, CheckpointError | None]:
        try:
            return self._state.take(copied), None
        except Exception as error:  # of the objects' own methods, too
            return None, self._cannot(header, error)

    def _written(
        self, header: Header, taken: TakenState | None, failed: CheckpointError | None, ranks: Ranks
    ) -> int:
        unfinished = self._directory.unfinished(header.samples_done)
        ranks.by_first(lambda: _make(unfinished))
        mine: Mapping[str, StoredFile] = {}
        whole = all(each is None for each in ranks.of_all(failed))
        if whole and taken is not None:
            try:
                mine = {name: stored_file(unfinished / name) for name in taken.write(unfinished, ranks)}
            except Exception as error:  # of torch.distributed.checkpoint, too
                failed = self._cannot(header, error)
        outcomes = ranks.of_all((mine, failed))
        files = {name: file for each, _ in outcomes for name, file in each.items()}
        errors = [error for _, error in outcomes if error is not None]
        ranks.by_first(lambda: self._commit(unfinished, replace(header, files=files), errors))
        return sum(file.bytes for file in files.values())

    def _cannot(self, header: Header, error: Exception) -> CheckpointError:
        if isinstance(error, CheckpointError):
            return error
        why = error.strerror if isinstance(error, OSError) and error.strerror else reason(error)
        unfinished = self._directory.unfinished(header.samples_done)
        return CheckpointError(f"{unfinished}: rank {self._ranks.rank} could not write: {why}")

    def _found(self, wanted: Header, accept_previous: bool) -> tuple[Path, Header] | None:
        found = self._directory.newest_whole() if accept_previous else self._directory.newest()
        if found is not None:
            _check_same(wanted, *found)
        return found

    def _commit(self, unfinished: Path, header: Header, errors: list[CheckpointError]) -> None:
        try:
            if errors:
                raise errors[0]
            self._directory.commit(unfinished, header)
        except OSError as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise CheckpointError(f"{unfinished}: {error.strerror}") from None
        except CheckpointError:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


def _make(directory: Path) -> None:
    try:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
    except OSError as error:
        raise CheckpointError(f"{directory}: {error.strerror}") from None


def _check_same(wanted: Header, path: Path, found: Header) -> None:
    if (different := difference(wanted.model, found.model)) is not None:
        raise CheckpointError(f"{path}: {different}")
    for field in ("epoch_samples", "state"):
        if getattr(found, field) != getattr(wanted, field):
            raise CheckpointError(
                f"{path}: {field}: expected {getattr(wanted, field)}, as the script has it, "
                f"got {getattr(found, field)}"
            )
