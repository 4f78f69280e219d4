"""The state of a training in files: whole, in one file of rank 0, or sharded, by torch.distributed.checkpoint."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from collectives.elastic.checkpoints.header import CheckpointError
from collectives.elastic.checkpoints.identity import unwrapped
from collectives.elastic.ranks import Ranks

_WHOLE = "state.pt"
_OTHERS = "others.pt"


class Stateful(Protocol):
    """An object with state, such as a learning rate schedule or a GradScaler; equal on all ranks."""

    def state_dict(self) -> Mapping[str, Any]:
        """The state, of tensors and plain values."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Restore the state."""


class TrainingState(Protocol):
    """The objects of a training, in files."""

    kind: str

    def save(self, directory: Path) -> list[str]:
        """Write and sync this rank's files, and return their names. All ranks call it.

        Raises OSError or RuntimeError if they cannot be written.
        """

    def load(self, directory: Path) -> None:
        """Restore the objects on this rank. All ranks call it."""


class WholeState:
    """Objects of which every rank has all; rank 0 writes one file."""

    kind = "whole"

    def __init__(self, objects: Mapping[str, Stateful], ranks: Ranks) -> None:
        self._objects, self._ranks = objects, ranks

    def save(self, directory: Path) -> list[str]:
        """See `TrainingState`."""
        if self._ranks.rank != 0:
            return []
        _write(directory / _WHOLE, {name: each.state_dict() for name, each in self._objects.items()})
        return [_WHOLE]

    def load(self, directory: Path) -> None:
        """See `TrainingState`. Raises CheckpointError if the state is not that of the objects."""
        _restore(self._objects, _read(directory / _WHOLE), directory)


class ShardedState:
    """A model of sharded parameters (FSDP2, DTensor) and its optimizer; each rank writes its shards.

    The number of ranks that load may differ from that of those that saved.
    """

    kind = "sharded"

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, others: Mapping[str, Stateful], ranks: Ranks
    ) -> None:
        self._model, self._optimizer, self._others, self._ranks = model, optimizer, others, ranks

    def save(self, directory: Path) -> list[str]:
        """See `TrainingState`."""
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self._model, self._optimizer)
        state = {"model": model, "optimizer": optimizer}
        writer = dcp.FileSystemWriter(directory)
        try:
            dcp.save(state, storage_writer=writer, process_group=self._ranks.group)
        except CheckpointException as error:  # it is no Exception
            raise RuntimeError(_first_line(error)) from None
        mine = sorted(path.name for path in directory.glob(f"__{self._ranks.rank}_*"))
        if self._ranks.rank == 0:
            _write(directory / _OTHERS, {name: each.state_dict() for name, each in self._others.items()})
            mine += [".metadata", _OTHERS]
        return mine

    def load(self, directory: Path) -> None:
        """See `TrainingState`. Raises CheckpointError if the state is not that of the objects."""
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

        model, optimizer = get_state_dict(self._model, self._optimizer)
        state: dict[str, Any] = {"model": model, "optimizer": optimizer}
        try:
            reader = dcp.FileSystemReader(directory)
            dcp.load(state, storage_reader=reader, process_group=self._ranks.group)
            set_state_dict(
                self._model,
                self._optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(f"{directory}: {_first_line(error)}") from None
        _restore(self._others, _read(directory / _OTHERS), directory)


def training_state(
    model: nn.Module, optimizer: Optimizer, others: Mapping[str, Stateful], ranks: Ranks
) -> TrainingState:
    """The state of these objects: sharded if a parameter is, else whole."""
    # Importing it takes a second, and where nobody has, no parameter is sharded.
    tensors = sys.modules.get("torch.distributed.tensor")
    if tensors is not None and any(isinstance(each, tensors.DTensor) for each in model.parameters()):
        return ShardedState(model, optimizer, others, ranks)
    return WholeState({"model": unwrapped(model), "optimizer": optimizer, **others}, ranks)


def _write(path: Path, state: Mapping[str, Any]) -> None:
    with open(path, "xb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(
            f"{path}: expected a file system that all hosts share: {error.strerror}"
        ) from None
    except (pickle.UnpicklingError, RuntimeError) as error:
        raise CheckpointError(f"{path}: {_first_line(error)}") from None
    return found


def _restore(objects: Mapping[str, Stateful], state: Mapping[str, Any], checkpoint: Path) -> None:
    if list(state) != list(objects):
        raise CheckpointError(
            f"{checkpoint}: objects: expected {', '.join(objects) or 'none'}, got {', '.join(state) or 'none'}"
        )
    for name, each in objects.items():
        try:
            each.load_state_dict(state[name])
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{checkpoint}: {name}: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) or type(error).__name__
