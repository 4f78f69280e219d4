"""Writing and reading of a training's checkpoints by all of its ranks together."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
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
from collectives.elastic.checkpoints.training_state import TrainingState
from collectives.elastic.ranks import Ranks


class Checkpointer:
    """Saves and restores a training; all ranks call its methods at the same places, and all get the same errors.

    Args:
        directory: of the checkpoints.
        state: the training's objects.
        ranks: that train; rank 0 holds the run lock.
    """

    def __init__(self, directory: CheckpointDirectory, state: TrainingState, ranks: Ranks) -> None:
        self._directory, self._state, self._ranks = directory, state, ranks

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
        unfinished = self._directory.unfinished(header.samples_done)
        self._ranks.by_first(lambda: _make(unfinished))
        mine: Mapping[str, StoredFile] = {}
        failed = None
        try:
            mine = {name: stored_file(unfinished / name) for name in self._state.save(unfinished)}
        except CheckpointError as error:
            failed = error
        except Exception as error:  # of the objects' own methods, too
            why = error.strerror if isinstance(error, OSError) and error.strerror else reason(error)
            failed = CheckpointError(f"{unfinished}: rank {self._ranks.rank} could not write: {why}")
        outcomes = self._ranks.of_all((mine, failed))
        files = {name: file for each, _ in outcomes for name, file in each.items()}
        errors = [error for _, error in outcomes if error is not None]
        self._ranks.by_first(lambda: self._commit(unfinished, replace(header, files=files), errors))
        return sum(file.bytes for file in files.values())

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
